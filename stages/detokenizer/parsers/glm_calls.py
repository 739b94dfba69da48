"""GLM's calls: the name, then pairs of key and value, newlines between them or none. Core.

What models get wrong is mended where the meaning is clear: a missing `<arg_value>`, a literal backslash-n for a
newline. A call that was not closed is none: its last value may be half.
"""

from stages.detokenizer.parsers.calls import Calls, Format
from stages.detokenizer.parsers.json_calls import tagged
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import SPACE, Reader, Steps
from stages.detokenizer.parsers.typed import Arguments
from stages.detokenizer.parsers.xml_calls import checked_name

CALL, END_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"

MARKERS = (CALL, END_CALL, KEY, END_KEY, VALUE, END_VALUE)

_AFTER_NAME = markers(KEY, END_CALL)
_AFTER_KEY = markers(END_KEY, VALUE, END_CALL)
_AFTER_VALUE = markers(END_VALUE)


def glm() -> Format:
    """Return the format."""
    return tagged((CALL,), (END_CALL,), _body)


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    name, mark = yield from reader.until(_AFTER_NAME)
    arguments = Arguments(calls, checked_name(name.replace("\\n", "\n")))
    while mark == KEY:
        key, mark = yield from reader.until(_AFTER_KEY)
        if mark == END_KEY:
            mark = yield from reader.next_is(VALUE, END_CALL, KEY, space=SPACE + "\\n")
        if mark in ("", VALUE):
            value, _ = yield from reader.until(_AFTER_VALUE)
            arguments.add(key.strip(), value if mark else value.lstrip())
            _, mark = yield from reader.until(_AFTER_NAME)
    arguments.end()
