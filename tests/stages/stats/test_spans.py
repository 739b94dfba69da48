"""Windows and days: what they hold at which instant, exactly; percentiles within their accuracy."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.messages import TokenGaps
from stages.stats.spans import COARSE_S, DAY_S, FINE_S, MAX_DAYS, Spans, Tally, latencies_of
from stages.stats.statistics import Latency, Window
from tests.stages.stats.records import record, refused

# A midnight.
DAY = 19_675
START_S = float(DAY * DAY_S)


def calls(window: Window) -> int:
    return window.calls


def test_a_window_holds_what_one_record_says_exactly() -> None:
    spans = Spans(START_S)
    spans.tally(START_S + 8).ended(record())
    spans.tally(START_S + 8).ended(refused())
    spans.tally(START_S + 9).delivered(TokenGaps(3, ((0.5, 2), (0.25, 1))))
    window = spans.windows(START_S + 10).last_1m
    assert (window.span_s, window.calls, window.calls_per_s) == (10.0, 2, 0.2)
    assert (window.outcomes, window.unavailable) == ({"stop": 1, "refused": 1}, {"queue_full": 1})
    assert (window.prompt_tokens, window.prompt_tokens_per_s) == (40, 4.0)
    assert (window.completion_tokens, window.completion_tokens_per_s) == (3, 0.3)
    assert (window.cached_device_tokens, window.cached_host_tokens, window.cache_hit_rate) == (10, 5, 15 / 40)
    # Of the refused one there is but what it came to: no token, no place on the device.
    for latency, seconds in (
        (window.time_to_first_token, 4.0),
        (window.end_to_end, 10.0),
        (window.queue_wait, 1.75),
    ):
        assert (latency.count, latency.mean_s, latency.max_s) == (1, seconds, seconds)
        assert latency.p50_s == pytest.approx(seconds, rel=0.01)
    assert (window.inter_token.count, window.inter_token.max_s) == (3, 0.5)
    assert window.inter_token.mean_s == pytest.approx(1.25 / 3)


def test_a_call_that_never_came_to_the_cache_lowers_no_hit_rate() -> None:
    spans = Spans(START_S)
    spans.tally(START_S + 8).ended(record())
    nowhere = {"admitted_s": None, "first_token_s": None, "cached_device_tokens": 0, "cached_host_tokens": 0}
    spans.tally(START_S + 8).ended(record(outcome="disconnected", **nowhere))
    window = spans.windows(START_S + 10).last_1m
    assert (window.prompt_tokens, window.cache_hit_rate) == (80, 15 / 40)


def test_nothing_is_told_of_what_did_not_happen() -> None:
    windows = Spans(START_S).windows(START_S)
    for window in (windows.last_1m, windows.last_5m, windows.last_15m, windows.since_start):
        assert (window.calls_per_s, window.cache_hit_rate, window.inter_token) == (0.0, None, Latency())


@pytest.mark.parametrize(
    ("name", "until_s", "span_s"),
    [("last_1m", 60, 60 - FINE_S), ("last_5m", 300, 300 - COARSE_S), ("last_15m", 900, 900 - COARSE_S)],
)
def test_a_window_lets_go_at_its_end_and_not_before(name: str, until_s: float, span_s: float) -> None:
    spans = Spans(START_S)
    spans.tally(START_S + 1).ended(record())
    assert getattr(spans.windows(START_S + until_s - 0.001), name).calls == 1
    gone = getattr(spans.windows(START_S + until_s), name)
    # It begins at a boundary of its sub-spans: the newest of them has just begun.
    assert (gone.calls, gone.span_s) == (0, span_s)
    assert spans.windows(START_S + 1e6).since_start.calls == 1


def test_rates_are_over_the_time_there_was() -> None:
    spans = Spans(START_S + 2.5)
    spans.tally(START_S + 3).delivered(TokenGaps(50, ()))
    assert spans.windows(START_S + 7.5).last_15m.completion_tokens_per_s == 10.0
    assert spans.windows(START_S + 7.5).since_start.span_s == 5.0


def test_a_window_grows_while_nothing_closes_and_when_something_does() -> None:
    spans = Spans(START_S)
    for second in range(1000):
        spans.tally(START_S + second).ended(record())
        windows = spans.windows(START_S + second)
        assert windows.since_start.calls == second + 1
        assert windows.last_1m.calls == second + 1 - max((second // FINE_S - 11) * FINE_S, 0)
        assert windows.last_5m.calls == second + 1 - max((second // COARSE_S - 9) * COARSE_S, 0)
        assert windows.last_15m.calls == second + 1 - max((second // COARSE_S - 29) * COARSE_S, 0)


def test_a_day_ends_at_midnight_utc_and_is_kept_as_it_was() -> None:
    spans = Spans(START_S + DAY_S - 10)
    spans.tally(START_S + DAY_S - 1).ended(record())
    (today,) = spans.days(START_S + DAY_S - 0.5)
    assert (today.date, today.calls, today.span_s) == ("2023-11-14", 1, 9.5)
    spans.tally(START_S + DAY_S + 1).ended(record())
    spans.tally(START_S + DAY_S + 2).ended(record())
    today, yesterday = spans.days(START_S + DAY_S + 4)
    assert (today.date, today.calls, today.span_s) == ("2023-11-15", 2, 4.0)
    assert (yesterday.date, yesterday.calls, yesterday.span_s) == ("2023-11-14", 1, 10.0)
    later = spans.days(START_S + DAY_S + 3600)
    assert later[1] is yesterday
    assert later[0].calls == 2


def test_days_on_which_nothing_happened_are_not_there_and_old_ones_go() -> None:
    spans = Spans(START_S)
    for day in range(0, 60, 2):
        spans.tally(START_S + day * DAY_S + 60).ended(record())
        days = spans.days(START_S + day * DAY_S + 61)
        assert days[0].calls == 1
        assert len(days) <= MAX_DAYS + 1
    assert [day.date for day in days[:2]] == ["2024-01-11", "2024-01-09"]
    assert len(spans._days) + len(spans._past_days) <= 2 * MAX_DAYS


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(1e-6, 1e5)), max_size=60), st.integers(0, 10))
def test_windows_are_the_sum_of_what_came_whenever_one_looks(events: list[tuple[float, float]], every: int) -> None:
    spans, now_s = Spans(START_S), START_S
    seen: deque[tuple[float, float]] = deque()
    for number, (pause_s, seconds) in enumerate(events):
        now_s += pause_s
        spans.tally(now_s).took("end_to_end", seconds)
        seen.append((now_s, seconds))
        if every and number % every == 0:
            spans.windows(now_s)
            spans.days(now_s)
    windows = spans.windows(now_s)
    for window, length_s, step_s in (
        (windows.last_1m, 60, FINE_S),
        (windows.last_5m, 300, COARSE_S),
        (windows.last_15m, 900, COARSE_S),
        (windows.since_start, 1e9, COARSE_S),
    ):
        began_s = (now_s // step_s + 1) * step_s - length_s
        within = [seconds for at_s, seconds in seen if at_s >= began_s]
        assert window.end_to_end.count == len(within)
        if within:
            assert window.end_to_end.max_s == max(within)
            assert window.end_to_end.mean_s == pytest.approx(sum(within) / len(within))


def test_percentiles_are_within_one_percent() -> None:
    tally, draw = Tally(), random.Random(1)
    values = [draw.lognormvariate(-3, 1.5) for _ in range(20_000)]
    for value in values:
        tally.took("inter_token", value)
    latency = tally.latency("inter_token")
    values.sort()
    for quantile, told in ((0.5, latency.p50_s), (0.9, latency.p90_s), (0.95, latency.p95_s), (0.99, latency.p99_s)):
        assert told == pytest.approx(values[int(quantile * (len(values) - 1))], rel=0.01)


def test_a_sketch_of_whatever_comes_has_a_bound() -> None:
    tally, draw = Tally(), random.Random(1)
    for _ in range(20_000):
        tally.took("inter_token", 10 ** draw.uniform(-300, 300))
    assert tally.sketches["inter_token"]._store.length() <= 2048


def test_a_call_has_only_the_latencies_it_came_to() -> None:
    assert latencies_of(refused()) == []
    assert latencies_of(record(admitted_s=None)) == [("time_to_first_token", 4.0), ("end_to_end", 10.0)]
    left = record(outcome="disconnected", first_token_s=None)
    assert latencies_of(left) == [("end_to_end", 10.0), ("queue_wait", 1.75)]


@given(st.lists(st.tuples(st.just(0.0) | st.floats(1e-9, 1e6), st.integers(1, 9)), min_size=1, max_size=40))
def test_as_many_calls_as_a_percentile_says_took_no_longer(values: list[tuple[float, int]]) -> None:
    tally = Tally()
    for value, count in values:
        tally.took("end_to_end", value, count)
    latency, each = tally.latency("end_to_end"), sorted(value for value, count in values for _ in range(count))
    told = (latency.p50_s, latency.p90_s, latency.p95_s, latency.p99_s)
    for percent, seconds in zip((50, 90, 95, 99), told, strict=True):
        assert seconds == pytest.approx(each[-(-percent * len(each) // 100) - 1], rel=0.01)
    assert each[0] <= told[0] <= told[-1] <= each[-1]


def test_of_two_calls_the_longer_one_is_the_99th_percentile() -> None:
    tally = Tally()
    tally.took("end_to_end", 1.0)
    assert tally.latency("end_to_end") == Latency(1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    tally.took("end_to_end", 2.0)
    assert tally.latency("end_to_end").p50_s == 1.0
    assert tally.latency("end_to_end").p99_s == pytest.approx(2.0, rel=0.01)
