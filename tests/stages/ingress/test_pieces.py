"""JSON read and written in pieces is what orjson reads and writes in one go, however it is cut."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.ingress.pieces import InvalidJson, NestedTooDeep, parse_in_pieces, write_in_pieces

TEXTS = st.text(st.sampled_from('ab"\\[]{},: \n\té世😀\x01'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**18) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)
JUNK = st.binary(max_size=2) | st.sampled_from([b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"1", b"[]", b"{}"])


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Draw a JSON text, or something near one."""
    spaced = draw(st.sampled_from([(",", ":"), (", ", " : ")]))
    ascii_only, indent = draw(st.booleans()), draw(st.sampled_from([None, 1]))
    text = json.dumps(draw(VALUES), ensure_ascii=ascii_only, indent=indent, separators=spaced).encode()
    for _ in range(draw(st.integers(0, 3))):
        at, size = draw(st.integers(0, len(text))), draw(st.integers(0, 2))
        text = text[:at] + draw(JUNK) + text[at + size :]
    return text


def outcome(data: bytes, piece_bytes: int) -> tuple[str, Any]:
    try:
        return "value", parse_in_pieces(data, 1000, piece_bytes)
    except InvalidJson:
        return "invalid", None


@given(texts(), st.sampled_from([1, 2, 5, 9, 17, 40]))
@settings(max_examples=1500, deadline=None)
def test_a_text_is_what_it_is_in_one_piece(data: bytes, piece_bytes: int) -> None:
    try:
        expected = ("value", orjson.loads(data))
    except orjson.JSONDecodeError:
        expected = ("invalid", None)
    assert repr(outcome(data, piece_bytes)) == repr(expected)


@pytest.mark.parametrize(
    "data",
    [
        b"[[1,2],[3,4]] 5",
        b"7 [[1,2],[3,4]]",
        b"[[1,2],[3,4],]",
        b"[,[1,2],[3,4]]",
        b"[[1,2],,[3,4]]",
        b"[[1,2] [3,4]]",
        b"[[1,2,3][4,5,6],7]",
        b"[1,2,3}",
        b'{"a":[1,2,3,4}}',
        b'{"a":1,"b":2,"c":3]',
        b"[[1,2},[3,4]]",
        b'{"a":1[1,2,3]}',
        b'{"a":[1,2,3]"b":[1,2,3]}',
        b'{[1,2,3]:"a"}',
        b'["a,[1,2,3]]',
        b'["a\\',
        b"[1,2,3",
        b"1,2",
        b"]",
        b"",
        b'{"a":[1,2,3]}}',
        b'["\xff",[1,2,3]]',
    ],
)
def test_what_is_wrong_between_pieces_is_refused(data: bytes) -> None:
    for piece_bytes in (1, 3, 6):
        assert outcome(data, piece_bytes)[0] == "invalid"


@pytest.mark.parametrize("piece_bytes", [1, 4, 1000])
def test_the_last_of_a_key_that_comes_twice_stands_in_the_place_of_the_first(piece_bytes: int) -> None:
    data = b'{"a":[1,2,3,4],"b":{"c":[1,2],"c":[3,[4,5]]},"a":9}'
    assert repr(parse_in_pieces(data, 9, piece_bytes)) == repr(orjson.loads(data))


def test_nesting_is_counted_in_every_kind_of_container() -> None:
    for inner in (b"[1]", b'{"a":1}', b"[]", b"[[],[]]"[1:-1]):
        data = b"[" * 7 + inner + b"]" * 7
        assert parse_in_pieces(data, 8, 2) == orjson.loads(data)
        with pytest.raises(NestedTooDeep):
            parse_in_pieces(data, 7, 2)


def test_no_call_of_the_parser_gets_more_than_some_pieces_but_for_a_long_string(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    loads = orjson.loads

    class Watched:
        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(data: bytes) -> Any:
            sizes.append(len(data))
            return loads(data)

    nested = b'{"a":' + (b"[" + b"1," * 400) * 90 + b"1" + b"]" * 90 + b"}"
    shapes = [
        orjson.dumps({"messages": [{"role": "user", "content": "x" * 60}] * 3000, "n": 1}),
        orjson.dumps({"messages": [{"content": [{"type": "text", "text": "x"}] * 5000}]}),
        orjson.dumps({"tokens": list(range(100_000))}),
        orjson.dumps({"tokens": [[7] * 450] * 500}),
        orjson.dumps({"x": [[], {}] * 50_000}),
        orjson.dumps({f"key {number}": {"a": [number]} for number in range(5000)}),
        orjson.dumps({"prompt": ["a\\b" * 50] * 3000}),
        nested,
    ]
    expected = [loads(data) for data in shapes]
    monkeypatch.setattr("stages.ingress.pieces.orjson", Watched)
    for data, value in zip(shapes, expected, strict=True):
        assert parse_in_pieces(data, 128, 1000) == value
    assert max(sizes) < 8000
    sizes.clear()
    text = b'{"a":[{"b":"' + b'x\\"y' * 20_000 + b'"},{"b":"c"}],"d":[1,2]}'
    assert parse_in_pieces(text, 128, 1000) == loads(text)
    assert len(sizes) > 1


@given(VALUES, st.sampled_from([1, 3, 20]))
@settings(max_examples=400, deadline=None)
def test_what_is_written_in_pieces_is_what_is_written_in_one(value: Any, num_items: int) -> None:
    assert b"".join(write_in_pieces(value, num_items)) == orjson.dumps(value)


def test_long_lists_are_written_in_parts_wherever_they_stand() -> None:
    token = {"token": "x", "logprob": -0.5, "top_logprobs": [{"token": "x"}] * 5}
    for value in (
        {"tokens": list(range(50_000)), "count": 50_000},
        {"tokens": [tuple(range(20_000))] * 3},
        {"choices": [{"index": 0, "logprobs": {"content": [token] * 10_000}}]},
    ):
        parts = list(write_in_pieces(value))
        assert b"".join(parts) == orjson.dumps(value)
        assert max(map(len, parts)) < 60_000
