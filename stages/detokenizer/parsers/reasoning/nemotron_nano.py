"""Reasoning of Nemotron Nano: generation begins with it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("nemotron_nano", Block(begins_inside=True))
