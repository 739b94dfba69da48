"""Calls of DeepSeek V3.2: DSML in a block of function calls. Core."""

from stages.detokenizer.parsers.dsml import PREFIX, dsml
from stages.detokenizer.parsers.text_tools import text_tool_parser

PARSER = text_tool_parser("deepseek_v3_2", (PREFIX,), dsml("function_calls"))
