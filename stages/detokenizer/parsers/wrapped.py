"""Tool calls that stand in a wrapper around all of them. Core.

    wrapper  ( begin call )*  end of wrapper

In a wrapper only calls count, other text there is dropped; a call that begins outside of one is read all the same.
"""

from attrs import frozen

from stages.detokenizer.parsers.calls import Calls, Format, prose
from stages.detokenizer.parsers.json_calls import Body
from stages.detokenizer.parsers.markers import Markers, markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps, Truncated


@frozen
class Wrapper:
    """The tags around all calls, and those each call begins and ends with."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    begins: tuple[str, ...]
    ends: tuple[str, ...]


def wrapped(tags: Wrapper, body: Body) -> Format:
    """Return the format of calls whose body follows their beginning and reads their end."""
    every, closing = markers(*tags.opens, *tags.closes, *tags.begins), markers(*tags.ends, *tags.closes)

    def read(reader: Reader, calls: Calls) -> Steps[None]:
        while True:
            tag = yield from prose(reader, calls, every)
            if tag in tags.begins:
                yield from _call(reader, calls, body, tag, closing)
            elif tag in tags.opens:
                yield from inside(reader, calls)

    def inside(reader: Reader, calls: Calls) -> Steps[None]:
        while True:
            reader.mark()
            _, tag = yield from reader.until(every)
            if tag in tags.closes:
                return
            if tag in tags.begins:
                yield from _call(reader, calls, body, tag, closing)

    return read


def _call(reader: Reader, calls: Calls, body: Body, tag: str, closing: Markers) -> Steps[None]:
    reader.mark()
    try:
        yield from body(reader, calls, tag)
    except Malformed:
        yield from reader.until(closing)
    except Truncated:
        if not reader.go_back_past(closing):
            raise
