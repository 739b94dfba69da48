"""Calls of Llama 4 and others: a Python list of calls. Core."""

from stages.detokenizer.parsers.python_calls import python_calls
from stages.detokenizer.parsers.text_tools import text_tool_parser

AROUND = ("<|python_start|>", "<|python_end|>")

PARSER = text_tool_parser("pythonic", AROUND, python_calls(*AROUND))
