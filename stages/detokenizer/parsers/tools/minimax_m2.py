"""Calls of MiniMax M2: an invocation with a tag for each parameter. Core."""

from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import Tags, decoded, xml_body

TAGS = Tags(">", "<parameter name=", ">", "</parameter>", "</invoke>", decoded)
WRAPPER = Wrapper(("<minimax:tool_call>",), ("</minimax:tool_call>",), ("<invoke name=",), (TAGS.end_call,))

PARSER = text_tool_parser("minimax_m2", (*WRAPPER.opens, *WRAPPER.closes), wrapped(WRAPPER, xml_body(TAGS)))
