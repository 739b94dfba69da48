"""Capacity planning: the real scheduler and executor with a timed device, on a virtual clock."""
