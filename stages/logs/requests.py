"""One line for every generation call that has ended: what it was, how it ended, what it counts, where its time went."""

import logging
from typing import Any

from stages.intervals import intervals
from stages.logs.switches import LogSwitches
from stages.logs.transcript import Transcript
from stages.messages import RequestRecord

log = logging.getLogger("trnrt.requests")


def log_request(switches: LogSwitches, record: RequestRecord, transcript: Transcript | None = None) -> None:
    """Log a call that has ended, where that is wanted; a transcript brings what was said in it."""
    if not switches.requests:
        return
    fields = request_fields(record) | (transcript.fields() if transcript is not None else {})
    extra = {"request_id": record.request_id, "fields": fields, "line_format": switches.line_format}
    log.info("Finish", extra=extra)


def request_fields(record: RequestRecord) -> dict[str, Any]:
    """Return what a line says of a call, by name; stages take seconds, those it did not come to are left out."""
    fields: dict[str, Any] = {
        "route": record.route,
        "model": record.model,
        "stream": record.is_streamed,
        "n": record.num_choices,
        "outcome": record.outcome,
        "status": record.status,
        "cause": record.cause,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_device_tokens + record.cached_host_tokens,
        "completion_tokens": record.completion_tokens,
        "reasoning_tokens": record.reasoning_tokens,
        "retractions": record.retractions,
        "e2e_s": _rounded(record.ended_s - record.arrived_s),
    }
    if record.first_token_s is not None:
        fields["ttft_s"] = _rounded(record.first_token_s - record.arrived_s)
    fields |= {f"{interval.stage}_s": _rounded(interval.took_s) for interval in intervals(record)}
    if record.trace is not None:
        fields["trace_id"] = record.trace.trace_id
    return {name: value for name, value in fields.items() if value is not None}


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
