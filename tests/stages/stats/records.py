"""Records of calls with chosen numbers."""

from typing import Any

from attrs import evolve

from stages.messages import RequestRecord

RECORD = RequestRecord(
    request_id="r",
    route="/v1/chat/completions",
    dialect="openai_chat",
    model="m",
    is_streamed=False,
    is_constrained=False,
    num_choices=1,
    arrived_unix_s=1_700_000_000.0,
    arrived_s=100.0,
    parsed_s=100.5,
    prompt_ready_s=101.0,
    submitted_s=101.25,
    admitted_s=103.0,
    first_token_s=104.0,
    last_token_s=109.0,
    ended_s=110.0,
    prompt_tokens=40,
    cached_device_tokens=10,
    cached_host_tokens=5,
    completion_tokens=11,
    reasoning_tokens=4,
    retractions=0,
    outcome="stop",
    status=200,
    cause=None,
)


def record(**changes: Any) -> RequestRecord:
    return evolve(RECORD, **changes)


def refused(cause: str = "queue_full", status: int = 503, **changes: Any) -> RequestRecord:
    nowhere = dict.fromkeys(("admitted_s", "first_token_s", "last_token_s"))
    return record(outcome="refused", status=status, cause=cause, completion_tokens=0, **nowhere, **changes)
