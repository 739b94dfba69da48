"""Calls of LFM2: a Python list of calls between tags. Core."""

from stages.detokenizer.parsers.python_calls import python_calls
from stages.detokenizer.parsers.text_tools import text_tool_parser

AROUND = ("<|tool_call_start|>", "<|tool_call_end|>")

PARSER = text_tool_parser("lfm2", AROUND, python_calls(*AROUND))
