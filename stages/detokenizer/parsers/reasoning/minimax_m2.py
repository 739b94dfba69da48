"""Reasoning of MiniMax M2: generation begins with it, and a tool call ends it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("minimax_m2", Block(exits=("<minimax:tool_call>", "<invoke name="), begins_inside=True))
