"""Calls of GLM-4.7 to 5.3, read as text. Core."""

from stages.detokenizer.parsers.glm_calls import MARKERS, glm
from stages.detokenizer.parsers.text_tools import text_tool_parser

PARSER = text_tool_parser("glm47", MARKERS, glm())
