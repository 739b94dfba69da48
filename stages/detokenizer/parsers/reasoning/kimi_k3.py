"""Reasoning of Kimi K3; any other element ends it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser(
    "kimi_k3", Block(("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",), ("<|open|>", "<|close|>", "<|end_of_msg|>"))
)
