"""Draws runs as one SVG picture: how long requests and tokens took, and who waited and ran over time."""

import math
from collections.abc import Callable, Sequence

from trnrt.simulation.metrics import token_gaps_s, ttfts_s
from trnrt.simulation.report import Report, Result
from trnrt.simulation.run import Moment
from trnrt.svg_panels import MAX_POINTS, Axis, Panel, Points, draw, shares


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
