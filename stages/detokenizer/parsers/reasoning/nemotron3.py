"""Reasoning of Nemotron 3: generation begins with it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("nemotron3", Block(begins_inside=True))
