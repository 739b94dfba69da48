"""Calls of DeepSeek V4: DSML in a block of tool calls, to which the empty line before it belongs. Core."""

from stages.detokenizer.parsers.dsml import PREFIX, dsml
from stages.detokenizer.parsers.text_tools import text_tool_parser

PARSER = text_tool_parser("deepseek_v4", (PREFIX,), dsml("tool_calls", opens=("\n\n<｜DSML｜tool_calls>",)))
