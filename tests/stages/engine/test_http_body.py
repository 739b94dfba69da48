"""Bodies come out the same however the bytes were cut, and an end too early is told from an end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.engine.http_body import ChunkedBody, LengthBody, body_of
from stages.errors import RemoteFailure

CHUNKED = b"5\r\nhello\r\n1;name=value\r\n,\r\n0006\r\n world\r\n0\r\nTrailer: x\r\n\r\n"


@given(st.lists(st.integers(0, len(CHUNKED))))
def test_a_chunked_body_is_the_same_for_every_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(CHUNKED)]
    body = ChunkedBody()
    text = b"".join(body.feed(CHUNKED[start:end]) for start, end in itertools.pairwise(places))
    assert (text, body.is_done) == (b"hello, world", True)


def test_a_chunked_body_is_done_with_its_last_byte_and_no_earlier() -> None:
    for size in range(len(CHUNKED)):
        body = ChunkedBody()
        body.feed(CHUNKED[:size])
        assert not body.is_done
        with pytest.raises(RemoteFailure, match="ended inside the body"):
            body.end()


@pytest.mark.parametrize("wire", [b"zz\r\n", b"\r\n", b"-5\r\n", b"5 5\r\n", b"f" * 16 + b"\r\n", b"1" * 2000])
def test_what_is_no_chunk_size_is_refused(wire: bytes) -> None:
    with pytest.raises(RemoteFailure, match="without a size"):
        ChunkedBody().feed(wire)


def test_trailers_without_an_end_are_refused() -> None:
    body = ChunkedBody()
    body.feed(b"0\r\n")
    with pytest.raises(RemoteFailure, match="trailers"):
        body.feed(b"x: yz\r\n" * 4000)


def test_a_body_of_a_length_ends_with_it() -> None:
    body = LengthBody(5)
    assert (body.feed(b"abc"), body.is_done) == (b"abc", False)
    with pytest.raises(RemoteFailure):
        body.end()
    assert (body.feed(b"defg"), body.is_done) == (b"de", True)


@pytest.mark.parametrize(
    ("status", "headers", "wire", "text"),
    [
        (200, [(b"transfer-encoding", b"Chunked")], b"1\r\na\r\n0\r\n\r\n", b"a"),
        (200, [(b"content-length", b"2")], b"ab", b"ab"),
        (204, [], b"", b""),
    ],
)
def test_the_head_tells_how_the_body_ends(
    status: int, headers: list[tuple[bytes, bytes]], wire: bytes, text: bytes
) -> None:
    body = body_of(status, headers)
    assert (body.feed(wire), body.is_done) == (text, True)


def test_a_body_of_no_length_ends_with_the_connection() -> None:
    body = body_of(200, [])
    assert (body.feed(b"abc"), body.is_done) == (b"abc", False)
    body.end()
    assert body.is_done


def test_what_came_before_a_bad_chunk_counts() -> None:
    body = ChunkedBody()
    assert body.feed(b"2\r\nab\r\nzz\r\n") == b"ab"
    assert body.failure is not None
    with pytest.raises(RemoteFailure, match="without a size"):
        body.feed(b"2")
