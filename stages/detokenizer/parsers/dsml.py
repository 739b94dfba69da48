"""DeepSeek's markup of calls, with a flag on each parameter whether its value is a string or JSON. Core."""

from stages.detokenizer.parsers.calls import Calls, Format
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Reader, Steps
from stages.detokenizer.parsers.typed import Arguments
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import checked_name, unquoted

PREFIX = "｜DSML｜"
INVOKE, END_INVOKE = f"<{PREFIX}invoke name=", f"</{PREFIX}invoke>"
PARAMETER, END_PARAMETER = f"<{PREFIX}parameter name=", f"</{PREFIX}parameter>"
STRING_FLAG = " string="

_AFTER_NAME = markers(">")
_BETWEEN = markers(PARAMETER, END_INVOKE)
_AFTER_VALUE = markers(END_PARAMETER)


def dsml(block: str, *, opens: tuple[str, ...] = ()) -> Format:
    """Return the format whose calls stand in a block of that name; `opens` are further spellings of its beginning."""
    opening = (f"<{PREFIX}{block}>", *opens)
    return wrapped(Wrapper(opening, (f"</{PREFIX}{block}>",), (INVOKE,), (END_INVOKE,)), _body)


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    name, _ = yield from reader.until(_AFTER_NAME)
    arguments = Arguments(calls, checked_name(name))
    while True:
        _, mark = yield from reader.until(_BETWEEN)
        if mark == END_INVOKE:
            break
        head, _ = yield from reader.until(_AFTER_NAME)
        value, _ = yield from reader.until(_AFTER_VALUE)
        key, flag, is_string = head.rpartition(STRING_FLAG)
        if not flag:
            arguments.add(unquoted(head), value)
        elif unquoted(is_string) == "true":
            arguments.add_string(unquoted(key), value)
        else:
            arguments.add_json(unquoted(key), value)
    arguments.end()
