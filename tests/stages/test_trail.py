"""A trail's record: what several choices and asks of one call add up to, and which word says how it went."""

import pytest

from stages.errors import (
    Aborted,
    DeadlineExceeded,
    Draining,
    EngineFailure,
    InvalidRequest,
    PriorityRefused,
    QueueFull,
    RemoteFailure,
    Unavailable,
)
from stages.messages import Ended, Finish, Usage
from stages.trail import Trail, cause_of


def test_the_first_place_counts_and_of_each_prompt_what_its_first_choice_found_cached() -> None:
    trail = Trail(num_choices=4)
    for choice, cached, now_s in ((0, 8, 1.0), (1, 40, 2.0), (0, 6, 3.0), (1, 40, 4.0)):
        trail.admitted(choice, Usage(40, 0, cached, cached_host_tokens=2), now_s)
    record = trail.record(9.0, is_complete=True)
    assert (record.admitted_s, record.cached_device_tokens, record.cached_host_tokens) == (1.0, 6 + 4, 4)


def test_an_engine_of_another_says_what_was_cached_at_the_end() -> None:
    trail = Trail(num_choices=2)
    for choice in (0, 1):
        trail.ended(Ended(choice, Finish("stop"), Usage(40, 5, 30, reasoning_tokens=2, num_retractions=1)))
    record = trail.record(9.0, is_complete=True)
    assert (record.cached_device_tokens, record.completion_tokens) == (30, 10)
    assert (record.reasoning_tokens, record.retractions) == (4, 2)


@pytest.mark.parametrize(
    ("kinds", "outcome"),
    [
        (["stop", "stop"], "stop"),
        (["stop", "length"], "length"),
        (["length", "abort"], "abort"),
        (["abort", "error"], "error"),
        (["content_filter"], "stop"),
    ],
)
def test_a_call_is_told_by_the_worst_of_its_choices(kinds: list[str], outcome: str) -> None:
    trail = Trail(num_choices=len(kinds), first_token_s=1.0)
    for choice, kind in enumerate(kinds):
        trail.ended(Ended(choice, Finish(kind), Usage(1, 1)))  # type: ignore[arg-type]
    assert trail.record(9.0, is_complete=True).outcome == outcome


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (QueueFull(), "queue_full"),
        (Draining(), "draining"),
        (DeadlineExceeded(), "timeout"),
        (PriorityRefused(), "priority_refused"),
        (Unavailable("x"), "unavailable"),
        (InvalidRequest("x"), "invalid"),
        (Aborted(), "aborted"),
        (RemoteFailure("x", 429), "engine_refused"),
        (EngineFailure("x"), "engine_failed"),
        (ValueError("x"), "internal"),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_every_failure_has_a_word(error: Exception, cause: str) -> None:
    assert cause_of(error) == cause


def test_what_the_scheduler_said_stays_where_the_answer_only_says_come_again() -> None:
    trail = Trail()
    trail.ended(Ended(0, Finish("abort", status=503, cause="queue_timeout"), Usage(1, 0)))
    trail.failed(Unavailable("Request waiting timeout reached."))
    assert trail.record(9.0, is_complete=True).cause == "queue_timeout"


def test_what_an_engine_of_another_refused_is_refused_and_what_it_dropped_midway_an_error() -> None:
    early, late = Trail(), Trail(first_token_s=1.0)
    for trail in (early, late):
        trail.failed(RemoteFailure("x", 500))
    assert early.record(9.0, is_complete=True).outcome == "refused"
    assert late.record(9.0, is_complete=True).outcome == "error"
