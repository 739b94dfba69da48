"""Whatever bytes a client sends, the engine behind sees one request a connection, whole or cut, and never another's.

The engine here reads as strictly as h11 does, and what it answers is as odd as what it is asked.
"""

import os
from typing import Any
from urllib.parse import unquote

import h11
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stages.errors import InvalidRequest
from stages.ingress.forwarding import HOP_BY_HOP, ForwardingRules, plain_path, response_headers
from tests.stages.ingress.engine_behind import Asked, proxied
from tests.stages.ingress.http import connected
from tests.stages.ingress.test_fuzz import HEADERS, LINES, METHODS, TARGETS, exchange

# More are run by hand.
NUM_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3"))
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
FRAMINGS = st.lists(
    st.sampled_from(
        [
            *(f"content-length: {value}" for value in ("0", "2", "4", "37", "2, 2", "2, 3", "0x2", "-2", " 2 ", "2;")),
            *(
                f"transfer-encoding: {value}"
                for value in ("chunked", "Chunked", "identity", "gzip, chunked", "chunked,")
            ),
            "transfer-encoding:\tchunked",
            "transfer-encoding : chunked",
            "transfer-encoding:\r\n chunked",
            "content-length:\r\n 4",
            "x: y\rcontent-length: 4",
            "x: y\ncontent-length: 4",
            "connection: content-length",
            "connection: transfer-encoding, host",
            "connection: close",
            "connection: keep-alive",
            "expect: 100-continue",
            "host: other",
        ]
    ),
    max_size=3,
)
BODIES = st.sampled_from(
    [
        b"",
        b"{}",
        SMUGGLED,
        b"0\r\n\r\n" + SMUGGLED,
        b"2\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
        b"2\r\n{}\r\n0\r\nx: y\r\n\r\n",
        b"2;a=b\r\n{}\r\n0\r\n\r\n",
        b"2\n{}\n0\n\n" + SMUGGLED,
        b"+2\r\n{}\r\n0\r\n\r\n",
        b"0x2\r\n{}\r\n0\r\n\r\n",
        b"2 \r\n{}\r\n0\r\n\r\n",
        b"ffffffffffffffff2\r\n{}\r\n0\r\n\r\n",
        b"-1\r\n{}",
    ]
)
PIECES = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 204 No\r\n", b"HTTP/1.1 304 No\r\n",
    b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 101 S\r\n", b"HTTP/1.1 999 X\r\n", b"HTTP/1.1 2 X\r\n",
    b"HTTP/2 200\r\n", b"content-length: 2\r\n", b"content-length: 3\r\n", b"content-length: x\r\n",
    b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip\r\n", b"connection: keep-alive, x-hop\r\n",
    b"x-hop: 1\r\n", b"set-cookie: a\r\n", b"x: \xff\r\n", b"x: a\r\n b\r\n", b": y\r\n", b"x\r\n", b"\r\n", b"ok",
    b"2\r\nok\r\n", b"0\r\n\r\n", b"zz\r\n", b"\x00", b"x: " + b"y" * 70_000 + b"\r\n",
]  # fmt: skip
BOUNDS: Any = settings(
    max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


def requests_in(data: bytes) -> tuple[int, bool]:
    """Return how many requests a strict server finds in what came, and whether the last is whole; raises for others."""
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    parser.receive_data(data)
    parser.receive_data(b"")
    count = 0
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            if "closed" not in str(error):
                raise AssertionError(data[:500]) from error
            return count, False
        if isinstance(event, h11.Request):
            count += 1
            assert not {name for name, _ in event.headers} & (HOP_BY_HOP - {b"transfer-encoding", b"connection"})
            names = [name for name, _ in event.headers]
            assert names.count(b"host") == 1
            assert (b"connection", b"close") in event.headers
            assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
        if isinstance(event, h11.EndOfMessage):
            assert parser.trailing_data[0] == b""
            return count, True
        if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
            return count, False


@given(st.data())
@BOUNDS
async def test_no_request_reaches_the_engine_as_two_or_as_another(data: st.DataObject) -> None:
    seen: list[bytes] = []

    async def answer(asked: Asked) -> None:
        raw = asked.raw
        await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        try:
            with trio.move_on_after(5):
                while piece := await asked.client.more():
                    raw += piece
        finally:
            seen.append(raw)

    async with proxied(answer, ForwardingRules(deny=()), within_s=300) as (server, behind):
        for _ in range(60):
            odd = data.draw(st.booleans())
            target = data.draw(TARGETS) if odd else "/x"
            head = [f"{data.draw(METHODS)} {target} {data.draw(LINES) if odd else 'HTTP/1.1'}", "host: x"]
            lines = [*head, *data.draw(FRAMINGS), *(data.draw(HEADERS) if odd else []), "", ""]
            request = "\r\n".join(lines).encode("latin-1") + data.draw(BODIES)
            for status in await exchange(server, request, ends=True):
                assert 200 <= status < 500 or status in (501, 505), (request[:300], status)
        proxy = server.app.proxy
        assert proxy is not None
        with trio.fail_after(20):
            await proxy.idle()
            while len(seen) < len(behind.asked):  # noqa: ASYNC110
                await trio.sleep(0.01)
    for raw in seen:
        count, _ = requests_in(raw)
        assert count <= 1


@given(st.data())
@BOUNDS
async def test_no_answer_of_an_engine_makes_the_server_fail_or_stops_another(data: st.DataObject) -> None:
    wires: list[bytes] = []

    async def answer(asked: Asked) -> None:
        if asked.target == "/endless":
            await asked.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                await asked.send(b"1\r\n.\r\n")
                await trio.sleep(0.01)
        await asked.send(wires[-1])

    async with proxied(answer, within_s=300) as (server, _), connected(server.port) as other:
        await other.send(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        await other.until(b"\r\n\r\n")
        for _ in range(40):
            parts = data.draw(st.lists(st.sampled_from(PIECES), max_size=7))
            wires.append(b"".join([PIECES[0]] * data.draw(st.booleans()) + parts))
            method = data.draw(st.sampled_from(["GET", "HEAD", "POST"]))
            request = f"{method} /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
            async with connected(server.port) as client:
                await client.send(request)
                with trio.fail_after(20):
                    raw = await client.to_end()
            assert raw.startswith(b"HTTP/1.1 "), (wires[-1][:300], raw[:100])
            parser = h11.Connection(h11.CLIENT)
            parser.send(h11.Request(method=method, target="/x", headers=[("host", "x")]))
            parser.send(h11.EndOfMessage())
            parser.receive_data(raw)
            event = parser.next_event()
            assert isinstance(event, h11.Response)
            assert b"x-hop" not in dict(event.headers) or b"x-hop" not in wires[-1].partition(b"connection")[2]
            other.buffer = b""
            await other.until(b"1\r\n.\r\n")


@given(st.text(alphabet="/.%2eEfF5c;\\ab", max_size=20))
@settings(max_examples=300, deadline=None)
def test_a_path_that_passes_means_the_same_decoded_once_more_or_once_less(text: str) -> None:
    try:
        plain = plain_path("/" + text)
    except InvalidRequest:
        return
    assert plain.startswith("/")
    assert not {".", ".."} & set(plain.split("/"))
    assert plain_path("/" + unquote("/" + text).lstrip("/")) == plain


@given(st.lists(st.tuples(st.sampled_from([b"a", b"connection", b"te", b"date", b"content-length"]), st.just(b"a, b"))))
def test_a_header_named_for_this_hop_never_passes(pairs: list[tuple[bytes, bytes]]) -> None:
    names = {name for name, _ in response_headers(tuple(pairs), ())}
    assert not names & {b"connection", b"te", b"date"}
    assert b"a" not in names or all(name != b"connection" for name, _ in pairs)
