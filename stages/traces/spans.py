"""The spans of one call, made of its record when it has ended: nothing is done for a trace while tokens come. Core.

One span for the call, with OpenTelemetry's names for HTTP servers and generative AI; under it one for each stage it
came to (`stages/intervals.py`), end to end. What has no settled name begins with `trnrt.`.
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Literal

from attrs import field, frozen

from stages.intervals import Interval, intervals
from stages.messages import RequestRecord

Value = str | int | float | bool | tuple[str, ...]

PROVIDER = "trnrt"
# What an API asks for, by its dialect; the others ask for text to go on.
_CHATS = ("openai_chat", "openai_responses", "anthropic_messages", "ollama_chat")
_FINISHED = ("stop", "length", "tool_calls")
_SERVER_FAULT = 500


@frozen
class Span:
    """One span, ids in hex, instants in nanoseconds of Unix time; `failure` is why it failed, None for well."""

    name: str
    kind: Literal["server", "client", "internal"]
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(factory=dict)
    failure: str | None = None


def _fresh_id() -> str:
    return secrets.token_hex(8)


def spans_of(record: RequestRecord, fresh_id: Callable[[], str] = _fresh_id) -> tuple[Span, ...]:
    """Return the span of a call and those of its stages, in order; the record must have a trace."""
    trace = record.trace
    assert trace is not None, "a record without a trace has no spans"

    def unix_ns(at_s: float) -> int:
        return round((record.arrived_unix_s + (at_s - record.arrived_s)) * 1e9)

    operation = "chat" if record.dialect in _CHATS else "text_completion"
    whole = Span(
        name=f"{operation} {record.model}",
        kind="server",
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        start_ns=unix_ns(record.arrived_s),
        end_ns=unix_ns(record.ended_s),
        attributes=_attributes(record, operation),
        failure=_failure(record),
    )
    parts = [
        Span(
            name=interval.stage,
            kind="client" if interval.stage == "engine" else "internal",
            span_id=fresh_id(),
            parent_id=trace.span_id,
            start_ns=unix_ns(interval.start_s),
            end_ns=unix_ns(interval.end_s),
            attributes=_stage_attributes(record, interval),
        )
        for interval in intervals(record)
    ]
    return (whole, *parts)


def _attributes(record: RequestRecord, operation: str) -> dict[str, Value]:
    attributes: dict[str, Value | None] = {
        "http.route": record.route,
        "http.response.status_code": record.status,
        "http.response.header.x-request-id": (record.request_id,),
        "error.type": record.cause,
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.is_streamed,
        "gen_ai.request.choice.count": record.num_choices,
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": (record.outcome,) if record.outcome in _FINISHED else None,
        "gen_ai.response.time_to_first_chunk": _since_arrival_s(record, record.first_token_s),
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_device_tokens + record.cached_host_tokens,
        "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens,
        "trnrt.request_id": record.request_id,
        "trnrt.dialect": record.dialect,
        "trnrt.outcome": record.outcome,
        "trnrt.cached_host_tokens": record.cached_host_tokens,
        "trnrt.retractions": record.retractions,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _stage_attributes(record: RequestRecord, interval: Interval) -> dict[str, Value]:
    match interval.stage:
        case "prompt":
            return {"gen_ai.usage.input_tokens": record.prompt_tokens}
        case "prefill":
            cached = record.cached_device_tokens + record.cached_host_tokens
            return {"trnrt.computed_tokens": record.prompt_tokens - cached}
        case "decode":
            return {"gen_ai.usage.output_tokens": record.completion_tokens}
        case _:
            return {}


def _failure(record: RequestRecord) -> str | None:
    """Return why a call failed by the server's fault; what a client asked wrongly, or left, is no failure of ours."""
    is_ours = record.outcome == "error" or (record.status is not None and record.status >= _SERVER_FAULT)
    return (record.cause or record.outcome) if is_ours else None


def _since_arrival_s(record: RequestRecord, at_s: float | None) -> float | None:
    return None if at_s is None else at_s - record.arrived_s
