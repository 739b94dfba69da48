"""Reasoning of DeepSeek R1: generation begins with it. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("deepseek_r1", Block(begins_inside=True))
