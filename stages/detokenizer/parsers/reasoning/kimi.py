"""Reasoning of Kimi, between triangles. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("kimi", Block(("◁think▷",), ("◁/think▷",)))
