"""Constrained output: what every next token of a choice may be."""
