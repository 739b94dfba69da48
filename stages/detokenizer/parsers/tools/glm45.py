"""Calls of GLM-4.5 and 4.6, newlines between their tags, read as text. Core."""

from stages.detokenizer.parsers.glm_calls import MARKERS, glm
from stages.detokenizer.parsers.text_tools import text_tool_parser

PARSER = text_tool_parser("glm45", MARKERS, glm())
