"""Reasoning of Gemma 4: a channel with its label. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("gemma4", Block(("<|channel>thought\n", "<|channel>"), ("<channel|>",)))
