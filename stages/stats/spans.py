"""What happened in the last 1, 5 and 15 minutes, since the start, and on each UTC day. Core: Unix times are passed in.

A span is the sum of sub-spans: whatever happens is added to one tally of 5 s; those add up to tallies of 30 s when they
close, and those to the day's and the total when they do. A window is then a few merges, and of what has closed it keeps
the sum. Latencies are DDSketches, whose sums lose nothing.
"""

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from attrs import define, field
from ddsketch import LogCollapsingLowestDenseDDSketch

from stages.messages import RequestRecord, TokenGaps
from stages.stats.statistics import Day, Latency, Window, Windows

FINE_S, COARSE_S, DAY_S = 5, 30, 86_400
NUM_FINE, NUM_COARSE = 60 // FINE_S, 900 // COARSE_S
NUM_5M = 300 // COARSE_S
MAX_DAYS = 14
ACCURACY = 0.01
_PERCENTS = (50, 90, 95, 99)
_UNAVAILABLE = 503


@define(eq=False)
class Tally:
    """One sub-span: counts, and a sketch of each latency that had any."""

    counts: Counter[str] = field(factory=Counter)
    outcomes: Counter[str] = field(factory=Counter)
    unavailable: Counter[str] = field(factory=Counter)
    sketches: dict[str, Any] = field(factory=dict)

    def ended(self, record: RequestRecord) -> None:
        """Add a call that has ended."""
        counts = self.counts
        counts["calls"] += 1
        self.outcomes[record.outcome] += 1
        if record.outcome != "refused":
            counts["prompt_tokens"] += record.prompt_tokens
            counts["cached_device_tokens"] += record.cached_device_tokens
            counts["cached_host_tokens"] += record.cached_host_tokens
        if was_looked_up(record):
            counts["looked_up_tokens"] += record.prompt_tokens
        if is_unavailable(record):
            self.unavailable[record.cause or "unavailable"] += 1
        for name, seconds in latencies_of(record):
            self.took(name, seconds)

    def delivered(self, gaps: TokenGaps) -> None:
        """Add the tokens of a step and the gaps before them."""
        self.counts["completion_tokens"] += gaps.num_tokens
        for seconds, count in gaps.gaps:
            self.took("inter_token", seconds, count)

    def took(self, name: str, seconds: float, count: int = 1) -> None:
        """Add to a latency."""
        sketch = self.sketches.get(name)
        if sketch is None:
            sketch = self.sketches[name] = LogCollapsingLowestDenseDDSketch(ACCURACY)
        sketch.add(seconds, count)

    def merge(self, other: "Tally") -> None:
        """Add another tally."""
        self.counts.update(other.counts)
        self.outcomes.update(other.outcomes)
        self.unavailable.update(other.unavailable)
        for name, sketch in other.sketches.items():
            if name not in self.sketches:
                self.sketches[name] = LogCollapsingLowestDenseDDSketch(ACCURACY)
            self.sketches[name].merge(sketch)

    def latency(self, name: str) -> Latency:
        """Return a latency's figures."""
        sketch = self.sketches.get(name)
        return Latency() if sketch is None else _latency_of(sketch)

    def fields(self, span_s: float) -> dict[str, Any]:
        """Return the fields of a Window of so many seconds."""
        counts, span_s = self.counts, max(span_s, 0.0)
        cached = counts["cached_device_tokens"] + counts["cached_host_tokens"]
        return {
            "span_s": span_s,
            "calls": counts["calls"],
            "calls_per_s": _rate(counts["calls"], span_s),
            "outcomes": dict(self.outcomes),
            "unavailable": dict(self.unavailable),
            "prompt_tokens": counts["prompt_tokens"],
            "prompt_tokens_per_s": _rate(counts["prompt_tokens"], span_s),
            "completion_tokens": counts["completion_tokens"],
            "completion_tokens_per_s": _rate(counts["completion_tokens"], span_s),
            "cached_device_tokens": counts["cached_device_tokens"],
            "cached_host_tokens": counts["cached_host_tokens"],
            "cache_hit_rate": min(cached / counts["looked_up_tokens"], 1.0) if counts["looked_up_tokens"] else None,
            **{name: self.latency(name) for name in ("time_to_first_token", "inter_token", "end_to_end", "queue_wait")},
        }


@define(eq=False)
class Spans:
    """The tallies of a server that started at started_unix_s."""

    started_unix_s: float
    # Closed ones with their numbers, the oldest first; a number is Unix time over the sub-span's length.
    _fine: deque[tuple[int, Tally]] = field(factory=deque)
    _coarse: deque[tuple[int, Tally]] = field(factory=deque)
    _days: deque[tuple[int, Tally]] = field(factory=deque)
    # Of what has closed as 30 s; the open ones are yet to be added.
    _total: Tally = field(factory=Tally)
    _open_fine: tuple[int, Tally] = field(init=False)
    _open_coarse: tuple[int, Tally] = field(init=False)
    # Sums of closed tallies by the numbers of the open ones at the time, which say when they are stale.
    _sums: dict[str, tuple[int, Tally]] = field(factory=dict)
    _past_days: dict[int, Day] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._open_fine = (int(self.started_unix_s // FINE_S), Tally())
        self._open_coarse = (int(self.started_unix_s // COARSE_S), Tally())

    def tally(self, unix_s: float) -> Tally:
        """Return what to add to at unix_s; times never go back."""
        number = int(unix_s // FINE_S)
        if number > self._open_fine[0]:
            self._close_fine(number)
        return self._open_fine[1]

    def windows(self, unix_s: float) -> Windows:
        """Return the windows that end now."""
        self.tally(unix_s)
        fine, coarse = self._open_fine[0], self._open_coarse[0]
        open_now = [self._open_coarse[1], self._open_fine[1]]
        last_1m = self._sum("1m", fine, (tally for number, tally in self._fine if number > fine - NUM_FINE))
        last_5m = self._sum("5m", coarse, (tally for number, tally in self._coarse if number > coarse - NUM_5M))
        last_15m = self._sum("15m", coarse, (tally for number, tally in self._coarse if number > coarse - NUM_COARSE))
        return Windows(
            self._window([last_1m, self._open_fine[1]], (fine - NUM_FINE + 1) * FINE_S, unix_s),
            self._window([last_5m, *open_now], (coarse - NUM_5M + 1) * COARSE_S, unix_s),
            self._window([last_15m, *open_now], (coarse - NUM_COARSE + 1) * COARSE_S, unix_s),
            self._window([self._total, *open_now], self.started_unix_s, unix_s),
        )

    def total(self) -> Tally:
        """Return everything since the start."""
        return _merged([self._total, self._open_coarse[1], self._open_fine[1]])

    def days(self, unix_s: float) -> tuple[Day, ...]:
        """Return the UTC days, today first; days on which the server did nothing are not there."""
        self.tally(unix_s)
        today = int(unix_s // DAY_S)
        open_now = [self._open_coarse[1], self._open_fine[1]]
        of_today = [tally for number, tally in self._days if number == today]
        past = [(number, tally) for number, tally in self._days if number < today]
        for number, tally in past:
            if number not in self._past_days:
                self._past_days[number] = self._day(number, [tally], unix_s)
        newest = self._day(today, [*of_today, *open_now], unix_s)
        return (newest, *(self._past_days[number] for number, _ in reversed(past)))

    def _close_fine(self, number: int) -> None:
        old, tally = self._open_fine
        self._open_fine = (number, Tally())
        _keep(self._fine, old, tally, NUM_FINE)
        # A sub-span of 5 s is within one of 30 s: the open one.
        self._open_coarse[1].merge(tally)
        coarse = number * FINE_S // COARSE_S
        if coarse > self._open_coarse[0]:
            self._close_coarse(coarse)

    def _close_coarse(self, number: int) -> None:
        old, tally = self._open_coarse
        self._open_coarse = (number, Tally())
        _keep(self._coarse, old, tally, NUM_COARSE)
        self._total.merge(tally)
        day = old * COARSE_S // DAY_S
        if not self._days or self._days[-1][0] != day:
            _keep(self._days, day, Tally(), MAX_DAYS)
            self._past_days = {number: told for number, told in self._past_days.items() if number > day - MAX_DAYS}
        self._days[-1][1].merge(tally)

    def _sum(self, name: str, stamp: int, tallies: Iterable[Tally]) -> Tally:
        if self._sums.get(name, (-1,))[0] != stamp:
            self._sums[name] = (stamp, _merged(tallies))
        return self._sums[name][1]

    def _window(self, tallies: Iterable[Tally], began_unix_s: float, unix_s: float) -> Window:
        return Window(**_merged(tallies).fields(unix_s - max(began_unix_s, self.started_unix_s)))

    def _day(self, number: int, tallies: Iterable[Tally], unix_s: float) -> Day:
        began_s, ended_s = max(number * DAY_S, self.started_unix_s), min((number + 1) * DAY_S, unix_s)
        date = datetime.fromtimestamp(number * DAY_S, UTC).date().isoformat()
        return Day(**_merged(tallies).fields(ended_s - began_s), date=date)


def _latency_of(sketch: Any) -> Latency:
    """Return a sketch's figures; its own percentiles are of fewer values than they say where there are few."""
    store, num_zeros, shortest, longest = sketch._store, sketch._zero_count, sketch._min, sketch._max
    count = round(sketch.count)
    upto = list(accumulate(store.bins, initial=num_zeros))
    values: list[float] = []
    for percent in _PERCENTS:
        # From 0: that many percent of the values, rounded up, take no longer.
        rank = -(-percent * count // 100) - 1
        # The first bin that the rank is before the end of; times are not below 0.
        index = bisect_right(upto, rank) - 1
        is_zero = index < 0 or rank < num_zeros
        values.append(0.0 if is_zero else min(max(sketch._mapping.value(index + store.offset), shortest), longest))
    p50_s, p90_s, p95_s, p99_s = values
    return Latency(count, sketch.avg, p50_s, p90_s, p95_s, p99_s, longest)


def latencies_of(record: RequestRecord) -> list[tuple[str, float]]:
    """Return the latencies that a call has, by the name of their field in Window."""
    found: list[tuple[str, float]] = []
    if record.first_token_s is not None:
        found.append(("time_to_first_token", record.first_token_s - record.arrived_s))
    if record.outcome != "refused":
        found.append(("end_to_end", record.ended_s - record.arrived_s))
    if record.admitted_s is not None and record.submitted_s is not None:
        found.append(("queue_wait", max(record.admitted_s - record.submitted_s, 0.0)))
    return found


def was_looked_up(record: RequestRecord) -> bool:
    """Say whether a call's prompt was looked up in the cache; an engine behind this server shows it by a token."""
    return record.admitted_s is not None or record.first_token_s is not None


def is_unavailable(record: RequestRecord) -> bool:
    """Say whether a call was told to come again."""
    return record.status == _UNAVAILABLE


def _merged(tallies: Iterable[Tally]) -> Tally:
    merged = Tally()
    for tally in tallies:
        merged.merge(tally)
    return merged


def _keep(closed: deque[tuple[int, Tally]], number: int, tally: Tally, limit: int) -> None:
    closed.append((number, tally))
    while len(closed) > limit:
        closed.popleft()


def _rate(count: float, span_s: float) -> float:
    return count / span_s if span_s > 0 and math.isfinite(span_s) else 0.0
