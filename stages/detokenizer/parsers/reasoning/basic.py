"""Reasoning of models that think between plain tags, when they do. Core."""

from stages.detokenizer.parsers.thinking import thinking_parser

PARSER = thinking_parser("basic")
