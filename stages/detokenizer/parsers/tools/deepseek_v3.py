"""Calls of DeepSeek V3 and R1: name and fenced JSON behind the word function. Core."""

from stages.detokenizer.parsers.deepseek_calls import MARKERS, deepseek_calls
from stages.detokenizer.parsers.text_tools import text_tool_parser

PARSER = text_tool_parser("deepseek_v3", MARKERS, deepseek_calls())
