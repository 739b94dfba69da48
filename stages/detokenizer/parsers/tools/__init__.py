"""Tool-call parsers, one file each."""
