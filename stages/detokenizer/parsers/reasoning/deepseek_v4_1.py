"""Reasoning of DeepSeek V4.1; a tool call ends it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("deepseek_v4_1", Block(exits=("<｜DSML｜ calls>", "<｜DSML｜ invoke name=")))
