"""The book: failures and rates as they come, and a size that neither time nor traffic makes grow."""

import random
import tracemalloc

import pytest

from stages.messages import Record, TokenGaps
from stages.stats.book import MAX_CLIENT_FAILURES, MAX_SERVER_FAILURES, Book, Recent
from tests.stages.stats.records import record, refused

HOUR_S = 3600


def live_through(book: Book, began_s: int, until_s: int, draw: random.Random) -> None:
    for now_s in range(began_s, until_s, 300):
        book.delivered(TokenGaps(64, ((draw.lognormvariate(-4, 1), 60), (draw.lognormvariate(-2, 1), 4))), now_s)
        book.ended(record(request_id=f"call-{now_s}", ended_s=100.0 + draw.lognormvariate(1, 1)), now_s)
        book.ended(refused(request_id=f"refused-{now_s}"), now_s)
        book.record(Record("prompt_tokens", 10), now_s)
        if now_s % 900 == 0:
            book.spans.windows(book.unix_s(now_s))
            book.spans.days(book.unix_s(now_s))
            for stage in ("a", "b"):
                book.busy(stage, now_s / 2, now_s)


def test_its_size_does_not_grow_with_time() -> None:
    book, draw = Book(0.0, 1_700_000_000.0), random.Random(1)
    live_through(book, 0, 6 * HOUR_S, draw)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        live_through(book, 6 * HOUR_S, 36 * HOUR_S, draw)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # What replaced the sub-windows of before is new to the tracer: a few dozen sketches, and two more days.
    assert grown < 1_500_000
    assert book.spans.windows(book.unix_s(36 * HOUR_S)).since_start.calls == 2 * 36 * HOUR_S // 300


def test_failures_are_the_newest_of_each_kind() -> None:
    book = Book(0.0, 1_700_000_000.0)
    for number in range(200):
        book.ended(refused(request_id=f"full-{number}"), float(number))
        book.ended(refused("invalid", 400, request_id=f"wrong-{number}"), float(number))
    told = book.failures()
    assert len([one for one in told if one.status == 503]) == MAX_SERVER_FAILURES
    assert len([one for one in told if one.status == 400]) == MAX_CLIENT_FAILURES
    assert (told[0].unix_s, told[0].request_id) == (1_700_000_199.0, "full-199")
    assert [one.unix_s for one in told] == sorted((one.unix_s for one in told), reverse=True)


def test_what_went_well_is_no_failure_and_what_broke_in_a_stream_is() -> None:
    book = Book(0.0, 1_700_000_000.0)
    book.ended(record(), 1.0)
    book.ended(record(outcome="disconnected", status=None), 1.0)
    book.ended(record(outcome="error", status=200, cause="engine_failed"), 2.0)
    (broken,) = book.failures()
    assert (broken.status, broken.outcome, broken.cause) == (200, "error", "engine_failed")


def test_a_rate_is_over_ten_seconds_and_forgets() -> None:
    recent = Recent()
    for second in range(20):
        recent.add(5, second + 0.5)
    assert recent.per_s(19.9) == 5.0
    assert recent.per_s(24.0) == 2.5
    assert recent.per_s(40.0) == 0.0
    assert len(recent._seconds) <= 10


def test_busy_is_the_share_of_the_last_seconds_however_often_one_looks() -> None:
    book = Book(0.0, 1_700_000_000.0)
    assert book.busy("a", 0.0, 0.0) is None
    # Half of the time, then all of it.
    for tenth in range(1, 300):
        now_s = tenth / 10
        share = book.busy("a", now_s / 2, now_s)
        assert share == pytest.approx(0.5)
    for tenth in range(300, 420):
        now_s = tenth / 10
        share = book.busy("a", 15 + (now_s - 30), now_s)
    assert share == pytest.approx(1.0, abs=0.01)
    assert len(book._works["a"]) <= 12
