"""The device side: fixed-shape functions over (weights, donated state, small inputs); arrays and keys, no requests."""
