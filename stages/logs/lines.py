"""One log line from what was said: text for people, JSON for machines. Core.

Whatever a client wrote may stand in a message or an id, so nothing of it can end a line, begin another, or move a
terminal's cursor: control characters, line separators and marks that reorder text are spelled out. A traceback keeps
its lines, each behind a bar that no line of ours begins with.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from traceback import TracebackException
from typing import Any, Literal

from attrs import field, frozen

LineFormat = Literal["text", "json"]

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_NEEDS_QUOTES = re.compile(f'[\\s"=]|{_UNPRINTABLE.pattern}')
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
TRACEBACK_BAR = "  | "
# Loggers of ours: their lines say what they are about, others' are told by name.
_OURS = ("trnrt", "stages", "graphs")
# What an entry weighs besides its texts, and a traceback.
ENTRY_BYTES = 512
TRACEBACK_BYTES = 8192
# A piece of a long text takes some 0.2 ms.
PIECE_CHARACTERS = 1 << 14


@frozen(eq=False)
class Deferred:
    """A value that is made as its line is, on the writer's thread; num_bytes is about what it keeps in memory."""

    num_bytes: int
    make: Callable[[], object]


@frozen
class Entry:
    """What was said: when (Unix time), how severe, by which logger, for which call; format None is everybody's."""

    created_s: float
    level: str
    logger: str
    message: str
    request_id: str | None = None
    # Its source lines are read as the line is made.
    traceback: TracebackException | None = None
    # Named values: of a line in JSON members beside the message, in text they follow it.
    fields: Mapping[str, Any] = field(factory=dict)
    format: LineFormat | None = None

    @property
    def num_bytes(self) -> int:
        """Return about what it takes in memory; texts among the fields count, other values are small."""
        texts = sum(map(_weight, self.fields.values()))
        return ENTRY_BYTES + len(self.message) + texts + (TRACEBACK_BYTES if self.traceback is not None else 0)


def _weight(value: object) -> int:
    return len(value) if isinstance(value, str) else value.num_bytes if isinstance(value, Deferred) else 0


def printable(text: str) -> str:
    """Return `text` with everything spelled out that could be taken for more than a part of one line."""
    return _UNPRINTABLE.sub(_spelled, text)


def line_of(entry: Entry, line_format: LineFormat) -> bytes:
    """Return the whole line of an entry, its end included."""
    text = _json_line(entry) if (entry.format or line_format) == "json" else _text_line(entry)
    return text.encode() + b"\n"


def _text_line(entry: Entry) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created_s))
    parts = [f"{stamp},{_milliseconds(entry.created_s):03d}", entry.level.upper()]
    if entry.request_id is not None:
        parts.append(f"[{printable(entry.request_id)}]")
    if entry.logger.partition(".")[0] not in _OURS:
        parts.append(f"{printable(entry.logger)}:")
    parts.append(printable(entry.message))
    parts += [f"{name}={_text_value(value)}" for name, value in entry.fields.items() if value is not None]
    lines = [" ".join(parts), *(TRACEBACK_BAR + printable(line) for line in _traceback(entry).split("\n") if line)]
    return "\n".join(lines)


def _text_value(value: Any) -> str:
    if isinstance(value, str) and value and not _NEEDS_QUOTES.search(value):
        return value
    return f"{value:.6g}" if isinstance(value, float) else _json(value)


def _json_line(entry: Entry) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(entry.created_s))
    value: dict[str, Any] = {
        "time": f"{stamp}.{_milliseconds(entry.created_s):03d}Z",
        "level": entry.level.lower(),
        "logger": entry.logger,
        "message": entry.message,
    }
    if entry.request_id is not None:
        value["request_id"] = entry.request_id
    value |= {name: field_value for name, field_value in entry.fields.items() if name not in value}
    if entry.traceback is not None:
        value["traceback"] = _traceback(entry)
    if entry.num_bytes > ENTRY_BYTES + TRACEBACK_BYTES + PIECE_CHARACTERS:
        return _json(value)
    # Inside a string only: JSON has none of them elsewhere.
    return _UNPRINTABLE.sub(_escaped, json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain))


def _json(value: Any) -> str:
    """Return a value as JSON, everything spelled out that could be taken for more than a part of one line.

    A long text is written in pieces: the library's calls hold up whoever serves meanwhile.
    """
    if isinstance(value, str):
        starts = range(0, len(value), PIECE_CHARACTERS)
        return f'"{"".join(_inside(value[start : start + PIECE_CHARACTERS]) for start in starts)}"'
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_json(str(name))}:{_json(member)}' for name, member in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_json, value))}]"
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    return _json(_plain(value))


def _inside(text: str) -> str:
    return _UNPRINTABLE.sub(_escaped, json.dumps(text, ensure_ascii=False)[1:-1])


def _plain(value: object) -> object:
    return value.make() if isinstance(value, Deferred) else str(value)


def _traceback(entry: Entry) -> str:
    return "".join(entry.traceback.format()) if entry.traceback is not None else ""


def _milliseconds(created_s: float) -> int:
    return int(created_s % 1 * 1000)


def _spelled(found: "re.Match[str]") -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _escaped(found: "re.Match[str]") -> str:
    return f"\\u{ord(found[0]):04x}"
