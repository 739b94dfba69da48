"""Reasoning parsers that read text, one file each."""
