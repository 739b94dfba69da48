"""Reasoning of DeepSeek V4; a tool call ends it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("deepseek_v4", Block(exits=("<｜DSML｜tool_calls>", "<｜DSML｜invoke name=")))
