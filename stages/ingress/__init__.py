"""HTTP in and out: routes, limits, event streams; a client that leaves cancels its request."""
