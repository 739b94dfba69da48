"""Where a call stands in a distributed trace: W3C's traceparent and tracestate in, ours out. Core.

Who calls decides whether a trace is recorded; a trace that begins here is by its id, so that every server with the same
share agrees. A trace that is not recorded passes through as it came: nobody is told of a parent that does not exist.
"""

import re
import secrets
from collections.abc import Sequence

from attrs import evolve, frozen

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NOTHING = re.compile(r"0+")
_SAMPLED = 1
# Anything longer is not worth its bytes on every call; the recommendation asks for 512 at least.
MAX_STATE_CHARACTERS = 512
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_ID_SPACE = 1 << 64


@frozen
class TraceContext:
    """A call's place in its trace, ids in lower hex: span_id is ours, parent_id the caller's or None."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    is_sampled: bool = True
    # W3C's tracestate as it came, "" for none.
    state: str = ""

    @property
    def traceparent(self) -> str:
        """Return the header for what is called next."""
        return f"00-{self.trace_id}-{self.span_id}-{self.is_sampled:02x}"

    def headers(self) -> dict[str, str]:
        """Return the headers for what is called next."""
        return {"traceparent": self.traceparent, **({"tracestate": self.state} if self.state else {})}


def trace_of(traceparents: Sequence[str], tracestates: Sequence[str], ratio: float | None) -> TraceContext | None:
    """Return the context of a call with these headers, None for no trace; ratio is None where nothing is recorded.

    Headers that make no sense count as none.
    """
    given = _read(traceparents, tracestates)
    if ratio is None:
        return given
    if given is None:
        trace_id = secrets.token_hex(16)
        return TraceContext(trace_id, secrets.token_hex(8), is_sampled=is_in_share(trace_id, ratio))
    if not given.is_sampled:
        return given
    return evolve(given, span_id=secrets.token_hex(8), parent_id=given.span_id)


def is_in_share(trace_id: str, ratio: float) -> bool:
    """Say whether a trace is one of the share that is recorded: by its id's low half, as OpenTelemetry does."""
    return int(trace_id[16:], 16) < round(ratio * _ID_SPACE)


def _read(traceparents: Sequence[str], tracestates: Sequence[str]) -> TraceContext | None:
    found = _TRACEPARENT.fullmatch(traceparents[0].strip()) if len(traceparents) == 1 else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or _NOTHING.fullmatch(trace_id) or _NOTHING.fullmatch(span_id):
        return None
    return TraceContext(
        trace_id, span_id, is_sampled=bool(int(flags, 16) & _SAMPLED), state=_state(",".join(tracestates))
    )


def _state(given: str) -> str:
    members = [member.strip(" \t") for member in given.split(",")] if len(given) <= MAX_STATE_CHARACTERS else []
    members = [member for member in members if member]
    return ",".join(members) if all(map(_MEMBER.fullmatch, members)) else ""
