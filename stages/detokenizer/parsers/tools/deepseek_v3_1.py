"""Calls of DeepSeek V3.1: name and JSON, a separator between. Core."""

from stages.detokenizer.parsers.deepseek_calls import MARKERS, deepseek_calls
from stages.detokenizer.parsers.text_tools import text_tool_parser

PARSER = text_tool_parser("deepseek_v3_1", MARKERS, deepseek_calls())
