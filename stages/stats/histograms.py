"""Counts by size, as Prometheus reads them: one observation is counted once, for the bounds of every family. Core."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from attrs import define, field

from stages.messages import RequestRecord, TokenGaps
from stages.stats.spans import latencies_of

Bounds = tuple[float, ...]


def _range(start: int, stop: int, step: int) -> Bounds:
    return tuple(float(value) for value in range(start, stop, step))


# Of SGLang's families.
SGLANG_FIRST_TOKEN_S: Bounds = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400,
)  # fmt: skip
SGLANG_END_TO_END_S: Bounds = (*SGLANG_FIRST_TOKEN_S, 600, 1200, 1800, 2400)
SGLANG_INTER_TOKEN_S: Bounds = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2,
    4, 6, 8,
)  # fmt: skip
SGLANG_QUEUE_S: Bounds = (
    0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, *_range(20, 100, 10), *_range(100, 1000, 100),
    *_range(1000, 2000, 200), 2000, 2500, 3000,
)  # fmt: skip
SGLANG_STAGE_S: Bounds = tuple(0.001 * 1.62**power for power in range(30))
# Of vLLM's.
VLLM_FIRST_TOKEN_S: Bounds = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
VLLM_INTER_TOKEN_S: Bounds = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
VLLM_REQUEST_S: Bounds = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
TOKENS: Bounds = tuple(float(unit * 10**power) for power in range(7) for unit in (1, 2, 5))
CHOICES: Bounds = (1, 2, 5, 10, 20)
# What a call goes through, as per-stage latencies name it: each ends where the next begins.
STAGES = ("parse", "prompt", "grammar", "queue", "prefill", "decode", "deliver")
_STAGE_NAMES = tuple(f"stage_{stage}" for stage in STAGES)


@define(eq=False)
class Histogram:
    """Observations by the least bound they do not exceed, and their sum."""

    bounds: Bounds
    sum: float = 0.0
    _counts: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Add so many observations of a value."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def cumulative(self, bounds: Bounds) -> list[int]:
        """Return how many observations are within each of `bounds`, which are some of its own, and how many in all."""
        within = list(accumulate(self._counts))
        return [*(within[bisect_left(self.bounds, bound)] for bound in bounds), within[-1]]


def _union(*every: Bounds) -> Bounds:
    return tuple(sorted({float(bound) for bounds in every for bound in bounds}))


# By name: of each kind of observation, the bounds of all families that show it.
BOUNDS: Mapping[str, Bounds] = {
    "time_to_first_token": _union(SGLANG_FIRST_TOKEN_S, VLLM_FIRST_TOKEN_S),
    "end_to_end": _union(SGLANG_END_TO_END_S, VLLM_REQUEST_S),
    "inter_token": _union(SGLANG_INTER_TOKEN_S, VLLM_INTER_TOKEN_S),
    "time_per_token": _union(SGLANG_INTER_TOKEN_S, VLLM_INTER_TOKEN_S),
    "queue_wait": _union(SGLANG_QUEUE_S, VLLM_REQUEST_S),
    "prompt_tokens": TOKENS,
    "uncached_tokens": TOKENS,
    "completion_tokens": TOKENS,
    "num_choices": CHOICES,
    "inference": VLLM_REQUEST_S,
    "prefill": VLLM_REQUEST_S,
    "decode": VLLM_REQUEST_S,
    **dict.fromkeys(_STAGE_NAMES, SGLANG_STAGE_S),
}


@define(eq=False)
class Histograms:
    """Every histogram, of calls that are streamed apart from those that are not; a refused call is in none."""

    _by_name: dict[tuple[str, bool], Histogram] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._by_name = {
            (name, is_streamed): Histogram(bounds) for name, bounds in BOUNDS.items() for is_streamed in (False, True)
        }

    def of(self, name: str, is_streamed: bool) -> Histogram:
        """Return one; those of gaps between tokens are all under False."""
        return self._by_name[name, is_streamed]

    def ended(self, record: RequestRecord) -> None:
        """Add a call that has ended."""
        if record.outcome == "refused":
            return
        is_streamed, by_name = record.is_streamed, self._by_name
        for name, value in (*latencies_of(record), *_times_of(record), *_sizes_of(record)):
            by_name[name, is_streamed].observe(value)

    def delivered(self, gaps: TokenGaps) -> None:
        """Add the gaps before a step's tokens."""
        histogram = self._by_name["inter_token", False]
        for seconds, count in gaps.gaps:
            histogram.observe(seconds, count)


def instants_of(record: RequestRecord) -> Sequence[float | None]:
    """Return when a call's stages began, and when the last one ended; None for what it never came to."""
    return (
        record.arrived_s,
        record.parsed_s,
        record.prompt_ready_s,
        record.submitted_s,
        record.admitted_s,
        record.first_token_s,
        record.last_token_s,
        record.ended_s,
    )


def _times_of(record: RequestRecord) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    instants = instants_of(record)
    for name, began_s, ended_s in zip(_STAGE_NAMES, instants[:-1], instants[1:], strict=True):
        if began_s is not None and ended_s is not None:
            found.append((name, max(ended_s - began_s, 0.0)))
    first_s, last_s, admitted_s = record.first_token_s, record.last_token_s, record.admitted_s
    if first_s is not None and last_s is not None:
        found.append(("decode", last_s - first_s))
        num_gaps = record.completion_tokens - record.num_choices
        if num_gaps > 0:
            found.append(("time_per_token", (last_s - first_s) * record.num_choices / num_gaps))
        if admitted_s is not None:
            found.append(("prefill", max(first_s - admitted_s, 0.0)))
            found.append(("inference", max(last_s - admitted_s, 0.0)))
    return found


def _sizes_of(record: RequestRecord) -> list[tuple[str, float]]:
    cached = record.cached_device_tokens + record.cached_host_tokens
    return [
        ("prompt_tokens", record.prompt_tokens),
        ("uncached_tokens", max(record.prompt_tokens - cached, 0)),
        ("completion_tokens", record.completion_tokens),
        ("num_choices", record.num_choices),
    ]
