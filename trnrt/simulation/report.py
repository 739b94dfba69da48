"""Runs as a text table and as JSON; both depend on nothing but the runs and the arguments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson
from attrs import frozen

from trnrt.simulation.metrics import PERCENTILES, Metrics
from trnrt.simulation.run import Run


@frozen(eq=False)
class Result:
    """One setting's run and its numbers."""

    name: str
    settings: Mapping[str, Any]
    run: Run
    metrics: Metrics


@frozen(eq=False)
class Report:
    """What was simulated, and every setting's result."""

    trace: str
    device_model: str
    source: str
    seed: int
    results: Sequence[Result]

    @property
    def heading(self) -> str:
        """Return what the numbers are of, and where the step times come from."""
        one = self.results[0].metrics
        return (
            f"trace {self.trace}: {one.requests} requests, seed {self.seed}; device model {self.device_model}\n"
            f"({self.source})"
        )


def to_text(report: Report) -> str:
    """Return the heading and a table: a row for each number, a column for each setting."""
    rows = [["", *(result.name for result in report.results)]]
    rows += [[label, *(show(result.metrics) for result in report.results)] for label, show in _ROWS]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join([report.heading, "", *lines, ""])


def to_json(report: Report) -> str:
    """Return the same as one JSON object, with each setting's flags."""
    table = {
        "trace": report.trace,
        "device_model": report.device_model,
        "source": report.source,
        "seed": report.seed,
        "results": {result.name: {"settings": result.settings, **_named(result.metrics)} for result in report.results},
    }
    return orjson.dumps(table, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _named(metrics: Metrics) -> dict[str, Any]:
    table = attrs.asdict(metrics)
    for name in ("ttft_s", "token_gap_s"):
        table[name] = {f"p{percent}": value for percent, value in zip(PERCENTILES, table[name], strict=True)}
    return table


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:,.1f}"


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"


_ROWS: Sequence[tuple[str, Callable[[Metrics], str]]] = (
    *(
        (f"time to first token p{percent}, ms", lambda one, index=index: _milliseconds(one.ttft_s[index]))
        for index, percent in enumerate(PERCENTILES)
    ),
    *(
        (f"time between tokens p{percent}, ms", lambda one, index=index: _milliseconds(one.token_gap_s[index]))
        for index, percent in enumerate(PERCENTILES)
    ),
    ("output tokens/s", lambda one: f"{one.output_tokens_per_s:,.1f}"),
    ("prompt and output tokens/s", lambda one: f"{one.total_tokens_per_s:,.1f}"),
    ("prompt tokens from the cache", lambda one: _percent(one.hit_rate)),
    ("  on the device", lambda one: _percent(one.hit_rate_device)),
    ("  from host memory", lambda one: _percent(one.hit_rate_host)),
    ("waiting, mean", lambda one: f"{one.waiting_mean:.2f}"),
    ("waiting, most", lambda one: str(one.waiting_max)),
    ("running, mean", lambda one: f"{one.running_mean:.2f}"),
    ("running, most", lambda one: str(one.running_max)),
    ("preemptions", lambda one: str(one.preemptions)),
    ("retractions", lambda one: str(one.retractions)),
    ("device busy", lambda one: _percent(one.busy_share)),
    ("steps", lambda one: f"{one.steps:,}"),
    ("requests finished", lambda one: str(one.finished)),
    ("requests refused", lambda one: str(one.refused)),
    ("duration, s", lambda one: f"{one.duration_s:,.3f}"),
)
