"""Reasoning of GLM-4.5 to 5.3, read as text. Core."""

from stages.detokenizer.parsers.thinking import thinking_parser

PARSER = thinking_parser("glm45")
