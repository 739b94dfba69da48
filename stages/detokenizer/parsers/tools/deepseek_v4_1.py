"""Calls of DeepSeek V4.1: DSML with a space before each tag's name, and a shorter name of the block. Core."""

from stages.detokenizer.parsers.dsml import PREFIX, dsml
from stages.detokenizer.parsers.text_tools import text_tool_parser

PARSER = text_tool_parser(
    "deepseek_v4_1", (PREFIX,), dsml("calls", prefix=f"{PREFIX} ", opens=(f"\n\n<{PREFIX} calls>",))
)
