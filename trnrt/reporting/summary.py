"""A log in numbers. Core.

Hours and days are UTC, and a call counts where it arrived. Percentiles are values that so many percent do not exceed.
What is not of all calls is of the same ones as in /v1/stats: tokens, whole times and sizes of all but those refused,
hit rates of those that came to a place on the device.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from stages.stats.prodlog.lines import RequestLine
from stages.stats.prodlog.reader import FileRead, LogRead
from trnrt.reporting.columns import ABSENT, Columns, Floats, Ints

PERCENTILES = (50, 90, 95, 99)
HOUR_S, DAY_S = 3600, 86_400
FINISHED = ("stop", "length", "tool_calls")
LEFT = ("disconnected", "abort")
DIGITS = 6

Mask = npt.NDArray[np.bool_]


@frozen(kw_only=True)
class Spread:
    """Percentiles of what `count` calls had; None where there were none."""

    count: int
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


@frozen(kw_only=True)
class Part:
    """What began in one hour or day, begin_s in Unix seconds."""

    begin_s: int
    calls: int
    finished: int
    refused: int
    failed: int
    unavailable: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    hit_rate: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    e2e_p99_s: float | None
    running_max: int | None
    waiting_max: int | None


@frozen(kw_only=True)
class Downtime:
    """From when to when no process wrote, in Unix seconds."""

    begin_s: float
    end_s: float


@frozen(kw_only=True)
class Integrity:
    """What is not in the log, or not as it was meant."""

    files: int
    bytes: int
    runs: int
    # Runs that are written now, and those that ended without saying so.
    runs_open: int
    runs_cut_short: int
    torn_lines: Mapping[str, int]
    unreadable_lines: int
    wrong_fields: int
    unknown_lines: int
    newer_files: int
    missing_lines: int
    lost_lines: int
    lost_stats_records: int
    downtimes: Sequence[Downtime]


@frozen(kw_only=True)
class Summary:
    """Everything that is printed."""

    begin_s: float | None
    end_s: float | None
    roles: Sequence[str]
    models: Sequence[str]
    integrity: Integrity
    calls: int
    streamed: int
    constrained: int
    choices: int
    by_outcome: Mapping[str, int]
    by_route: Mapping[str, int]
    # "503 queue_full" and the like, of all calls that did not end well.
    by_cause: Mapping[str, int]
    unavailable_by_cause: Mapping[str, int]
    prompt_tokens: int
    cached_device_tokens: int
    cached_host_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    retractions: int
    hit_rate: float | None
    hit_rate_device: float | None
    hit_rate_host: float | None
    calls_per_s: float | None
    completion_tokens_per_s: float | None
    spreads: Mapping[str, Spread]
    days: Sequence[Part]
    hours: Sequence[Part]
    slowest: Sequence[RequestLine]


def summarize(log: LogRead, columns: Columns) -> Summary:
    """Return the numbers of a log that was read into columns."""
    begin_s, end_s = _span(log.files)
    duration_s = (end_s - begin_s) if begin_s is not None and end_s is not None and end_s > begin_s else None
    counts = {name: int(columns.ints(name).sum()) for name in _SUMS}
    prompt_tokens, is_served = columns.ints("prompt_tokens"), ~kinds_of(columns)["refused"]
    prompt = int(prompt_tokens[looked_up(columns)].sum())
    cached = [int(columns.ints(f"cached_{tier}_tokens").sum()) for tier in ("device", "host")]
    calls = len(columns.at_s)
    return Summary(
        begin_s=begin_s,
        end_s=end_s,
        roles=sorted(set(columns.roles.values())),
        models=sorted(columns.models),
        integrity=_integrity(log, columns),
        calls=calls,
        streamed=counts["is_streamed"],
        constrained=counts["is_constrained"],
        choices=counts["num_choices"],
        by_outcome=_counted([columns.outcomes.words[one] for one in columns.outcome]),
        by_route=_counted([columns.routes.words[one] for one in columns.route]),
        by_cause=_counted(_failures(columns)),
        unavailable_by_cause=_counted(
            [
                _word(columns, cause)
                for cause, status in zip(columns.cause, columns.status, strict=True)
                if status == 503
            ]
        ),
        prompt_tokens=int(prompt_tokens[is_served].sum()),
        cached_device_tokens=counts["cached_device_tokens"],
        cached_host_tokens=counts["cached_host_tokens"],
        completion_tokens=counts["completion_tokens"],
        reasoning_tokens=counts["reasoning_tokens"],
        retractions=counts["retractions"],
        hit_rate=_share(sum(cached), prompt),
        hit_rate_device=_share(cached[0], prompt),
        hit_rate_host=_share(cached[1], prompt),
        calls_per_s=_per(calls, duration_s),
        completion_tokens_per_s=_per(counts["completion_tokens"], duration_s),
        spreads=_spreads(columns),
        days=parts(columns, DAY_S),
        hours=parts(columns, HOUR_S),
        slowest=columns.slowest,
    )


def looked_up(columns: Columns) -> Mask:
    """Return whose prompts were looked up in the cache; an engine behind a server shows it by a token."""
    return np.asarray(~(np.isnan(columns.floats("queue_s")) & np.isnan(columns.floats("ttft_s"))))


def parts(columns: Columns, length_s: int) -> list[Part]:
    """Return what arrived in each stretch of length_s in which something did."""
    keys = (columns.floats("at_s") // length_s).astype(np.int64)
    levels = _most(columns, length_s)
    kinds = kinds_of(columns)
    order = np.argsort(keys, kind="stable")
    found, firsts = np.unique(keys[order], return_index=True)
    return (
        [
            _part(columns, chosen, int(key) * length_s, kinds, levels.get(int(key)))
            for key, chosen in zip(found, np.split(order, firsts[1:]), strict=True)
        ]
        if len(found)
        else []
    )


def kinds_of(columns: Columns) -> dict[str, Mask]:
    """Return which calls finished, were refused (unavailable: with a 503), failed, and whose clients left."""
    outcome, status = columns.ints("outcome"), columns.ints("status")

    def among(words: Sequence[str]) -> Mask:
        numbers = [index for index, word in enumerate(columns.outcomes.words) if word in words]
        return np.asarray(np.isin(outcome, numbers))

    refused, finished, left = among(("refused",)), among(FINISHED), among(LEFT)
    failed = ~(refused | finished | left)
    return {"finished": finished, "refused": refused, "failed": failed, "left": left, "unavailable": status == 503}


def percentiles(values: Floats, percents: Sequence[int] = PERCENTILES) -> list[float | None]:
    """Return the percentiles of the values that are numbers; None where there are none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return [None] * len(percents)
    return [_rounded(float(value)) for value in np.percentile(known, percents, method="inverted_cdf")]


def _part(
    columns: Columns, chosen: Ints, begin_s: int, kinds: Mapping[str, Mask], levels: tuple[int, int] | None
) -> Part:
    served = chosen[~kinds["refused"][chosen]]
    prompt = int(columns.ints("prompt_tokens")[chosen[looked_up(columns)[chosen]]].sum())
    cached = sum(int(columns.ints(f"cached_{tier}_tokens")[chosen].sum()) for tier in ("device", "host"))
    ttft_p50_s, ttft_p99_s = percentiles(columns.floats("ttft_s")[chosen], (50, 99))
    return Part(
        begin_s=begin_s,
        calls=len(chosen),
        **{name: int(kinds[name][chosen].sum()) for name in ("finished", "refused", "failed", "unavailable")},
        prompt_tokens=int(columns.ints("prompt_tokens")[served].sum()),
        cached_tokens=cached,
        completion_tokens=int(columns.ints("completion_tokens")[chosen].sum()),
        hit_rate=_share(cached, prompt),
        ttft_p50_s=ttft_p50_s,
        ttft_p99_s=ttft_p99_s,
        e2e_p99_s=percentiles(columns.floats("ended_s")[served], (99,))[0],
        running_max=None if levels is None else levels[0],
        waiting_max=None if levels is None else levels[1],
    )


def _most(columns: Columns, length_s: int) -> dict[int, tuple[int, int]]:
    """Return the most that ran and waited in each stretch, of one process, as far as gauges were written in it."""
    most: dict[int, tuple[int, int]] = {}
    for _, line in columns.gauges:
        key = int(line.at_s // length_s)
        running, waiting = most.get(key, (0, 0))
        most[key] = (max(running, line.running), max(waiting, line.waiting))
    return most


def _spreads(columns: Columns) -> dict[str, Spread]:
    is_served = ~kinds_of(columns)["refused"]
    values: dict[str, Floats] = {
        "time to first token, s": columns.floats("ttft_s"),
        "time between tokens, s": columns.floats("token_s"),
        "whole call, s": columns.floats("ended_s")[is_served],
        "wait in the queue, s": columns.floats("queue_s"),
        "until the prompt was made, s": columns.floats("prompt_ready_s"),
        "prompt tokens": columns.ints("prompt_tokens")[is_served].astype(np.float64),
        "completion tokens": columns.ints("completion_tokens")[is_served].astype(np.float64),
    }
    return {name: _spread(one) for name, one in values.items()}


def _spread(values: Floats) -> Spread:
    known = values[~np.isnan(values)]
    p50, p90, p95, p99, most = percentiles(known, (*PERCENTILES, 100))
    return Spread(count=len(known), p50=p50, p90=p90, p95=p95, p99=p99, max=most)


def _failures(columns: Columns) -> list[str]:
    is_finished = kinds_of(columns)["finished"]
    return [
        f"{'-' if status == ABSENT else status} {_word(columns, cause, columns.outcomes.words[outcome])}"
        for status, cause, outcome, finished in zip(
            columns.status, columns.cause, columns.outcome, is_finished, strict=True
        )
        if not finished
    ]


def _word(columns: Columns, cause: int, otherwise: str = "unknown") -> str:
    return otherwise if cause == ABSENT else columns.causes.words[cause]


def _integrity(log: LogRead, columns: Columns) -> Integrity:
    files = log.files
    runs = {file.run for file in files}
    is_open = {file.run for file in files if file.ending == "open"}
    is_ended = {file.run for file in files if file.is_last}
    return Integrity(
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        runs=len(runs),
        runs_open=len(is_open),
        runs_cut_short=len(runs - is_open - is_ended),
        torn_lines={file.name: file.torn_bytes for file in files if file.torn_bytes},
        unreadable_lines=sum(file.num_unreadable for file in files),
        wrong_fields=sum(file.num_wrong_fields for file in files),
        unknown_lines=sum(file.num_unknown for file in files),
        newer_files=sum(file.is_newer for file in files),
        # What is unreadable leaves a gap in the numbers too.
        missing_lines=max(0, log.num_missing_between + sum(file.num_missing - file.num_unreadable for file in files)),
        lost_lines=columns.lost.get("queue", 0),
        lost_stats_records=columns.lost.get("stats", 0),
        downtimes=_downtimes(files),
    )


def _span(files: Sequence[FileRead]) -> tuple[float | None, float | None]:
    begins = [file.first_at_s for file in files if file.first_at_s is not None]
    ends = [file.last_at_s for file in files if file.last_at_s is not None]
    return min(begins, default=None), max([*begins, *ends], default=None)


def _downtimes(files: Sequence[FileRead]) -> list[Downtime]:
    """Return the time that no run covers, each from its first line to its last."""
    spans: dict[str, tuple[float, float]] = {}
    for file in files:
        if file.first_at_s is not None:
            begin_s, end_s = file.first_at_s, file.last_at_s or file.first_at_s
            known = spans.get(file.run, (begin_s, end_s))
            spans[file.run] = (min(known[0], begin_s), max(known[1], end_s))
    result: list[Downtime] = []
    covered_s: float | None = None
    for begin_s, end_s in sorted(spans.values()):
        if covered_s is not None and begin_s > covered_s:
            result.append(Downtime(begin_s=covered_s, end_s=begin_s))
        covered_s = end_s if covered_s is None else max(covered_s, end_s)
    return result


def _counted(words: Sequence[str]) -> dict[str, int]:
    """Return how often each word comes, the most frequent first."""
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _share(part: int, whole: int) -> float | None:
    return _rounded(part / whole) if whole else None


def _per(count: int, duration_s: float | None) -> float | None:
    return None if duration_s is None else _rounded(count / duration_s)


def _rounded(value: float) -> float:
    return round(value, DIGITS)


_SUMS = (
    "is_streamed",
    "is_constrained",
    "num_choices",
    "cached_device_tokens",
    "cached_host_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "retractions",
)
