"""Calls of Nemotron 3 Nano, which are those of Qwen3-Coder. Core."""

from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.xml_calls import QWEN_MARKERS, qwen_calls

PARSER = text_tool_parser("nemotron_nano", QWEN_MARKERS, qwen_calls())
