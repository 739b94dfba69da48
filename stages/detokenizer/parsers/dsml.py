"""DeepSeek's markup of calls, with a flag on each parameter whether its value is a string or JSON. Core."""

from stages.detokenizer.parsers.calls import Calls, Format
from stages.detokenizer.parsers.json_calls import Body
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Reader, Steps
from stages.detokenizer.parsers.typed import Arguments
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import checked_name, unquoted

PREFIX = "｜DSML｜"
STRING_FLAG = " string="

_AFTER_NAME = markers(">")


def dsml(block: str, *, prefix: str = PREFIX, opens: tuple[str, ...] = ()) -> Format:
    """Return the format whose calls stand in a block of that name; `opens` are further spellings of its beginning."""
    opening, invoke, end_invoke = (f"<{prefix}{block}>", *opens), f"<{prefix}invoke name=", f"</{prefix}invoke>"
    return wrapped(Wrapper(opening, (f"</{prefix}{block}>",), (invoke,), (end_invoke,)), _body(prefix, end_invoke))


def _body(prefix: str, end_invoke: str) -> Body:
    between, after_value = markers(f"<{prefix}parameter name=", end_invoke), markers(f"</{prefix}parameter>")

    def read(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
        name, _ = yield from reader.until(_AFTER_NAME)
        arguments = Arguments(calls, checked_name(name))
        while (yield from reader.until(between))[1] != end_invoke:
            head, _ = yield from reader.until(_AFTER_NAME)
            value, _ = yield from reader.until(after_value)
            _add(arguments, head, value)
        arguments.end()

    return read


def _add(arguments: Arguments, head: str, value: str) -> None:
    """Add an argument as its flag says, or as its schema does where it has none."""
    key, flag, is_string = head.rpartition(STRING_FLAG)
    if not flag:
        arguments.add(unquoted(head), value)
    elif unquoted(is_string) == "true":
        arguments.add_string(unquoted(key), value)
    else:
        arguments.add_json(unquoted(key), value)
