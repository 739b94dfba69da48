"""Events come out the same however the bytes were cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.engine.sse import EventReader
from stages.errors import RemoteFailure

STREAM = (
    b'data: {"a": 1}\n\n: a comment\r\n\r\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\nid: 7\n\ndata: \n\ndata\n\n'
    b"data: \xff\xfe\r\n\ndata: [DONE]\n\r\ndata: cut off"
)
EVENTS = [b'{"a": 1}', b"two\nlines", b"", b"", b"\xff\xfe", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_for_every_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader(1000)
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_every_cut_in_two_gives_the_same_events() -> None:
    for cut in range(len(STREAM)):
        reader = EventReader(1000)
        assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) == EVENTS


@pytest.mark.parametrize(
    "line", [b"x" * 30, b"data: aaaaaaaaaaaaaaaaaaaa\ndata: bbbbbbbbbbbbbbbbb\n", b"data: " + b"x" * 300]
)
def test_an_event_larger_than_the_limit_is_refused(line: bytes) -> None:
    reader = EventReader(20)
    with pytest.raises(RemoteFailure, match="more than 20 bytes"):
        [reader.feed(bytes([byte])) for byte in line]
