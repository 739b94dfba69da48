"""Calls of Qwen3-Coder: a tag for the function and one for each parameter. Core."""

from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.xml_calls import QWEN_MARKERS, qwen_calls

PARSER = text_tool_parser("qwen3_coder", QWEN_MARKERS, qwen_calls())
