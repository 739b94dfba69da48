"""Orders as calls of an engine's admin routes. Core."""

from typing import Any, assert_never

from stages.engine.port import Order
from stages.messages import CloseSession, FlushCache, OpenSession, Pause, Resume

# What SGLang wants to know of a session besides its id, and no engine that grows its cache by need reads.
SESSION_CAPACITY = 1 << 20
# How long a flush that waits may wait.
FLUSH_TIMEOUT_S = 3600


def call_of(order: Order) -> tuple[str, dict[str, Any]]:
    """Return the path and the body that an order is to an engine."""
    match order:
        case FlushCache(waits=waits):
            return (f"/flush_cache?timeout={FLUSH_TIMEOUT_S}" if waits else "/flush_cache"), {}
        case Pause(mode=mode):
            return "/pause_generation", {"mode": mode}
        case Resume():
            return "/continue_generation", {}
        case OpenSession(session_id=session_id, timeout_s=timeout_s):
            fields = {"capacity_of_str_len": SESSION_CAPACITY, "session_id": session_id, "timeout": timeout_s}
            return "/open_session", {name: value for name, value in fields.items() if value is not None}
        case CloseSession(session_id=session_id):
            return "/close_session", {"session_id": session_id}
        case _:
            assert_never(order)
