"""Counts what happens; lossy, never in the way."""
