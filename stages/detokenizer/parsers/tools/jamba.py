"""Calls of Jamba: a JSON list in `<tool_calls>`. Core."""

from stages.detokenizer.parsers.json_calls import json_body, tagged
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("<tool_calls>",), ("</tool_calls>",)

PARSER = text_tool_parser("jamba", (*STARTS, *ENDS), tagged(STARTS, ENDS, json_body()))
