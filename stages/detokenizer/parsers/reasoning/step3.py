"""Reasoning of Step-3: generation begins with it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("step3", Block(begins_inside=True))
