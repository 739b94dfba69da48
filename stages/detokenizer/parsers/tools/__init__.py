"""Tool-call parsers that read text, one file each."""
