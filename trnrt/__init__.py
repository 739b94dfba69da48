"""Wiring: knows which parts exist and does no work itself."""
