"""Which call a task works for: its id and its place in a trace, known to log lines and to what the task calls.

Ingress sets it for the task of a call; tasks started by that one inherit it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from attrs import frozen

from stages.trace_context import TraceContext


@frozen
class CallContext:
    """A call's id, as its answer's x-request-id has it, and its trace."""

    request_id: str
    trace: TraceContext | None = None


_CURRENT: ContextVar[CallContext | None] = ContextVar("trnrt_call", default=None)


def current_call() -> CallContext | None:
    """Return the call this task works for, None for none."""
    return _CURRENT.get()


@contextmanager
def working_for(call: CallContext | None) -> Iterator[None]:
    """Let this task, and those it starts meanwhile, work for `call` within the block."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)
