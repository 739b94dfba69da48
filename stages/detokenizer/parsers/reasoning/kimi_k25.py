"""Reasoning of Kimi K2 and K2.5: generation begins with it, and a tool call ends it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("kimi_k25", Block(exits=("<|tool_calls_section_begin|>",), begins_inside=True))
