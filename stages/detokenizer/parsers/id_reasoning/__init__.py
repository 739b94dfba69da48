"""Reasoning parsers that read token ids, one file each."""
