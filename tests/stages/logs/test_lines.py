"""An entry is one line, whatever is in it; JSON reads back as it was."""

import json
import re
from traceback import TracebackException

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.logs.lines import TRACEBACK_BAR, Deferred, Entry, line_of, printable

# 2026-11-30 22:00:00.25 UTC
NOW_S = 1_796_076_000.25
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
# What ends a line or moves a cursor or turns text around, somewhere.
EVIL = "\n\r\x0b\x0c\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066\ufeff\ud800"


def entry(message: str = "hello", **more) -> Entry:
    return Entry(**{"created_s": NOW_S, "level": "INFO", "logger": "trnrt", "message": message, **more})


def text(given: Entry) -> str:
    return line_of(given, "text").decode()


def test_a_line_says_when_how_severe_for_whom_and_what():
    line = text(entry("done", request_id="r-1", fields={"status": 200, "took_s": 0.25, "who": "a b", "none": None}))
    stamp = STAMP.match(line)
    assert stamp is not None
    assert stamp[0].endswith(",250 ")
    assert line[stamp.end() :] == 'INFO [r-1] done status=200 took_s=0.25 who="a b"\n'


def test_a_line_of_a_library_names_its_logger_and_one_of_ours_does_not():
    assert " INFO urllib3.pool: hello\n" in text(entry(logger="urllib3.pool"))
    assert " INFO hello\n" in text(entry(logger="stages.prompt.stage"))


def test_a_json_line_has_the_same_as_members():
    fields = {"status": 200, "level": "forged", "sampling": {"top_k": 1}}
    told = json.loads(line_of(entry("done", request_id="r-1", fields=fields), "json"))
    assert told == {
        "time": "2026-11-30T22:00:00.250Z",
        "level": "info",
        "logger": "trnrt",
        "message": "done",
        "request_id": "r-1",
        "status": 200,
        "sampling": {"top_k": 1},
    }


def test_an_entry_may_have_a_form_of_its_own():
    assert json.loads(line_of(entry(format="json"), "text"))["message"] == "hello"
    assert STAMP.match(line_of(entry(format="text"), "json").decode())


@pytest.mark.parametrize("line_format", ["text", "json"])
@pytest.mark.parametrize("place", ["message", "request_id", "logger", "fields", "traceback"])
def test_nothing_in_an_entry_can_end_its_line_or_begin_another(line_format, place):
    forged = f"x{EVIL}2026-11-30 22:00:00,000 ERROR all is lost"
    value = {"fields": {"a": forged}, "traceback": TracebackException.from_exception(ValueError(forged))}.get(
        place, forged
    )
    line = line_of(entry(**{place: value}), line_format).decode()
    assert not set(line.replace("\n", "")) & set(EVIL)
    first, *others = line.removesuffix("\n").split("\n")
    assert all(other.startswith(TRACEBACK_BAR) for other in others)
    assert (len(others) > 0) == (place == "traceback" and line_format == "text")
    assert "all is lost" in line
    assert first


@given(st.text(st.characters(codec=None)), st.text())
def test_json_reads_back_whatever_was_said(message, request_id):
    line = line_of(entry(message, request_id=request_id), "json")
    told = json.loads(line)
    assert (told["message"], told["request_id"]) == (message, request_id)
    assert line.count(b"\n") == 1


@given(st.text(st.characters(codec=None), min_size=1), st.sampled_from([1, 5000]))
def test_a_long_text_is_written_in_pieces_that_read_back_as_it_was(piece, times):
    value = {"whole": piece * times * 20, "deferred": Deferred(10**6, lambda: [piece * times, {"n": 1, "none": None}])}
    told = json.loads(line_of(entry(fields=value, message=piece), "json"))
    assert told["whole"] == piece * times * 20
    assert told["deferred"] == [piece * times, {"n": 1, "none": None}]
    assert told["message"] == piece
    line = line_of(entry(fields=value), "text").decode()
    assert line.splitlines(keepends=True) == [line]


@given(st.text(st.characters(codec=None)))
def test_text_is_one_line_whatever_was_said(message):
    line = text(entry(message))
    assert line.splitlines(keepends=True) == [line]
    assert printable(message) in line


def test_a_traceback_stands_behind_bars():
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        line = text(entry(traceback=TracebackException.from_exception(error)))
    lines = line.splitlines()
    assert lines[1] == TRACEBACK_BAR + "Traceback (most recent call last):"
    assert lines[-2:] == [TRACEBACK_BAR + "ValueError: first", TRACEBACK_BAR + "second"]
    assert any('raise ValueError("first' in line for line in lines)
