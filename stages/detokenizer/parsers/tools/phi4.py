"""Calls of Phi-4: a JSON list behind the word `functools`. Core."""

from stages.detokenizer.parsers.json_calls import json_body, tagged
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("functools[",), ()

PARSER = text_tool_parser("phi4", (*STARTS, *ENDS), tagged(STARTS, ENDS, json_body()))
