"""Calls of Llama 3: JSON objects with semicolons between, after `<|python_tag|>` or bare. Core."""

from stages.detokenizer.parsers.json_calls import json_body, tagged
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("<|python_tag|>",), ()

PARSER = text_tool_parser("llama3_json", (*STARTS, *ENDS), tagged(STARTS, ENDS, json_body(), is_bare=True))
