"""What clients do to TLS connections, Unix sockets and by HTTP/2 ends with them; real sockets, real time."""

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from stages.messages import Delta, Ended, Finish, Submit, Usage
from tests.fakes import Step, counting, silent
from tests.stages.ingress.http import Client, Running, alive, connected, eventually, post_bytes, running

HERE = Path(__file__).parent
CERTIFICATE, KEY = str(HERE / "tls_certificate.pem"), str(HERE / "tls_key.pem")
TLS: dict[str, Any] = {"ssl_certfile": CERTIFICATE, "ssl_keyfile": KEY}
STREAM = {"prompts": ["hi"], "stream": True, "max_tokens": 4000}


@asynccontextmanager
async def secured(port: int, protocols: list[str] | None = None) -> AsyncIterator[Client]:
    """Give a TLS connection for the block."""
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    if protocols:
        trusted.set_alpn_protocols(protocols)
    plain = await trio.open_tcp_stream("127.0.0.1", port)
    stream = trio.SSLStream(plain, trusted, server_hostname="localhost", https_compatible=True)
    async with stream:
        await stream.do_handshake()
        yield Client(stream)  # type: ignore[arg-type]


async def tls_alive(port: int) -> bool:
    with trio.move_on_after(10):
        async with secured(port) as client:
            return (await client.get("/health")).status == 200
    return False


def num_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def transport(client: Client) -> trio.SocketStream:
    stream: Any = client.stream
    return stream.transport_stream  # type: ignore[no-any-return]


async def cancelled(server: Running) -> None:
    await eventually(lambda: len(server.engine.cancelled) == 1 and not server.engine.running)


def flood(submit: Submit) -> Iterable[Step]:
    """Big pieces without end, far more than the socket buffers hold."""
    for _ in range(100_000):
        yield 0.001, Delta(0, (1,), "x" * 100_000)
    yield 0.0, Ended(0, Finish("length"), Usage(1, 1))


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_tls_client_that_vanishes_cancels_its_stream_and_leaves_no_task(is_reset: bool) -> None:
    async with running(counting(4000, 0.0005), **TLS) as server:
        before = num_tasks()
        async with secured(server.port) as client:
            await client.post("/text", STREAM)
            await client.until(b"data: start\n\n")
            if is_reset:
                transport(client).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await trio.aclose_forcefully(transport(client))
        await cancelled(server)
        await eventually(lambda: num_tasks() == before)


async def test_a_tls_client_that_only_half_closes_has_left() -> None:
    async with running(silent, **TLS) as server, secured(server.port) as client:
        await client.post("/text", STREAM)
        await client.until(b"data: start\n\n")
        await transport(client).send_eof()
        await cancelled(server)


async def test_a_tls_client_that_stops_reading_is_dropped_after_the_write_timeout() -> None:
    async with running(flood, write_timeout_s=0.3, **TLS) as server:
        before = num_tasks()
        async with secured(server.port) as client:
            await client.post("/text", STREAM)
            await client.until(b"data: start\n\n")
            await cancelled(server)
            await eventually(lambda: num_tasks() == before)
            assert await tls_alive(server.port)


async def test_a_tls_client_that_stops_reading_does_not_hold_up_a_shutdown() -> None:
    async with running(flood, write_timeout_s=0.5, **TLS) as server, secured(server.port) as client:
        await client.post("/text", STREAM)
        await trio.sleep(0.1)
        server.shutdown.set()
        with trio.fail_after(8):
            await server.stopped.wait()


async def test_a_tls_stream_that_outlasts_the_drain_gets_its_error_frame_and_terminator() -> None:
    async with running(silent, drain_timeout_s=0.1, **TLS) as server, secured(server.port) as client:
        await client.post("/text", STREAM)
        await client.until(b"data: start\n\n")
        server.shutdown.set()
        rest = await client.to_end()
        assert b"data: [DONE]\n\n" in rest
        assert rest.endswith(b"0\r\n\r\n")
        with trio.fail_after(8):
            await server.stopped.wait()


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01"], ids=["silent", "begun"])
async def test_a_handshake_that_stalls_ends_at_the_keep_alive_timeout(start: bytes) -> None:
    async with running(silent, keep_alive_timeout_s=0.3, **TLS) as server:
        before = num_tasks()
        async with connected(server.port) as client:
            if start:
                await client.send(start)
            with trio.fail_after(8):
                assert await client.to_end() == b""
        await eventually(lambda: num_tasks() == before)


async def test_a_handshake_that_stalls_does_not_hold_up_a_shutdown() -> None:
    async with running(silent, drain_timeout_s=30.0, **TLS) as server, connected(server.port) as client:
        await client.send(b"\x16\x03\x01")
        await trio.sleep(0.05)
        server.shutdown.set()
        with trio.fail_after(8):
            await server.stopped.wait()


async def test_an_idle_tls_connection_does_not_hold_up_a_shutdown() -> None:
    async with running(counting(1, 0), drain_timeout_s=30.0, **TLS) as server, secured(server.port) as client:
        assert (await client.get("/health")).status == 200
        server.shutdown.set()
        with trio.fail_after(8):
            await server.stopped.wait()


async def test_a_silent_tls_connection_ends_at_the_keep_alive_timeout_and_leaves_no_task() -> None:
    async with running(silent, keep_alive_timeout_s=0.3, **TLS) as server:
        before = num_tasks()
        async with secured(server.port) as client:
            with trio.fail_after(8):
                assert await client.to_end() == b""
        await eventually(lambda: num_tasks() == before)


async def test_plain_http_and_junk_on_a_tls_port_end_only_their_connections() -> None:
    async with running(silent, **TLS) as server:
        before = num_tasks()
        for data in (
            b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
            b"\x00" * 1000,
            b"\x16\x03\x01\x02\x00" + b"\xff" * 512,
        ):
            async with connected(server.port) as client:
                await client.send(data)
                await client.to_end()
        assert await tls_alive(server.port)
        await eventually(lambda: num_tasks() == before)


async def test_the_end_of_an_http_1_0_stream_over_tls_is_told_and_so_is_no_truncation() -> None:
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    async with running(counting(3, 0.0), **TLS) as server:
        plain = await trio.open_tcp_stream("127.0.0.1", server.port)
        # Not https_compatible: an end without TLS's own goodbye is an error here, as it is for curl.
        async with trio.SSLStream(plain, trusted, server_hostname="localhost") as stream:
            client = Client(stream)  # type: ignore[arg-type]
            await client.post("/text", STREAM, version="1.0")
            received = b""
            while data := await client.more():
                received += data
        assert received.endswith(b"data: [DONE]\n\n")


async def test_a_refusal_over_tls_reaches_a_client_that_is_still_sending() -> None:
    async with running(silent, max_request_bytes=1000, **TLS) as server, secured(server.port) as client:
        head = post_bytes("/text", b"x" * 5_000_000)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await client.send(head)

            nursery.start_soon(send)
            assert (await client.reply()).status == 413


async def test_tls_offers_http_1_only() -> None:
    async with running(silent, **TLS) as server, secured(server.port, ["h2", "http/1.1"]) as client:
        stream: Any = client.stream
        assert stream.selected_alpn_protocol() == "http/1.1"
        assert (await client.get("/health")).status == 200


async def test_http_2_by_prior_knowledge_is_refused() -> None:
    async with running(silent) as server:
        before = num_tasks()
        async with connected(server.port) as client:
            await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            assert (await client.to_end()).startswith(b"HTTP/1.1 505 ")
        await eventually(lambda: num_tasks() == before)
        assert await alive(server.port)


async def test_an_offer_of_http_2_is_an_ordinary_request() -> None:
    head = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    async with running(silent) as server, connected(server.port) as client:
        await client.send(head + b"http2-settings: AAMAAABk\r\n\r\n")
        assert (await client.reply()).status == 200
        assert (await client.get("/health")).status == 200


async def test_a_unix_client_that_vanishes_or_stops_reading_is_cancelled(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with running(flood, write_timeout_s=0.3, unix_socket=path) as server:
        before = num_tasks()
        for is_stuck in (False, True):
            async with await trio.open_unix_socket(path) as stream:
                client = Client(stream)
                await client.post("/text", STREAM)
                await client.until(b"data: start\n\n")
                if is_stuck:
                    await eventually(lambda: len(server.engine.cancelled) == 2)
        await eventually(lambda: len(server.engine.cancelled) == 2 and not server.engine.running)
        await eventually(lambda: num_tasks() == before)
