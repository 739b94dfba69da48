"""Lines: what of a record is in them, that nobody's words are, and what a reader makes of strange ones."""

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.messages import Load
from stages.stats.prodlog.lines import (
    MAX_LINE_BYTES,
    EndLine,
    GaugesLine,
    Header,
    LostLine,
    RequestLine,
    Unknown,
    decode,
    encode,
    gauges_line,
    request_line,
)
from tests.stages.stats.prodlog.kit import AT_S, LOAD, RECORD


def hashed(request_id: str) -> str:
    return f"{len(request_id):016x}"


def test_a_request_has_its_counts_and_its_instants_since_it_arrived():
    table = json.loads(encode(request_line(RECORD, hashed), 3))

    assert table == {
        "kind": "request",
        "n": 3,
        "at_s": AT_S,
        "id": "000000000000000d",
        "route": "/v1/chat/completions",
        "dialect": "openai_chat",
        "is_streamed": True,
        "is_constrained": False,
        "num_choices": 1,
        "status": 200,
        "outcome": "stop",
        "parsed_s": 0.125,
        "prompt_ready_s": 0.25,
        "submitted_s": 0.25,
        "admitted_s": 0.5,
        "first_token_s": 1.0,
        "last_token_s": 3.0,
        "ended_s": 3.125,
        "prompt_tokens": 1000,
        "cached_device_tokens": 600,
        "cached_host_tokens": 200,
        "completion_tokens": 21,
        "reasoning_tokens": 7,
        "retractions": 1,
    }


def test_what_a_record_has_but_names_and_ids_is_all_in_its_line():
    left_out = {"request_id", "arrived_s", "arrived_unix_s", "model", "trace"}
    fields = {field.name for field in attrs.fields(type(RECORD))}

    assert fields - left_out == {field.name for field in attrs.fields(RequestLine)} - {"id", "at_s"}


def test_gauges_are_all_of_a_load():
    line = gauges_line(LOAD, AT_S)

    assert {field.name for field in attrs.fields(Load)} | {"at_s"} == {field.name for field in attrs.fields(GaugesLine)}
    assert attrs.asdict(line) == {"at_s": AT_S, **attrs.asdict(LOAD)}


@given(st.text(min_size=1))
def test_no_words_of_a_client_are_in_a_line(words: str):
    secret = f"a secret {words}"
    record = attrs.evolve(
        RECORD,
        request_id=secret,
        model=secret,
        trace=secret,
        route=secret,
        dialect=secret,
        outcome=secret,  # type: ignore[arg-type]
        cause=secret,  # type: ignore[arg-type]
    )

    text = encode(request_line(record, hashed), 1)

    assert b"secret" not in text
    assert json.loads(text)["route"] == "?"
    assert len(text) < MAX_LINE_BYTES


def test_the_longest_line_has_room_in_what_a_file_keeps_for_it():
    name = "x" * 64
    most = 2**53
    record = attrs.evolve(
        RECORD,
        route=name,
        dialect=name,
        outcome=name,  # type: ignore[arg-type]
        cause=name,  # type: ignore[arg-type]
        **{one.name: most for one in attrs.fields(type(RECORD)) if one.type in (int, "int")},
        **dict.fromkeys(("parsed_s", "first_token_s", "last_token_s", "ended_s"), 1e9 / 3),
    )

    assert len(encode(request_line(record, hashed), most)) < MAX_LINE_BYTES
    assert len(encode(gauges_line(Load(*[most] * 16), AT_S), most)) < MAX_LINE_BYTES


@pytest.mark.parametrize(
    "line",
    [
        Header(schema=1, at_s=AT_S, run="0000000a", file=1, role="serve", model="demo", version="1", pid=3),
        request_line(RECORD, hashed),
        RequestLine(),
        gauges_line(LOAD, AT_S),
        LostLine(at_s=AT_S, count=4),
        EndLine(at_s=AT_S, is_last=True),
    ],
    ids=lambda line: str(line.kind),
)
def test_every_line_reads_back_as_it_was(line: Any):
    assert decode(encode(line, 5)) == (line, 5, 0)


def test_fields_and_kinds_that_are_unknown_are_passed_over():
    assert decode(b'{"kind":"request","n":1,"status":200,"new_in_2030":{"a":[1]}}') == (RequestLine(status=200), 1, 0)
    assert decode(b'{"kind":"spans","n":2}') == (Unknown("spans"), 2, 0)
    assert decode(b"{}") == (Unknown("None"), None, 0)
    assert decode(b'{"kind":["request"]}')[0] == Unknown("['request']")


@pytest.mark.parametrize(
    "field",
    [
        '"prompt_tokens":"many"',
        '"prompt_tokens":-1',
        '"prompt_tokens":1.5',
        '"prompt_tokens":true',
        '"prompt_tokens":18446744073709551615',
        '"at_s":"now"',
        '"at_s":1e300',
        '"first_token_s":[1]',
        '"route":5',
        '"route":"\\u001b[2J"',
        f'"route":"{"x" * 300}"',
        '"is_streamed":1',
    ],
)
def test_a_field_with_an_impossible_value_is_counted_and_what_it_would_be_if_it_were_absent(field: str):
    assert decode(b'{"kind":"request",' + field.encode() + b"}") == (RequestLine(), None, 1)


@given(
    st.binary()
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda one: json.dumps(one).encode())
)
def test_what_is_no_object_is_a_value_error_and_nothing_else(raw: bytes):
    try:
        decode(raw)
    except ValueError:
        return
    assert isinstance(json.loads(raw), dict)
