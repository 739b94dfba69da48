"""Draws runs as one SVG picture: how long requests and tokens took, and who waited and ran over time."""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from textwrap import wrap

import numpy as np
from attrs import frozen

from trnrt.simulation.metrics import token_gaps_s, ttfts_s
from trnrt.simulation.report import Report, Result
from trnrt.simulation.run import Moment

COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf")
WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 960, 390, 200
LEFT, GAP_X, GAP_Y, LEGEND_ROW = 60, 90, 70, 16
HEADING_CHARACTERS = 140
# Points of a line at most: finer than the picture shows.
MAX_POINTS = 400

_MIDDLE = ' text-anchor="middle"'

Points = Sequence[tuple[float, float]]


@frozen
class Axis:
    """From `low` to `high`, spread over the panel evenly or by the logarithm."""

    low: float
    high: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return where value lies between the ends, 0 to 1."""
        low, high, value = (math.log10(x) if self.is_log else x for x in (self.low, self.high, max(value, self.low)))
        return (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return values to mark: powers of ten, or quarters."""
        if self.is_log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        return [self.low + (self.high - self.low) * quarter / 4 for quarter in range(5)]


@frozen
class Panel:
    """One diagram: a line for each setting."""

    title: str
    x_label: str
    lines: Sequence[Points]
    x: Axis
    y: Axis


def to_svg(report: Report) -> str:
    """Return the picture: times to first token, times between tokens, waiting, running; one color a setting."""
    results = report.results
    panels = (
        _shares("time to first token: share of requests", [ttfts_s(one.run.served) for one in results]),
        _shares("time between tokens: share of tokens", [token_gaps_s(one.run.served) for one in results]),
        _levels("waiting", results, lambda moment: moment.waiting),
        _levels("running", results, lambda moment: moment.running),
    )
    heading = [part for line in report.heading.split("\n") for part in wrap(line, HEADING_CHARACTERS)]
    top = 50 + LEGEND_ROW * (len(heading) + len(results))
    height = top + 2 * (PANEL_HEIGHT + GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    parts += [_text(LEFT, 20 + LEGEND_ROW * row, line) for row, line in enumerate(heading)]
    for row, result in enumerate(results):
        y = 20 + LEGEND_ROW * (len(heading) + row)
        parts.append(f'<rect x="{LEFT}" y="{y - 5}" width="22" height="3" fill="{_color(row)}"/>')
        parts.append(_text(LEFT + 30, y, result.name))
    for index, panel in enumerate(panels):
        x, y = LEFT + index % 2 * (PANEL_WIDTH + GAP_X), top + index // 2 * (PANEL_HEIGHT + GAP_Y)
        parts += _panel(panel, x, y)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: int, top: int) -> Iterable[str]:
    bottom, right = top + PANEL_HEIGHT, left + PANEL_WIDTH
    yield _text(left, top - 8, panel.title, ' font-weight="bold"')
    for value in panel.x.ticks():
        x = left + panel.x.share(value) * PANEL_WIDTH
        yield f'<path d="M{x:.1f} {top}V{bottom}" stroke="#e5e5e5"/>'
        yield _text(x, bottom + 14, _number(value), _MIDDLE)
    for value in panel.y.ticks():
        y = bottom - panel.y.share(value) * PANEL_HEIGHT
        yield f'<path d="M{left} {y:.1f}H{right}" stroke="#e5e5e5"/>'
        yield _text(left - 6, y + 4, _number(value), ' text-anchor="end"')
    yield _text((left + right) / 2, bottom + 30, panel.x_label, _MIDDLE)
    for number, points in enumerate(panel.lines):
        if points:
            path = " ".join(
                f"{left + panel.x.share(x) * PANEL_WIDTH:.1f},{bottom - panel.y.share(y) * PANEL_HEIGHT:.1f}"
                for x, y in points
            )
            yield f'<polyline points="{path}" fill="none" stroke="{_color(number)}" stroke-width="1.5"/>'


def _shares(title: str, values: Sequence[list[float]]) -> Panel:
    """Return the share of values (seconds) up to each time, over a logarithmic axis of milliseconds."""
    lines = [_cumulative(one) for one in values]
    times_ms = [x for line in lines for x, _ in line if x > 0] or [1.0]
    low = math.floor(math.log10(max(min(times_ms), max(times_ms) / 1e6)))
    high = max(low + 1, math.ceil(math.log10(max(times_ms))))
    return Panel(title, "milliseconds", lines, Axis(10.0**low, 10.0**high, is_log=True), Axis(0.0, 1.0))


def _cumulative(values: list[float]) -> Points:
    if not values:
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


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
