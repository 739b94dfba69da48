"""The lines of a production log, each one JSON object: from what happened to text, and back. Core.

Every line has its `kind`, and but for the first of a file `n`, which rises by one from line to line of a run, so that
lines which are gone leave a gap. What is None is left out. Instants of a request are seconds since it arrived.

Read is whatever can be: fields that are unknown are passed over, as are kinds; one of the wrong type is what it would
be if it were absent, and counted. So newer versions may add, and SCHEMA rises only when a known field changes its
meaning.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, get_type_hints

import attrs
import orjson
from attrs import frozen

from stages.messages import Load, RequestRecord

SCHEMA = 1
# A line is never longer: names are at most 64 characters.
MAX_LINE_BYTES = 2048
# What orjson and an array of 64 bits both hold exactly; seconds up to the year 9999.
_MAX_COUNT, _MAX_SECONDS = 2**53, 253_402_300_799.0
# What a name may be made of. Anything else may be a client's words.
_NAME = re.compile(r"[A-Za-z0-9_./:{}-]{1,64}")
_DIGITS = 6
# Of a name in a file, which other versions may have written.
_MAX_NAME = 256


@frozen(kw_only=True)
class Header:
    """The first line of a file: who writes it. `model` is the served name, `file` counts a run's files from 1."""

    kind: ClassVar = "header"
    schema: int = 0
    at_s: float = 0.0
    run: str = ""
    file: int = 0
    role: str = ""
    model: str | None = None
    version: str | None = None
    pid: int | None = None


@frozen(kw_only=True)
class RequestLine:
    """One call, written when it ended; at_s is the arrival in Unix seconds, id the keyed hash of the request's id."""

    kind: ClassVar = "request"
    at_s: float = 0.0
    id: str | None = None
    route: str = ""
    dialect: str = ""
    is_streamed: bool = False
    is_constrained: bool = False
    num_choices: int = 1
    # Absent where the client left before there was one.
    status: int | None = None
    outcome: str = ""
    cause: str | None = None
    parsed_s: float | None = None
    prompt_ready_s: float | None = None
    submitted_s: float | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float = 0.0
    prompt_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    retractions: int = 0


@frozen(kw_only=True)
class GaugesLine:
    """Where the engine stood at at_s; the fields of Load."""

    kind: ClassVar = "gauges"
    at_s: float = 0.0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    used_pages: int = 0
    total_pages: int = 0
    used_slots: int = 0
    total_slots: int = 0
    page_size_tokens: int = 0
    retracted: int = 0
    evictable_pages: int = 0
    used_snapshots: int = 0
    total_snapshots: int = 0
    used_host_pages: int = 0
    total_host_pages: int = 0
    used_host_snapshots: int = 0
    total_host_snapshots: int = 0
    is_paused: bool = False
    evictable_snapshots: int = 0
    routing_keys: int = 0


@frozen(kw_only=True)
class LostLine:
    """How much is not in the log since the last time losses were told.

    "queue": lines, as the disk failed for too long or was too slow; "stats": records of any kind that the stats stage
    had no room for.
    """

    kind: ClassVar = "lost"
    at_s: float = 0.0
    count: int = 0
    reason: str = "queue"


@frozen(kw_only=True)
class EndLine:
    """The last line of a file that was closed; a file without one was cut short, or is being written."""

    kind: ClassVar = "end"
    at_s: float = 0.0
    # Whether the run ended here too, and did not go on in another file.
    is_last: bool = False


@frozen
class Unknown:
    """A line of a kind that this version does not know."""

    kind: str


Line = Header | RequestLine | GaugesLine | LostLine | EndLine | Unknown
Written = RequestLine | GaugesLine | LostLine | EndLine


def request_line(record: RequestRecord, hashed: Callable[[str], str]) -> RequestLine:
    """Return the line of a record; a name that may be somebody's words becomes `?`."""

    def since(instant_s: float | None) -> float | None:
        return None if instant_s is None else round(instant_s - record.arrived_s, _DIGITS)

    return RequestLine(
        at_s=round(record.arrived_unix_s, _DIGITS),
        id=hashed(record.request_id),
        route=_name(record.route),
        dialect=_name(record.dialect),
        is_streamed=record.is_streamed,
        is_constrained=record.is_constrained,
        num_choices=record.num_choices,
        status=record.status,
        outcome=_name(record.outcome),
        cause=None if record.cause is None else _name(record.cause),
        parsed_s=since(record.parsed_s),
        prompt_ready_s=since(record.prompt_ready_s),
        submitted_s=since(record.submitted_s),
        admitted_s=since(record.admitted_s),
        first_token_s=since(record.first_token_s),
        last_token_s=since(record.last_token_s),
        ended_s=since(record.ended_s) or 0.0,
        prompt_tokens=record.prompt_tokens,
        cached_device_tokens=record.cached_device_tokens,
        cached_host_tokens=record.cached_host_tokens,
        completion_tokens=record.completion_tokens,
        reasoning_tokens=record.reasoning_tokens,
        retractions=record.retractions,
    )


def gauges_line(load: Load, at_s: float) -> GaugesLine:
    """Return the line of a load seen at at_s, Unix seconds."""
    return GaugesLine(at_s=round(at_s, _DIGITS), **{name: getattr(load, name) for name in _LOAD_FIELDS})


def encode(line: Header | Written, n: int | None = None) -> bytes:
    """Return the line's text with its number and the newline."""
    table: dict[str, Any] = {"kind": line.kind} if n is None else {"kind": line.kind, "n": n}
    for name in _FIELDS[type(line)]:
        value = getattr(line, name)
        if value is not None:
            table[name] = value
    return orjson.dumps(table, option=orjson.OPT_APPEND_NEWLINE)


def decode(raw: bytes) -> tuple[Line, int | None, int]:
    """Return the line, its number and how many known fields have impossible values; raises ValueError for no object."""
    table = orjson.loads(raw)
    if not isinstance(table, dict):
        raise ValueError("not an object")  # noqa: TRY004  # as what is no JSON
    number = table.get("n")
    n = number if _is_count(number) else None
    kind = table.get("kind")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        return Unknown(str(kind)), n, 0
    values: dict[str, Any] = {}
    num_wrong = 0
    for name, is_valid in _FIELDS[cls].items():
        value = table.get(name)
        if value is None:
            continue
        if is_valid(value):
            values[name] = value
        else:
            num_wrong += 1
    return cls(**values), n, num_wrong


@lru_cache(maxsize=1024)
def _name(text: str) -> str:
    return text if _NAME.fullmatch(text) else "?"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and -_MAX_SECONDS <= value <= _MAX_SECONDS


def _is_name(value: Any) -> bool:
    # Whoever prints it gets no control characters of a file that somebody else wrote.
    return type(value) is str and len(value) <= _MAX_NAME and value.isprintable()


def _is_flag(value: Any) -> bool:
    return type(value) is bool


_VALID: Mapping[Any, Callable[[Any], bool]] = {
    int: _is_count,
    float: _is_seconds,
    str: _is_name,
    bool: _is_flag,
    int | None: _is_count,
    float | None: _is_seconds,
    str | None: _is_name,
}
_CLASSES: tuple[type[Header | Written], ...] = (Header, RequestLine, GaugesLine, LostLine, EndLine)
_KINDS = {cls.kind: cls for cls in _CLASSES}
_FIELDS: Mapping[type, Mapping[str, Callable[[Any], bool]]] = {
    cls: {field.name: _VALID[get_type_hints(cls)[field.name]] for field in attrs.fields(cls)} for cls in _CLASSES
}
_LOAD_FIELDS = [name for name in _FIELDS[GaugesLine] if name != "at_s"]
