"""Calls of Kimi K2: JSON arguments behind an id that names the tool, and that is kept as it is. Core.

Arguments that are no JSON are passed on as they are: the client knows better what to do with them.
"""

import re

from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.json_calls import compact, is_json
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps, Truncated
from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import checked_name

OPENS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
CLOSES = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
ID = re.compile(r"(?:functions\.)?(.+):\d+")

_AFTER_ID, _END = markers(ARGUMENTS, END), markers(END)


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    head, mark = yield from reader.until(_AFTER_ID)
    if mark == END:
        reader.unread(mark)
        raise Malformed
    call_id = head.strip()
    named = ID.fullmatch(call_id)
    name = checked_name(named[1] if named is not None else call_id.removeprefix("functions."))
    arguments = yield from _arguments(reader)
    text = compact(arguments) if is_json(arguments) else arguments.strip()
    calls.call(name, text or "{}", call_id if named is not None else None)


def _arguments(reader: Reader) -> Steps[str]:
    reader.mark()
    if (yield from reader.peek()) == "{":
        try:
            reader.skip()
            text = yield from reader.json_text()
            yield from reader.close(_END)
            return text
        except Truncated:
            reader.go_back()
    return (yield from reader.until(_END))[0]


PARSER = text_tool_parser(
    "kimi_k2", (*OPENS, *CLOSES, BEGIN, ARGUMENTS, END), wrapped(Wrapper(OPENS, CLOSES, (BEGIN,), (END,)), _body)
)
