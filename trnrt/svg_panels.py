"""Diagrams as SVG text: panels of lines over two axes, two beside each other."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from textwrap import wrap

import numpy as np
from attrs import field, frozen

COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf")
WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 960, 390, 200
LEFT, GAP_X, GAP_Y, LEGEND_ROW = 60, 90, 70, 16
HEADING_CHARACTERS = 140
# Points of a line at most: finer than the picture shows.
MAX_POINTS = 400

_MIDDLE = ' text-anchor="middle"'
# Of a name in a panel's own legend: its mark, and about what a letter takes.
_MARK_WIDTH, _LETTER_WIDTH = 30, 6

Points = Sequence[tuple[float, float]]


@frozen
class Axis:
    """From `low` to `high`, spread over the panel evenly or by the logarithm; `marks` are values and their texts."""

    low: float
    high: float
    is_log: bool = False
    marks: Sequence[tuple[float, str]] = ()

    def share(self, value: float) -> float:
        """Return where value lies between the ends, 0 to 1."""
        low, high, value = (math.log10(x) if self.is_log else x for x in (self.low, self.high, max(value, self.low)))
        return (value - low) / (high - low)

    def ticks(self) -> Sequence[tuple[float, str]]:
        """Return values to mark and their texts: the axis' own, powers of ten, or quarters."""
        if self.marks:
            return self.marks
        if self.is_log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [(10.0**power, number(10.0**power)) for power in range(first, last + 1)]
        values = [self.low + (self.high - self.low) * quarter / 4 for quarter in range(5)]
        return [(value, number(value)) for value in values]


@frozen
class Panel:
    """One diagram: a line for each of its names, or for each of the picture's where it has none."""

    title: str
    x_label: str
    lines: Sequence[Points]
    x: Axis
    y: Axis
    names: Sequence[str] = field(default=())


def draw(heading: Sequence[str], legend: Sequence[str], panels: Sequence[Panel]) -> str:
    """Return the picture: lines of text, a row for each name of the legend, and the panels."""
    rows = [part for line in heading for part in wrap(line, HEADING_CHARACTERS)]
    top = 50 + LEGEND_ROW * (len(rows) + len(legend))
    height = top + math.ceil(len(panels) / 2) * (PANEL_HEIGHT + GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    parts += [_text(LEFT, 20 + LEGEND_ROW * row, line) for row, line in enumerate(rows)]
    for row, name in enumerate(legend):
        y = 20 + LEGEND_ROW * (len(rows) + row)
        parts.append(f'<rect x="{LEFT}" y="{y - 5}" width="22" height="3" fill="{_color(row)}"/>')
        parts.append(_text(LEFT + 30, y, name))
    for index, panel in enumerate(panels):
        x, y = LEFT + index % 2 * (PANEL_WIDTH + GAP_X), top + index // 2 * (PANEL_HEIGHT + GAP_Y)
        parts += _panel(panel, x, y)
    return "\n".join([*parts, "</svg>", ""])


def number(value: float) -> str:
    """Return a number as an axis shows it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


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


def _panel(panel: Panel, left: int, top: int) -> Iterable[str]:
    bottom, right = top + PANEL_HEIGHT, left + PANEL_WIDTH
    yield _text(left, top - (22 if panel.names else 8), panel.title, ' font-weight="bold"')
    yield from _own_legend(panel.names, left, top - 8)
    for value, text in panel.x.ticks():
        x = left + panel.x.share(value) * PANEL_WIDTH
        yield f'<path d="M{x:.1f} {top}V{bottom}" stroke="#e5e5e5"/>'
        yield _text(x, bottom + 14, text, _MIDDLE)
    for value, text in panel.y.ticks():
        y = bottom - panel.y.share(value) * PANEL_HEIGHT
        yield f'<path d="M{left} {y:.1f}H{right}" stroke="#e5e5e5"/>'
        yield _text(left - 6, y + 4, text, ' text-anchor="end"')
    yield _text((left + right) / 2, bottom + 30, panel.x_label, _MIDDLE)
    for index, points in enumerate(panel.lines):
        if points:
            path = " ".join(
                f"{left + panel.x.share(x) * PANEL_WIDTH:.1f},{bottom - panel.y.share(y) * PANEL_HEIGHT:.1f}"
                for x, y in points
            )
            yield f'<polyline points="{path}" fill="none" stroke="{_color(index)}" stroke-width="1.5"/>'


def _own_legend(names: Sequence[str], x: float, y: float) -> Iterable[str]:
    """Yield the names of a panel's lines from x on."""
    for index, name in enumerate(names):
        yield f'<rect x="{x:.1f}" y="{y - 5}" width="14" height="3" fill="{_color(index)}"/>'
        yield _text(x + 18, y, name)
        x += _MARK_WIDTH + _LETTER_WIDTH * len(name)


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]
