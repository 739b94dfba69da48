import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import InvalidRequest
from stages.ingress.body import MAX_DEPTH, check_media_type, parse_object


def nested(depth: int, inner: str = "1") -> bytes:
    """An object whose containers nest `depth` deep."""
    return ('{"a":' + "[" * (depth - 1) + inner + "]" * (depth - 1) + "}").encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"null",
        b"7",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": "\xff\xfe"}',
        b'\xff\xfe{"a": 1}',
        b'{"a": 1} trailing',
        b"{'a': 1}",
        b'{"a": "\\ud800"}',
        b'{"a": 1,}',
        nested(MAX_DEPTH + 1),
        nested(1000),
        nested(200_000),
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_one_sane_json_object_is_an_invalid_request(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(data)
    assert caught.value.status == 400
    assert len(caught.value.message) < 300


def test_the_deepest_allowed_body_passes_and_one_deeper_does_not() -> None:
    assert parse_object(nested(MAX_DEPTH))
    with pytest.raises(InvalidRequest, match="128 levels"):
        parse_object(nested(MAX_DEPTH + 1))


def test_many_shallow_containers_are_not_deep() -> None:
    body = {"messages": [{"content": [{"text": "{[{["}]}] * 500}
    assert parse_object(json.dumps(body).encode()) == body


def test_the_last_of_two_equal_keys_wins() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_every_json_object_comes_through_unchanged(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value


@given(st.binary())
def test_random_bytes_are_an_object_or_an_invalid_request(data: bytes) -> None:
    with suppress(InvalidRequest):
        assert isinstance(parse_object(data), dict)


@pytest.mark.parametrize("value", ["application/json", "Application/JSON; charset=utf-8", " application/json ;x=y"])
def test_json_media_types_pass(value: str) -> None:
    check_media_type(value)


@pytest.mark.parametrize("value", ["", "text/plain", "application/jsonp", "application/x-www-form-urlencoded"])
def test_other_media_types_are_named_as_unsupported(value: str) -> None:
    with pytest.raises(InvalidRequest, match="Unsupported Media Type: Only 'application/json' is allowed"):
        check_media_type(value)
