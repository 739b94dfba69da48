"""Reasoning parsers, one file each."""
