"""A log in numbers, each against one that was counted by hand."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from stages.messages import Load
from stages.stats.prodlog.folder import log_files
from stages.stats.prodlog.journal import Item, LoadSeen
from stages.stats.prodlog.lines import Header, LostLine, RequestLine, encode
from stages.stats.prodlog.reader import read_log
from tests.stages.stats.prodlog.kit import AT_S, LOAD, journal, record
from trnrt.reporting.columns import Columns
from trnrt.reporting.summary import Downtime, Spread, Summary, summarize
from trnrt.reporting.text import to_json, to_text

HOUR_S = 3600
# AT_S is 22:13:20 of a day.
HOUR_BEGIN_S = int(AT_S) - 13 * 60 - 20


def summary_of(path: Path, num_slowest: int = 3) -> Summary:
    columns = Columns(num_slowest)
    return summarize(read_log(path, columns.take), columns)


def logged(path: Path, *items: Item) -> Summary:
    one = journal(path)
    one.write(deque(items))
    one.close()
    return summary_of(path)


def refused(number: float, cause: str, status: int) -> Any:
    never = dict.fromkeys(("prompt_ready_s", "submitted_s", "admitted_s", "first_token_s", "last_token_s"))
    counts = dict.fromkeys(("cached_device_tokens", "cached_host_tokens", "completion_tokens", "reasoning_tokens"), 0)
    return record(number, outcome="refused", status=status, cause=cause, ended_s=100.25, **never, **counts)


def test_counts_of_calls_and_tokens_are_sums(tmp_path: Path):
    one = logged(
        tmp_path,
        record(0),
        record(10, outcome="length", is_streamed=False, num_choices=2, is_constrained=True),
        record(20, outcome="disconnected", status=None, cause=None),
        refused(30, "queue_full", 503),
        refused(30, "queue_full", 503),
        refused(40, "draining", 503),
        refused(50, "invalid", 400),
        record(60, outcome="error", status=500, cause="engine_failed"),
    )

    assert (one.calls, one.streamed, one.constrained, one.choices) == (8, 7, 1, 9)
    assert one.by_outcome == {"refused": 4, "disconnected": 1, "error": 1, "length": 1, "stop": 1}
    assert one.by_cause == {
        "503 queue_full": 2,
        "- disconnected": 1,
        "400 invalid": 1,
        "500 engine_failed": 1,
        "503 draining": 1,
    }
    assert one.unavailable_by_cause == {"queue_full": 2, "draining": 1}
    assert one.by_route == {"/v1/chat/completions": 8}
    assert (one.prompt_tokens, one.completion_tokens, one.reasoning_tokens) == (4000, 84, 28)
    # Of the four that were let in: 600 and 200 of 1000 each; the refused never looked.
    assert (one.hit_rate, one.hit_rate_device, one.hit_rate_host) == (0.8, 0.6, 0.2)
    assert one.retractions == 8


def test_percentiles_are_of_those_that_have_the_value(tmp_path: Path):
    calls = [record(n, first_token_s=100.0 + n, last_token_s=110.0 + n, ended_s=200.0) for n in range(1, 11)]

    one = logged(tmp_path, *calls, refused(0, "invalid", 400))

    assert one.spreads["time to first token, s"] == Spread(count=10, p50=5.0, p90=9.0, p95=10.0, p99=10.0, max=10.0)
    assert one.spreads["time between tokens, s"] == Spread(count=10, p50=0.5, p90=0.5, p95=0.5, p99=0.5, max=0.5)
    assert one.spreads["wait in the queue, s"].p50 == 0.25
    assert one.spreads["until the prompt was made, s"].p50 == 0.25
    assert one.spreads["whole call, s"] == Spread(count=10, p50=100, p90=100, p95=100, p99=100, max=100)
    assert one.spreads["completion tokens"].max == 21


def test_time_between_tokens_is_of_one_choice_and_of_calls_with_two_tokens(tmp_path: Path):
    one = logged(tmp_path, record(0, num_choices=2, completion_tokens=22), record(1, completion_tokens=1))

    assert one.spreads["time between tokens, s"] == Spread(count=1, p50=0.2, p90=0.2, p95=0.2, p99=0.2, max=0.2)


def test_a_call_counts_in_the_hour_and_day_of_its_arrival(tmp_path: Path):
    next_day = HOUR_BEGIN_S + 2 * HOUR_S - AT_S
    loads = [LoadSeen(attrs.evolve(LOAD, running=4, waiting=9), AT_S), LoadSeen(LOAD, AT_S + 1)]

    one = logged(tmp_path, record(0), refused(60, "queue_full", 503), record(next_day - 1), record(next_day), *loads)

    assert [(part.begin_s, part.calls) for part in one.hours] == [
        (HOUR_BEGIN_S, 2),
        (HOUR_BEGIN_S + HOUR_S, 1),
        (HOUR_BEGIN_S + 2 * HOUR_S, 1),
    ]
    assert [(part.begin_s % 86_400, part.calls) for part in one.days] == [(0, 3), (0, 1)]
    first = one.hours[0]
    assert (first.finished, first.refused, first.failed, first.unavailable) == (1, 1, 0, 1)
    assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens, first.hit_rate) == (1000, 800, 21, 0.8)
    assert (first.ttft_p50_s, first.ttft_p99_s, first.e2e_p99_s) == (1.0, 1.0, 3.125)
    assert (first.running_max, first.waiting_max) == (4, 9)
    assert one.hours[1].running_max is None


def test_the_slowest_calls_are_told_by_how_long_they_took(tmp_path: Path):
    one = logged(tmp_path, *(record(n, ended_s=104.0 + n % 5) for n in range(10)))

    assert [(line.at_s - AT_S, line.ended_s) for line in one.slowest] == [(4, 8), (9, 8), (3, 7)]


def test_rates_are_over_the_time_from_the_first_line_to_the_last(tmp_path: Path):
    one = logged(tmp_path, record(0), record(96.875))

    assert (one.begin_s, one.end_s) == (AT_S, AT_S + 100)
    assert (one.calls_per_s, one.completion_tokens_per_s) == (0.02, 0.42)


def test_a_whole_log_says_so_and_a_broken_one_what_it_lacks(tmp_path: Path):
    whole = logged(tmp_path / "whole", record(0))
    assert "the log is whole" in to_text(whole)

    path = tmp_path / "broken"
    one = journal(path)
    one.write(deque([record(0), LostLine(at_s=AT_S, count=5), LostLine(at_s=AT_S, count=6, reason="stats"), record(3)]))
    (file,) = log_files(path)
    one.close()
    lines = file.read_bytes().splitlines(keepends=True)
    spoiled = lines[1].replace(b'"prompt_tokens":1000', b'"prompt_tokens":"x"')
    unknown = b'{"kind":"spans","n":6}\n'
    torn = lines[4][:50]
    file.write_bytes(b"".join([lines[0], spoiled, *lines[2:4], b"garbage\n", unknown, torn]))
    newer = encode(Header(schema=7, run="0000000b", at_s=AT_S + 100)) + encode(RequestLine(at_s=AT_S + 100), 1)
    (path / "prod-20231114T221500-0000000b-000001.jsonl").write_bytes(newer)

    broken = summary_of(path)

    seen = broken.integrity
    assert (seen.files, seen.runs, seen.runs_open, seen.runs_cut_short) == (2, 2, 0, 2)
    assert dict(seen.torn_lines) == {file.name: 50}
    assert (seen.unreadable_lines, seen.wrong_fields, seen.unknown_lines, seen.newer_files) == (1, 1, 1, 1)
    # Numbers 4 and 5 are not there, one of them as the unreadable line.
    assert seen.missing_lines == 1
    assert (seen.lost_lines, seen.lost_stats_records) == (5, 6)
    assert seen.downtimes == [Downtime(begin_s=AT_S + 3.125, end_s=AT_S + 100)]
    text = to_text(broken)
    for part in (
        f"torn: the last line of {file.name}, 50 bytes, was not written to its end and is left out",
        "2 processes never closed the log",
        "1 line cannot be read",
        "1 line missing between others",
        "5 lines lost while the disk failed",
        "6 records of any kind lost before the log",
        "1 file by a newer version",
        "no process wrote from 2023-11-14 22:13:23 to 2023-11-14 22:15:00, 1 min 37 s",
    ):
        assert part in text, part


def test_a_log_that_is_being_written_says_so(tmp_path: Path):
    one = journal(tmp_path)
    one.write(deque([record(0)]))

    seen = summary_of(tmp_path).integrity

    assert (seen.runs_open, seen.runs_cut_short) == (1, 0)
    assert "1 process writing it now" in to_text(summary_of(tmp_path))


def test_processes_side_by_side_leave_no_downtime_between_them(tmp_path: Path):
    for run, begin_s, end_s in (("0000000a", 0, 90), ("0000000b", 20, 50), ("0000000c", 80, 95)):
        one = journal(tmp_path, run=run)
        one.clock.now_s = AT_S + begin_s  # type: ignore[attr-defined]
        one.write(deque([record(begin_s), record(end_s)]))
        one.close()

    assert summary_of(tmp_path).integrity.downtimes == []


def test_json_is_all_of_it(tmp_path: Path):
    one = logged(tmp_path, record(0), LoadSeen(Load(*range(8)), AT_S))

    table = orjson.loads(to_json(one))

    assert set(table) == {field.name for field in attrs.fields(Summary)}
    assert table["hours"][0]["calls"] == 1
    assert table["spreads"]["time to first token, s"]["p50"] == 1.0


@pytest.mark.parametrize("lines", [b"", b"\0" * 100, b"{}\n", b'{"kind":"request","n":1}\n', b'{"kind":"gauges"}\n'])
def test_a_log_with_next_to_nothing_in_it_is_told_all_the_same(tmp_path: Path, lines: bytes):
    (tmp_path / "prod-20231114T221500-0000000b-000001.jsonl").write_bytes(lines)

    one = summary_of(tmp_path)

    assert "1 process never closed the log" in to_text(one)
    assert json.loads(to_json(one))["calls"] == lines.count(b"request")
