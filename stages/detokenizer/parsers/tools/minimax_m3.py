"""Calls of MiniMax M3: every tag behind a prefix, each parameter a tag of its own name. Core."""

from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Reader, Steps
from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.typed import Arguments
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import checked_name

PREFIX = "]<]minimax[>["
INVOKE, END_INVOKE = f"{PREFIX}<invoke name=", f"{PREFIX}</invoke>"
WRAPPER = Wrapper((f"{PREFIX}<tool_call>",), (f"{PREFIX}</tool_call>",), (INVOKE,), (END_INVOKE,))

_TAG, _END_TAG = markers(f"{PREFIX}<"), markers(">")


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    name, _ = yield from reader.until(_END_TAG)
    arguments = Arguments(calls, checked_name(name))
    while True:
        yield from reader.until(_TAG)
        key, _ = yield from reader.until(_END_TAG)
        if key == "/invoke":
            break
        value, _ = yield from reader.until(markers(f"{PREFIX}</{key}>"))
        arguments.add(key.strip(), value)
    arguments.end()


PARSER = text_tool_parser("minimax_m3", (PREFIX,), wrapped(WRAPPER, _body))
