"""A run in numbers. Core.

Percentiles interpolate between the two nearest values. Shares of time and means over time run from the first request
to the last end. The time to first token includes the wait in the queue.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from attrs import frozen

from trnrt.simulation.run import Run, Served

PERCENTILES = (50, 90, 99)
DIGITS = 6


@frozen(kw_only=True)
class Metrics:
    """What a run is judged by; None is a value that no request gave."""

    requests: int
    finished: int
    refused: int
    duration_s: float
    ttft_s: tuple[float | None, ...]
    token_gap_s: tuple[float | None, ...]
    output_tokens_per_s: float
    total_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    hit_rate: float
    hit_rate_device: float
    hit_rate_host: float
    waiting_mean: float
    waiting_max: int
    running_mean: float
    running_max: int
    preemptions: int
    retractions: int
    busy_share: float
    steps: int


def measure(run: Run) -> Metrics:
    """Return the numbers of a run of at least one request."""
    served = run.served
    begin_s, end_s = served[0].asked_s, max(one.ended_s for one in served)
    duration_s = max(end_s - begin_s, 1e-9)
    finished = [one for one in served if one.finish.kind in ("stop", "length")]
    prompt_tokens = sum(one.prompt_tokens for one in finished)
    output_tokens = sum(one.usage.completion_tokens for one in served)
    cached = sum(one.usage.cached_tokens for one in finished)
    cached_host = sum(one.usage.cached_host_tokens for one in finished)
    return Metrics(
        requests=len(served),
        finished=len(finished),
        refused=len(served) - len(finished),
        duration_s=_rounded(end_s - begin_s),
        ttft_s=_percentiles(ttfts_s(served)),
        token_gap_s=_percentiles(token_gaps_s(served)),
        output_tokens_per_s=_rounded(output_tokens / duration_s),
        total_tokens_per_s=_rounded((prompt_tokens + output_tokens) / duration_s),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        hit_rate=_share(cached, prompt_tokens),
        hit_rate_device=_share(cached - cached_host, prompt_tokens),
        hit_rate_host=_share(cached_host, prompt_tokens),
        waiting_mean=_rounded(_mean([(one.at_s, one.waiting) for one in run.moments], begin_s, end_s)),
        waiting_max=max((one.waiting for one in run.moments), default=0),
        running_mean=_rounded(_mean([(one.at_s, one.running) for one in run.moments], begin_s, end_s)),
        running_max=max((one.running for one in run.moments), default=0),
        preemptions=int(run.counts.get("preemptions", 0)),
        retractions=sum(one.usage.num_retractions for one in served),
        busy_share=_rounded(run.busy_s / duration_s),
        steps=run.num_steps,
    )


def ttfts_s(served: Iterable[Served]) -> list[float]:
    """Return each request's time from asking to its first token."""
    return [one.token_times_s[0] - one.asked_s for one in served if one.token_times_s]


def token_gaps_s(served: Iterable[Served]) -> list[float]:
    """Return the time between each token and the one before, of all requests."""
    return [later - earlier for one in served for earlier, later in pairwise(one.token_times_s)]


def _percentiles(values: list[float]) -> tuple[float | None, ...]:
    if not values:
        return tuple(None for _ in PERCENTILES)
    return tuple(_rounded(float(value)) for value in np.percentile(values, PERCENTILES))


def _mean(levels: list[tuple[float, int]], begin_s: float, end_s: float) -> float:
    """Return the mean over [begin_s, end_s) of a level that holds from its instant to the next one's."""
    if end_s <= begin_s:
        return 0.0
    area = sum(
        level * (max(min(until_s, end_s), begin_s) - max(at_s, begin_s))
        for (at_s, level), (until_s, _) in pairwise([*levels, (end_s, 0)])
        if until_s > begin_s
    )
    return area / (end_s - begin_s)


def _share(part: int, whole: int) -> float:
    return _rounded(part / whole) if whole else 0.0


def _rounded(value: float) -> float:
    return round(value, DIGITS)
