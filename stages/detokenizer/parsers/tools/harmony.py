"""Calls of gpt-oss: messages to a function, whatever channel they are in. Core.

Where no reasoning parser has taken the headers of other messages away, their text alone is kept.
"""

from stages.detokenizer.parsers.calls import Calls, Format, prose
from stages.detokenizer.parsers.harmony import (
    CALL,
    CHANNEL,
    END,
    MARKERS,
    MESSAGE,
    RETURN,
    START,
    header_of,
)
from stages.detokenizer.parsers.json_calls import compact, members
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps, Truncated
from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.xml_calls import checked_name

_EVERY, _MESSAGE, _ENDS = markers(*MARKERS), markers(MESSAGE), markers(CALL, END, RETURN)
_AFTER_BROKEN = markers(CALL, END, RETURN, START, CHANNEL)


def harmony() -> Format:
    """Return the format."""

    def read(reader: Reader, calls: Calls) -> Steps[None]:
        while True:
            tag = yield from prose(reader, calls, _EVERY)
            while tag in (START, CHANNEL):
                tag = yield from _message(reader, calls, tag)

    return read


def _message(reader: Reader, calls: Calls, tag: str) -> Steps[str]:
    """Read a message's header, and its text where it is a call, giving the marker behind a broken one, or ""."""
    text, _ = yield from reader.until(_MESSAGE)
    header = header_of(tag + text)
    if header.tool is None:
        return ""
    reader.mark()
    try:
        name = checked_name(header.tool)
        if (yield from reader.peek()) != "{":
            if not (yield from reader.next_is(*_ENDS.texts)):
                raise Malformed
            calls.call(name, "{}")
            return ""
        reader.skip()
        arguments = yield from reader.json_text()
        members(arguments)
        calls.call(name, compact(arguments))
        yield from reader.close(_ENDS)
    except Malformed:
        return (yield from reader.until(_AFTER_BROKEN))[1]
    except Truncated:
        if not reader.go_back_past(_ENDS):
            raise
    return ""


PARSER = text_tool_parser("harmony", MARKERS, harmony())
