"""Calls of Mistral models, in all three forms that their tokenizers' versions brought. Core.

[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]      up to v7, also bare
[TOOL_CALLS]name{...}                                     v11, one tag a call
[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}                    v13, the id left out mostly
"""

from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.json_calls import json_body, members, tagged
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps
from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.xml_calls import checked_name

CALLS, END_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[/TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_AFTER_NAME = markers("{", CALL_ID, ARGS, CALLS, END_CALLS)
_AFTER_ID = markers(ARGS, CALLS, END_CALLS)
_LIST = json_body()


def _body(reader: Reader, calls: Calls, tag: str) -> Steps[None]:
    if (yield from reader.peek()) in ("[", "{"):
        yield from _LIST(reader, calls, tag)
        return
    name, mark = yield from reader.until(_AFTER_NAME)
    if mark == CALL_ID:
        _, mark = yield from reader.until(_AFTER_ID)
    if mark in (CALLS, END_CALLS):
        reader.unread(mark)
        raise Malformed
    if mark == "{":
        reader.unread(mark)
    elif (yield from reader.peek()) != "{":
        raise Malformed
    reader.skip()
    arguments = yield from reader.json_text()
    members(arguments)
    calls.call(checked_name(name), arguments)


PARSER = text_tool_parser(
    "mistral", (CALLS, END_CALLS, CALL_ID, ARGS), tagged((CALLS,), (END_CALLS,), _body, is_bare=True)
)
