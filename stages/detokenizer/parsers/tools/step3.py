"""Calls of Step-3: an invocation in its own namespace, in DeepSeek-like tags without their strokes. Core."""

from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import Tags, xml_body

TAGS = Tags(">", "<steptml:parameter name=", ">", "</steptml:parameter>", "</steptml:invoke>")
WRAPPER = Wrapper(("<｜tool_calls_begin｜>",), ("<｜tool_calls_end｜>",), ("<steptml:invoke name=",), (TAGS.end_call,))
INNER = ("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>")

PARSER = text_tool_parser("step3", (*WRAPPER.opens, *WRAPPER.closes, *INNER), wrapped(WRAPPER, xml_body(TAGS)))
