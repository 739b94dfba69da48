"""A log's summary as text tables and as JSON. Core."""

import time
from collections.abc import Iterator, Mapping, Sequence

import attrs
import orjson

from stages.stats.prodlog.lines import RequestLine
from trnrt.reporting.summary import Integrity, Part, Spread, Summary

# Hours in the text, the newest; JSON has all.
MAX_HOURS = 48

Rows = Sequence[Sequence[str]]


def to_json(summary: Summary) -> str:
    """Return everything as one JSON object."""
    table = attrs.asdict(summary)
    return orjson.dumps(table, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def to_text(summary: Summary) -> str:
    """Return everything as tables: first what the log is and what it lacks, then what was served."""
    blocks = [
        "\n".join(heading(summary)),
        "\n".join(_integrity(summary.integrity)),
        _table(_totals(summary)),
        _counts("calls by outcome", summary.by_outcome, summary.calls),
        _counts("calls by route", summary.by_route, summary.calls),
        _counts("calls that did not finish, by status and cause", summary.by_cause, summary.calls),
        _counts("503s by cause", summary.unavailable_by_cause, summary.calls),
        _table([["", "calls", "p50", "p90", "p95", "p99", "most"], *_spreads(summary.spreads)]),
        _table([["day (UTC)", *_PART_HEADS], *(_part(part, "%Y-%m-%d") for part in summary.days)]),
        _table([["hour (UTC)", *_PART_HEADS], *(_part(part, "%Y-%m-%d %H:%M") for part in summary.hours[-MAX_HOURS:])]),
        _earlier(summary.hours),
        _slowest(summary.slowest),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def heading(summary: Summary) -> list[str]:
    """Return what the log is of."""
    if summary.begin_s is None or summary.end_s is None:
        return ["a log without a readable line"]
    span = f"{utc(summary.begin_s)} to {utc(summary.end_s)} UTC, {duration(summary.end_s - summary.begin_s)}"
    whose = f"{', '.join(summary.roles) or 'unknown role'}; {', '.join(summary.models) or 'unknown model'}"
    one = summary.integrity
    size = f"{one.runs} {_plural('process', one.runs)}, {one.files} {_plural('file', one.files)}, {one.bytes:,} bytes"
    return [f"production log of {whose}", f"{span}; {size}"]


def utc(at_s: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return an instant as people write it."""
    return time.strftime(form, time.gmtime(at_s))


def duration(length_s: float) -> str:
    """Return a time in the two units that matter."""
    whole = round(length_s)
    for unit, unit_s, below, below_s in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= unit_s:
            return f"{whole // unit_s} {unit} {whole % unit_s // below_s} {below}"
    return f"{length_s:.3g} s"


def _integrity(one: Integrity) -> Iterator[str]:
    """Yield a line for each thing that is not as it should be, or one that all is."""
    told = []
    for name, size in one.torn_lines.items():
        told.append(f"torn: the last line of {name}, {size:,} bytes, was not written to its end and is left out")
    for count, thing, what in (
        (one.runs_cut_short, "process", "never closed the log (killed, or a power loss): last lines may lack"),
        (one.unreadable_lines, "line", "cannot be read and left out"),
        (one.wrong_fields, "field", "had impossible values and count as absent"),
        (one.missing_lines, "line", "missing between others"),
        (one.lost_lines, "line", "lost while the disk failed or was too slow"),
        (one.lost_stats_records, "record", "of any kind lost before the log"),
        (one.newer_files, "file", "by a newer version, read as far as it is known"),
        (one.unknown_lines, "line", "of a kind that this version does not know"),
        (one.runs_open, "process", "writing it now"),
    ):
        if count:
            told.append(f"{count:,} {_plural(thing, count)} {what}")
    for gap in one.downtimes:
        told.append(
            f"no process wrote from {utc(gap.begin_s)} to {utc(gap.end_s)}, {duration(gap.end_s - gap.begin_s)}"
        )
    yield from told or ["the log is whole"]


def _plural(thing: str, count: int) -> str:
    if count == 1:
        return thing
    return f"{thing}es" if thing.endswith("s") else f"{thing}s"


def _totals(summary: Summary) -> Rows:
    return [
        ["calls", f"{summary.calls:,}", f"{_number(summary.calls_per_s)} a second"],
        ["  streamed", f"{summary.streamed:,}", _percent_of(summary.streamed, summary.calls)],
        ["  constrained", f"{summary.constrained:,}", _percent_of(summary.constrained, summary.calls)],
        ["choices", f"{summary.choices:,}", ""],
        ["prompt tokens", f"{summary.prompt_tokens:,}", ""],
        ["  cached", f"{summary.cached_device_tokens + summary.cached_host_tokens:,}", _percent(summary.hit_rate)],
        ["    on the device", f"{summary.cached_device_tokens:,}", _percent(summary.hit_rate_device)],
        ["    in host memory", f"{summary.cached_host_tokens:,}", _percent(summary.hit_rate_host)],
        ["completion tokens", f"{summary.completion_tokens:,}", f"{_number(summary.completion_tokens_per_s)} a second"],
        [
            "  of reasoning",
            f"{summary.reasoning_tokens:,}",
            _percent_of(summary.reasoning_tokens, summary.completion_tokens),
        ],
        ["retractions", f"{summary.retractions:,}", ""],
    ]


def _counts(title: str, counts: Mapping[str, int], whole: int) -> str:
    rows = [[f"  {name}", f"{count:,}", _percent_of(count, whole)] for name, count in counts.items()]
    return _table([[title, "calls", ""], *rows]) if rows else ""


def _spreads(spreads: Mapping[str, Spread]) -> Iterator[Sequence[str]]:
    for name, one in spreads.items():
        yield [name, f"{one.count:,}", *(_number(value) for value in (one.p50, one.p90, one.p95, one.p99, one.max))]


_PART_HEADS = (
    "calls", "finished", "refused", "failed", "503s", "prompt", "hit rate", "completion",
    "ttft p50, s", "ttft p99, s", "call p99, s", "running", "waiting",
)  # fmt: skip


def _part(part: Part, form: str) -> Sequence[str]:
    return [
        utc(part.begin_s, form),
        *(f"{count:,}" for count in (part.calls, part.finished, part.refused, part.failed, part.unavailable)),
        f"{part.prompt_tokens:,}",
        _percent(part.hit_rate),
        f"{part.completion_tokens:,}",
        *(_number(value) for value in (part.ttft_p50_s, part.ttft_p99_s, part.e2e_p99_s)),
        *("-" if value is None else f"{value:,}" for value in (part.running_max, part.waiting_max)),
    ]


def _earlier(hours: Sequence[Part]) -> str:
    num_earlier = len(hours) - MAX_HOURS
    return f"({num_earlier} earlier hours since {utc(hours[0].begin_s)}: --json has them)" if num_earlier > 0 else ""


def _slowest(lines: Sequence[RequestLine]) -> str:
    if not lines:
        return ""
    rows = [
        [
            utc(line.at_s),
            line.id or "-",
            line.route,
            f"{'-' if line.status is None else line.status} {line.cause or line.outcome}",
            *(f"{count:,}" for count in (line.prompt_tokens, _cached(line), line.completion_tokens)),
            *(_number(value) for value in (_queue_s(line), line.first_token_s, line.ended_s)),
        ]
        for line in lines
    ]
    heads = [
        "slowest (UTC)",
        "id",
        "route",
        "ended",
        "prompt",
        "cached",
        "completion",
        "queue, s",
        "ttft, s",
        "call, s",
    ]
    return _table([heads, *rows], num_left=4)


def _cached(line: RequestLine) -> int:
    return line.cached_device_tokens + line.cached_host_tokens


def _queue_s(line: RequestLine) -> float | None:
    return None if line.admitted_s is None or line.submitted_s is None else line.admitted_s - line.submitted_s


def _table(rows: Rows, num_left: int = 1) -> str:
    """Return rows as aligned columns, the first num_left of them by their left ends."""
    table: list[list[str]] = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def _percent_of(part: int, whole: int) -> str:
    return _percent(part / whole) if whole else "-"
