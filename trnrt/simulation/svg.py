"""Draws runs as one SVG picture: how long requests and tokens took, and who waited and ran over time."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from trnrt.simulation.metrics import token_gaps_s, ttfts_s
from trnrt.simulation.report import Report, Result
from trnrt.simulation.run import Moment
from trnrt.svg_panels import MAX_POINTS, Axis, Panel, Points, draw


def to_svg(report: Report) -> str:
    """Return the picture: times to first token, times between tokens, waiting, running; one color a setting."""
    results = report.results
    panels = (
        shares("time to first token: share of requests", [ttfts_s(one.run.served) for one in results]),
        shares("time between tokens: share of tokens", [token_gaps_s(one.run.served) for one in results]),
        _levels("waiting", results, lambda moment: moment.waiting),
        _levels("running", results, lambda moment: moment.running),
    )
    return draw(report.heading.split("\n"), [result.name for result in results], panels)


def shares(title: str, values: Sequence[Sequence[float]], names: Sequence[str] = ()) -> Panel:
    """Return the share of values (seconds) up to each time, over a logarithmic axis of milliseconds."""
    lines = [_cumulative(one) for one in values]
    times_ms = [x for line in lines for x, _ in line if x > 0] or [1.0]
    low = math.floor(math.log10(max(min(times_ms), max(times_ms) / 1e6)))
    high = max(low + 1, math.ceil(math.log10(max(times_ms))))
    return Panel(title, "milliseconds", lines, Axis(10.0**low, 10.0**high, is_log=True), Axis(0.0, 1.0), names)


def _cumulative(values: Sequence[float]) -> Points:
    if not len(values):
        return ()
    ordered = np.sort(np.array(values)) * 1000
    ranks = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), MAX_POINTS)).round().astype(int))
    return [(float(ordered[rank]), (int(rank) + 1) / len(ordered)) for rank in ranks]


def _levels(title: str, results: Sequence[Result], level: Callable[[Moment], int]) -> Panel:
    """Return a level over time in seconds, each point the most of its part of the time."""
    end_s = max(1e-9, *(one.ended_s for result in results for one in result.run.served))
    lines = [_most(result.run.moments, level, end_s) for result in results]
    highest = max(y for line in lines for _, y in line)
    return Panel(title, "seconds", lines, Axis(0.0, end_s), Axis(0.0, max(4.0, math.ceil(highest / 4) * 4.0)))


def _most(moments: Sequence[Moment], level: Callable[[Moment], int], end_s: float) -> Points:
    points: list[tuple[float, float]] = []
    held, index = 0, 0
    for part in range(MAX_POINTS):
        most = held
        while index < len(moments) and moments[index].at_s < (part + 1) / MAX_POINTS * end_s:
            held = level(moments[index])
            most = max(most, held)
            index += 1
        points.append((part / MAX_POINTS * end_s, float(most)))
    return points
