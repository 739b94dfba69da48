"""Reasoning of DeepSeek V3, as of R1 where the prompt does not say otherwise. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("deepseek_v3", Block(begins_inside=True))
