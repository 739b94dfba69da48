"""Calls of models without a format of their own: `<TOOLCALL>` or `<|python_tag|>` before JSON. Core."""

from stages.detokenizer.parsers.json_calls import json_body, tagged
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("<TOOLCALL>", "<|python_tag|>"), ("</TOOLCALL>",)

PARSER = text_tool_parser("default", (*STARTS, *ENDS), tagged(STARTS, ENDS, json_body()))
