"""Calls of Llama-Nemotron: a JSON list in `<TOOLCALL>`. Core."""

from stages.detokenizer.parsers.json_calls import json_body, tagged
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("<TOOLCALL>",), ("</TOOLCALL>",)

PARSER = text_tool_parser("nemotron_deci", (*STARTS, *ENDS), tagged(STARTS, ENDS, json_body()))
