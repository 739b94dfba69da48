"""Reasoning of DeepSeek V3.2, as of R1 where the prompt does not say otherwise. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("deepseek_v3_2", Block(begins_inside=True))
