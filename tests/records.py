"""A call's record with defaults, every stage of it a known time: 1, 2, 4, 8, 16 and 0.5 s."""

from typing import Any

from stages.messages import RequestRecord
from stages.trace_context import TraceContext

TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "b7ad6b7169203331")
ARRIVED_UNIX_S = 1_700_000_000.0


def record_of(**fields: Any) -> RequestRecord:
    given: dict[str, Any] = {
        "request_id": "r-1",
        "route": "/v1/chat/completions",
        "dialect": "openai_chat",
        "model": "m",
        "is_streamed": True,
        "is_constrained": False,
        "num_choices": 1,
        "arrived_unix_s": ARRIVED_UNIX_S,
        "arrived_s": 100.0,
        "parsed_s": 101.0,
        "prompt_ready_s": 103.0,
        "submitted_s": 103.0,
        "admitted_s": 107.0,
        "first_token_s": 115.0,
        "last_token_s": 131.0,
        "ended_s": 131.5,
        "prompt_tokens": 50,
        "cached_device_tokens": 20,
        "cached_host_tokens": 10,
        "completion_tokens": 7,
        "reasoning_tokens": 3,
        "retractions": 1,
        "outcome": "stop",
        "status": 200,
        "cause": None,
        "trace": TRACE,
        **fields,
    }
    return RequestRecord(**given)


NOWHERE = dict.fromkeys(
    ("parsed_s", "prompt_ready_s", "submitted_s", "admitted_s", "first_token_s", "last_token_s"), None
)
