"""A log as one SVG picture: what came and went over time, how long it took, and how full the engine was."""

import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stages.stats.prodlog.lines import GaugesLine
from trnrt.reporting.columns import Columns, Floats, Ints
from trnrt.reporting.summary import Summary, kinds_of, looked_up
from trnrt.reporting.text import heading
from trnrt.svg_panels import Axis, Panel, Points, draw, shares

# How long a stretch may be that is one point of a line; the shortest that gives no more than MAX_STRETCHES.
STRETCHES_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800, 2_592_000)
MAX_STRETCHES = 120
# How far apart times are marked: the closest of which no more than MAX_MARKS fit.
MARKS_S = (*STRETCHES_S[:12], 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
MAX_MARKS = 5
DAY_S = 86_400


class Times:
    """The stretches of a log's time, from begin_s on."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        length_s = max(end_s - begin_s, 1.0)
        self.stretch_s = next(
            (one for one in STRETCHES_S if length_s / one <= MAX_STRETCHES), math.ceil(length_s / 120)
        )
        self.begin_s = math.floor(begin_s / self.stretch_s) * self.stretch_s
        self.num = max(1, math.ceil((end_s - self.begin_s) / self.stretch_s))
        self.end_s = self.begin_s + self.num * self.stretch_s

    def index(self, at_s: Floats) -> Ints:
        """Return the stretch of each instant."""
        return np.clip(((at_s - self.begin_s) // self.stretch_s).astype(np.int64), 0, self.num - 1)

    def axis(self) -> Axis:
        """Return the axis of times, marked in UTC."""
        length_s = self.end_s - self.begin_s
        step_s = next((one for one in MARKS_S if length_s / one <= MAX_MARKS), math.ceil(length_s / MAX_MARKS))
        if step_s >= DAY_S:
            form = "%Y-%m-%d"
        elif step_s < 60:
            form = "%H:%M:%S"
        else:
            form = "%H:%M" if length_s <= DAY_S else "%m-%d %H:%M"
        first = math.ceil(self.begin_s / step_s)
        marks = [step_s * number for number in range(first, math.floor(self.end_s / step_s) + 1)]
        return Axis(self.begin_s, self.end_s, marks=[(at_s, time.strftime(form, time.gmtime(at_s))) for at_s in marks])

    def label(self) -> str:
        """Return what a point stands for."""
        for unit, unit_s in (("day", 86_400), ("h", 3600), ("min", 60)):
            if self.stretch_s % unit_s == 0:
                return f"UTC, points of {self.stretch_s // unit_s} {unit}"
        return f"UTC, points of {self.stretch_s} s"

    def points(self, values: Floats) -> Points:
        """Return one point in the middle of each stretch whose value is a number."""
        middles = self.begin_s + (np.arange(self.num) + 0.5) * self.stretch_s
        return [(float(x), float(y)) for x, y in zip(middles, values, strict=True) if not math.isnan(y)]


def to_svg(summary: Summary, columns: Columns) -> str:
    """Return the picture."""
    times = Times(summary.begin_s or 0.0, summary.end_s or 0.0)
    index = times.index(columns.floats("at_s"))
    refused = kinds_of(columns)["refused"]
    whole_s = np.where(refused, math.nan, columns.floats("ended_s")) if len(refused) else columns.floats("ended_s")
    panels = (
        _calls(times, index, columns),
        _tokens(times, index, columns),
        _quantiles("time to first token, s", times, index, columns.floats("ttft_s")),
        _quantiles("whole call, s", times, index, whole_s),
        shares(
            "share of calls that took so long",
            [_known(one) for one in (columns.floats("queue_s"), columns.floats("ttft_s"), whole_s)],
            ("queue", "first token", "whole call"),
        ),
        _hits(times, index, columns),
        _gauges("running and waiting, most", times, columns, {"running": _running, "waiting": _waiting}),
        _gauges("memory in use, share, most", times, columns, {"pages": _pages, "without cache": _needed}, top=1.0),
    )
    return draw(heading(summary), (), panels)


def _calls(times: Times, index: Ints, columns: Columns) -> Panel:
    kinds = kinds_of(columns)
    lines = [_sums(times, index[kinds[name]]) for name in ("finished", "failed", "refused", "left")]
    names = ("finished", "failed", "refused", "client left")
    return _panel("calls a second", times, [one / times.stretch_s for one in lines], names)


def _tokens(times: Times, index: Ints, columns: Columns) -> Panel:
    cached = columns.ints("cached_device_tokens") + columns.ints("cached_host_tokens")
    computed = np.maximum(columns.ints("prompt_tokens") - cached, 0)
    lines = [_sums(times, index, one) for one in (computed, cached, columns.ints("completion_tokens"))]
    names = ("prompt computed", "prompt cached", "completion")
    return _panel("tokens a second", times, [one / times.stretch_s for one in lines], names)


def _hits(times: Times, index: Ints, columns: Columns) -> Panel:
    served = looked_up(columns)
    prompt = _sums(times, index[served], columns.ints("prompt_tokens")[served])
    known = np.where(prompt > 0, prompt, math.nan)
    lines = [_sums(times, index[served], columns.ints(f"cached_{one}_tokens")[served]) / known for one in _TIERS]
    return _panel("share of prompt tokens that were cached", times, lines, ("on the device", "in host memory"), top=1.0)


_TIERS = ("device", "host")


def _quantiles(title: str, times: Times, index: Ints, values: Floats) -> Panel:
    known = ~np.isnan(values)
    by_stretch = _grouped(index[known], values[known])
    lines = [np.full(times.num, math.nan) for _ in range(2)]
    for stretch, one in by_stretch:
        for line, percent in zip(lines, (50, 99), strict=True):
            line[stretch] = np.percentile(one, percent, method="inverted_cdf")
    return _panel(title, times, lines, ("p50", "p99"))


def _gauges(
    title: str,
    times: Times,
    columns: Columns,
    levels: dict[str, Callable[[GaugesLine], float]],
    top: float | None = None,
) -> Panel:
    """Return the most of each level in each stretch, of one process; a level holds until its process' next line."""
    lines = [np.full(times.num, math.nan) for _ in levels]
    newest: dict[str, int] = {}
    held: dict[str, list[float]] = {}
    for run, line in sorted(columns.gauges, key=lambda one: one[1].at_s):
        stretch = int(times.index(np.array([line.at_s]))[0])
        values = [level(line) for level in levels.values()]
        # What held until now fills the stretches since.
        since = slice(newest.get(run, stretch) + 1, stretch + 1)
        for most, value, before in zip(lines, values, held.get(run, values), strict=True):
            most[since] = np.fmax(most[since], before)
            most[stretch] = np.fmax(most[stretch], value)
        newest[run], held[run] = stretch, values
    return _panel(title, times, lines, tuple(levels), top)


def _running(line: GaugesLine) -> float:
    return line.running


def _waiting(line: GaugesLine) -> float:
    return line.waiting


def _pages(line: GaugesLine) -> float:
    return line.used_pages / line.total_pages if line.total_pages else 0.0


def _needed(line: GaugesLine) -> float:
    return max(0, line.used_pages - line.evictable_pages) / line.total_pages if line.total_pages else 0.0


def _panel(
    title: str, times: Times, lines: Sequence[Floats], names: tuple[str, ...], top: float | None = None
) -> Panel:
    most = max((float(np.nanmax(line)) for line in lines if not np.isnan(line).all()), default=0.0)
    return Panel(
        title,
        times.label(),
        [times.points(line) for line in lines],
        times.axis(),
        Axis(0.0, top or _round_up(most)),
        names,
    )


def _round_up(value: float) -> float:
    """Return the next round number, so that quarters of it are round too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 4, 8, 10) if value <= power * factor * (1 + 1e-9))


def _sums(times: Times, index: Ints, values: Ints | None = None) -> Floats:
    return np.bincount(index, values, minlength=times.num).astype(np.float64)


def _grouped(index: Ints, values: Floats) -> Iterable[tuple[int, Floats]]:
    order = np.argsort(index, kind="stable")
    found, firsts = np.unique(index[order], return_index=True)
    return zip(found.tolist(), np.split(values[order], firsts[1:]), strict=True) if len(found) else ()


def _known(values: Floats) -> list[float]:
    known: list[float] = values[~np.isnan(values)].tolist()
    return known
