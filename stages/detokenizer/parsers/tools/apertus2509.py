"""Calls of Apertus: a JSON list of objects with one member each, the tool's name and its arguments. Core."""

from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.json_calls import items, members, tagged
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps
from stages.detokenizer.parsers.text_tools import text_tool_parser

STARTS, ENDS = ("<|tools_prefix|>",), ("<|tools_suffix|>",)


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    if (yield from reader.peek()) != "[":
        raise Malformed
    reader.skip()
    for item in items((yield from reader.json_text())):
        for name, arguments in members(item).items():
            members(arguments)
            calls.call(name, arguments)


PARSER = text_tool_parser("apertus2509", (*STARTS, *ENDS), tagged(STARTS, ENDS, _body))
