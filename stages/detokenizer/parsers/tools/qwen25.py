"""Calls of Qwen 2.5 and 3: JSON objects in `<tool_call>`, or a bare one. Core."""

from stages.detokenizer.parsers.json_calls import json_body, tagged
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("<tool_call>",), ("</tool_call>",)

PARSER = text_tool_parser("qwen25", (*STARTS, *ENDS), tagged(STARTS, ENDS, json_body(), is_bare=True))
