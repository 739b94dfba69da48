"""Connections end when they should, and nothing a client does to one reaches the others; real sockets, real time.

One test a row of what was found wrong, or had to stay right, in hypercorn 0.18 with quart-trio 0.12.
"""

import random
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata

import pytest
import trio
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Request

from stages.errors import StartupError
from stages.ingress import hardening
from stages.ingress.app import App, GenerationResponse
from stages.ingress.hardening import install
from stages.ingress.wire import SSE_HEADERS, Wire
from stages.messages import Delta, Ended, Finish, Submit, Usage
from tests.fakes import Step, counting, silent
from tests.stages.ingress.http import Client, Running, alive, ask, connected, eventually, post_bytes, running

HELLO = {"prompts": ["hi"]}
STREAM = {"prompts": ["hi"], "stream": True}
WEBSOCKET_UPGRADE = (
    b"GET /text HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


def num_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def cancelled_within(server: Running, within_s: float = 15.0) -> None:
    await eventually(lambda: len(server.engine.cancelled) == 1 and not server.engine.running, within_s)


async def reset(client: Client) -> None:
    """Close with a reset instead of an orderly end."""
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(client.stream)


# --- a client that leaves ---------------------------------------------------------------------------------------------


async def test_leaving_a_stream_that_waits_cancels_it() -> None:
    async with running(silent) as server:
        async with connected(server.port) as client:
            await client.post("/text", STREAM)
            await client.until(b"data: start\n\n")
        await cancelled_within(server)


async def test_leaving_a_stream_that_writes_cancels_it() -> None:
    async with running(counting(4000, 0.0005)) as server:
        async with connected(server.port) as client:
            await client.post("/text", {**STREAM, "max_tokens": 4000})
            await client.until(b"data: 0/0 20 \n\n")
        await cancelled_within(server)


async def test_resetting_a_stream_cancels_it() -> None:
    async with running(counting(4000, 0.0005)) as server, connected(server.port) as client:
        await client.post("/text", {**STREAM, "max_tokens": 4000})
        await client.until(b"data: start\n\n")
        await reset(client)
        await cancelled_within(server)


async def test_leaving_a_call_that_is_not_streamed_cancels_it() -> None:
    async with running(silent) as server:
        async with connected(server.port) as client:
            await client.post("/text", {"prompts": ["a", "b"], "n": 2})
            await eventually(lambda: len(server.engine.running) == 4)
        await eventually(lambda: len(server.engine.cancelled) == 2 and not server.engine.running)


@pytest.mark.parametrize("offer", [b"h2c", b"websocket", b"anything"])
async def test_leaving_a_call_that_offered_an_upgrade_cancels_it(offer: bytes) -> None:
    body = b'{"prompts": ["a"]}'
    head = b"POST /text HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABk\r\n"
    head += b"upgrade: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (offer, len(body))
    async with running(silent) as server:
        async with connected(server.port) as client:
            await client.send(head + body)
            await eventually(lambda: bool(server.engine.running))
        await cancelled_within(server)


async def test_half_closing_after_the_request_counts_as_leaving() -> None:
    async with running(silent) as server, connected(server.port) as client:
        await client.post("/text", HELLO)
        await eventually(lambda: bool(server.engine.running))
        await client.stream.send_eof()
        await cancelled_within(server)


async def test_bytes_behind_a_running_request_hide_a_disconnect_until_its_deadline() -> None:
    async with running(silent, request_timeout_s=0.3) as server:
        before = num_tasks()
        async with connected(server.port) as client:
            await client.post("/text", HELLO)
            await client.send(b"GET")
            await eventually(lambda: bool(server.engine.running))
        await cancelled_within(server)
        await eventually(lambda: num_tasks() == before)


async def test_two_hundred_departures_at_once_leave_no_task_behind() -> None:
    async with running(silent) as server:
        before = num_tasks()
        clients = [await trio.open_tcp_stream("127.0.0.1", server.port) for _ in range(200)]
        try:
            for client in clients:
                await client.send_all(post_bytes("/text", STREAM))
            await eventually(lambda: len(server.engine.running) == 200)
        finally:
            for client in clients:
                await trio.aclose_forcefully(client)
        await eventually(lambda: num_tasks() == before and not server.engine.running)
        assert server.app.serving.live_ids == set()


# --- connections that must close --------------------------------------------------------------------------------------


async def closes(client: Client, within_s: float = 15.0) -> bytes:
    with trio.fail_after(within_s):
        return await client.to_end()


async def test_an_idle_kept_connection_is_closed_at_the_timeout_every_time() -> None:
    async with running(counting(1, 0), keep_alive_timeout_s=0.2) as server:
        before = num_tasks()
        async with trio.open_nursery() as nursery:

            async def one(body: object) -> None:
                async with connected(server.port) as client:
                    await client.post("/text", body)
                    assert (await client.reply()).status == 200
                    assert await closes(client) == b""

            for index in range(50):
                nursery.start_soon(one, HELLO if index % 2 else STREAM)
        await eventually(lambda: num_tasks() == before)


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_connection_close_closes_after_the_answer(body: object) -> None:
    async with running(counting(2, 0)) as server:
        before = num_tasks()
        for _ in range(20):
            async with connected(server.port) as client:
                await client.post("/text", body, ["connection: close"])
                assert (await client.reply()).complete
                assert await closes(client) == b""
        await eventually(lambda: num_tasks() == before)


async def test_connection_close_with_bytes_behind_it_closes_and_leaves_no_reader() -> None:
    async with running(counting(2, 0)) as server:
        before = num_tasks()
        async with connected(server.port) as client:
            await client.send(post_bytes("/text", HELLO, ["connection: close"]) + post_bytes("/text", HELLO))
            await closes(client)
            await eventually(lambda: num_tasks() == before)


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_http_1_0_gets_a_plain_body_and_a_closed_connection(body: object) -> None:
    async with running(counting(2, 0.001)) as server, connected(server.port) as client:
        await client.post("/text", body, version="1.0")
        reply = await client.reply()
        assert reply.status == 200
        assert "transfer-encoding" not in reply.headers
        assert reply.body.endswith(b'{"texts":["0 1 "]}' if body is HELLO else b"data: [DONE]\n\n")
        assert await closes(client) == b""


@pytest.mark.parametrize("path", ["/text", "/nowhere"])
async def test_a_refusal_reaches_a_client_that_is_still_sending_then_the_connection_closes(path: str) -> None:
    async with running(silent, max_request_bytes=1000) as server:
        before = num_tasks()
        for _ in range(10):
            async with connected(server.port) as client:
                head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                await client.send(head.encode() + b"content-length: 5000000\r\n\r\n")
                for _ in range(30):
                    await client.send(b" " * 100_000)
                reply = await client.reply()
                assert reply.status == (413 if path == "/text" else 404)
                await closes(client)
        await eventually(lambda: num_tasks() == before)


async def test_a_refused_client_that_never_stops_sending_is_cut_off() -> None:
    async with running(silent, max_request_bytes=1000) as server, connected(server.port) as client:
        await client.send(b"POST /text HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        await client.send(b"content-length: 50000000000\r\n\r\n")

        async def send_for_ever() -> None:
            while True:
                await client.send(b" " * 10_000)
                await trio.sleep(0.001)

        with trio.fail_after(15), pytest.raises(trio.BrokenResourceError):
            await send_for_ever()


async def test_a_body_over_the_limit_is_a_413_that_names_the_flag_whether_declared_or_chunked() -> None:
    async with running(silent, max_request_bytes=1000) as server:
        reply = await ask(server.port, "/text", b" " * 1001)
        assert (reply.status, reply.headers["content-type"]) == (413, "application/json")
        assert "--max-request-bytes" in reply.json["error"]["message"]
        async with connected(server.port) as client:
            await client.send(b"POST /text HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
            await client.send(b"transfer-encoding: chunked\r\n\r\n" + b"190\r\n" + b" " * 400 + b"\r\n")
            await client.send((b"190\r\n" + b" " * 400 + b"\r\n") * 2)
            assert (await client.reply()).status == 413
        assert (await ask(server.port, "/text", b'{"prompts":[]' + b" " * 900)).status == 400


@pytest.mark.parametrize("start", [b"", b"POST /text HTTP/1.1\r\nhost:", b"\r\n"])
async def test_a_silent_or_slow_head_is_closed_at_the_keep_alive_timeout(start: bytes) -> None:
    async with running(silent, keep_alive_timeout_s=0.2) as server, connected(server.port) as client:
        await client.send(start)
        await closes(client)


async def test_a_slow_body_is_a_408() -> None:
    async with running(silent, body_timeout_s=0.2) as server, connected(server.port) as client:
        await client.send(post_bytes("/text", HELLO)[:-3])
        reply = await client.reply()
        assert reply.status == 408
        assert "within 0.2 s" in reply.json["error"]["message"]
        await closes(client)


async def test_a_head_that_never_ends_is_refused() -> None:
    async with running(silent) as server, connected(server.port) as client:
        await client.send(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        with trio.fail_after(15):
            for _ in range(20):
                await client.send(b"x-pad: " + b"a" * 2000 + b"\r\n")
            assert (await client.reply()).status == 431
            await client.to_end()


# --- streams that must not be cut -------------------------------------------------------------------------------------


async def test_quarts_response_timeout_is_off_and_would_not_cut_a_stream() -> None:
    def extend(app: App) -> None:
        assert app.config["RESPONSE_TIMEOUT"] is None
        app.config["RESPONSE_TIMEOUT"] = 0.05

    async with running(counting(10, 0.03), extend) as server:
        reply = await ask(server.port, "/text", STREAM)
        assert reply.complete
        assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_a_stream_outlives_the_keep_alive_timeout() -> None:
    async with running(counting(10, 0.05), keep_alive_timeout_s=0.1) as server:
        assert (await ask(server.port, "/text", STREAM)).body.endswith(b"data: [DONE]\n\n")


async def test_a_failure_in_a_stream_still_ends_the_chunked_body() -> None:
    def script(submit: Submit) -> Iterable[Step]:
        yield 0.01, Delta(0, (1,), "a")
        yield 0.01, Ended(0, Finish("error"), Usage(1, 1))

    async with running(script) as server:
        reply = await ask(server.port, "/text", STREAM)
        assert reply.complete
        assert reply.body.endswith(b"data: error Internal server error\n\ndata: [DONE]\n\n")


async def test_silence_is_broken_by_pings_on_the_wire() -> None:
    async with running(silent, sse_ping_s=0.05) as server, connected(server.port) as client:
        await client.post("/text", STREAM)
        await client.until(b": ping\n\n")
        await client.until(b": ping\n\n")


# --- a client that stops reading --------------------------------------------------------------------------------------


def flood(submit: Submit) -> Iterable[Step]:
    """Big pieces without end, far more than the socket buffers hold."""
    for _ in range(100_000):
        yield 0.001, Delta(0, (1,), "x" * 100_000)
    yield 0.0, Ended(0, Finish("length"), Usage(1, 1))


async def test_a_client_that_stops_reading_is_dropped_after_the_write_timeout() -> None:
    async with running(flood, write_timeout_s=0.3) as server:
        before = num_tasks()
        async with connected(server.port) as client:
            await client.post("/text", {**STREAM, "max_tokens": 4000})
            await client.until(b"data: start\n\n")
            await cancelled_within(server)
            await eventually(lambda: num_tasks() == before)
            assert await alive(server.port)


async def test_a_client_that_stops_reading_does_not_hold_up_a_shutdown() -> None:
    async with running(flood, write_timeout_s=0.5) as server, connected(server.port) as client:
        await client.post("/text", {**STREAM, "max_tokens": 4000})
        await trio.sleep(0.1)
        server.shutdown.set()
        with trio.fail_after(15):
            await server.stopped.wait()


async def test_a_client_that_reads_slowly_gets_every_byte() -> None:
    def script(submit: Submit) -> Iterable[Step]:
        for index in range(100):
            yield 0.0, Delta(0, (1,), f"{index}-" + "x" * 50_000)
        yield 0.0, Ended(0, Finish("length"), Usage(1, 1))

    async with running(script, write_timeout_s=2.0) as server, connected(server.port) as client:
        await client.post("/text", {**STREAM, "max_tokens": 4000})
        await trio.sleep(0.3)
        reply = await client.reply()
        assert reply.complete
        assert [reply.body.count(b"data: 0/0 %d-" % index) for index in range(100)] == [1] * 100
        assert reply.body.count(b"x") == 5_000_000


# --- one connection does not take the others down ---------------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"junk", b"\x81\x85", b"\xff" * 200, b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_websocket_handshake_followed_by_junk_drops_only_that_connection(junk: bytes) -> None:
    async with running(counting(5, 0.02), keep_alive_timeout_s=0.1) as server, trio.open_nursery() as nursery:
        replies = []

        async def bystander() -> None:
            replies.append(await ask(server.port, "/text", STREAM))

        nursery.start_soon(bystander)
        for _ in range(20):
            async with connected(server.port) as client:
                await client.send(WEBSOCKET_UPGRADE + junk)
                await closes(client)
        assert await alive(server.port)
        await eventually(lambda: bool(replies))
        assert replies[0].complete


async def test_garbage_truncation_and_resets_leave_a_server_that_serves() -> None:
    generator = random.Random(20260)
    wholes = [
        post_bytes("/text", HELLO),
        post_bytes("/text", STREAM),
        WEBSOCKET_UPGRADE,
        b"GET /health HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\nhttp2-settings: AAA\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /text HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]

    def mangled() -> bytes:
        data = bytearray(generator.choice(wholes))
        kind = generator.randrange(4)
        if kind == 0:
            return generator.randbytes(generator.randrange(1, 400))
        if kind == 1:
            return bytes(data[: generator.randrange(len(data))])
        if kind == 2:
            for _ in range(generator.randrange(1, 8)):
                data[generator.randrange(len(data))] = generator.randrange(256)
            return bytes(data)
        return bytes(data) + generator.randbytes(generator.randrange(1, 100))

    async with running(counting(3, 0.002), keep_alive_timeout_s=0.5) as server:
        before = num_tasks()
        for _ in range(500):
            client = Client(await trio.open_tcp_stream("127.0.0.1", server.port))
            with suppress(trio.BrokenResourceError), trio.move_on_after(generator.choice([0.0, 0.003])):
                await client.send(mangled())
                await client.more()
            if generator.random() < 0.5:
                await reset(client)
            else:
                await trio.aclose_forcefully(client.stream)
        assert (await ask(server.port, "/text", HELLO)).status == 200
        await eventually(lambda: num_tasks() == before and not server.engine.running)


async def test_an_exception_of_the_protocol_code_ends_only_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handle = hardening.DirectHTTPStream.handle

    async def broken(self: hardening.DirectHTTPStream, event: StreamEvent) -> None:
        if isinstance(event, Request) and event.raw_path == b"/trap":
            raise ZeroDivisionError("protocol bug")
        await handle(self, event)

    monkeypatch.setattr(hardening.DirectHTTPStream, "handle", broken)
    async with running(silent) as server, connected(server.port) as bystander:
        before = num_tasks()
        await bystander.post("/text", STREAM)
        await bystander.until(b"data: start\n\n")
        with_bystander = num_tasks()
        async with connected(server.port) as client:
            await client.send(b"GET /trap HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await closes(client) == b""
        await eventually(lambda: num_tasks() == with_bystander > before)
        assert await alive(server.port)
        assert "connection dropped: ZeroDivisionError('protocol bug')" in caplog.text


async def test_a_protocol_error_is_answered_and_the_connection_closed() -> None:
    async with running(silent) as server, connected(server.port) as client:
        await client.send(b"NOT HTTP AT ALL\r\n\r\n" + b"x" * 100_000)
        assert b" 400 " in await closes(client)


async def test_an_exception_group_in_a_handler_is_one_500() -> None:
    def extend(app: App) -> None:
        async def broken() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 10)
                raise ZeroDivisionError("inner")

        app.add_url_rule("/v1/broken", "broken", broken, methods=["GET"])

    async with running(silent, extend) as server, connected(server.port) as client:
        assert (await client.get("/v1/broken")).status == 500
        assert (await client.get("/health")).status == 200


async def test_a_handler_that_never_waits_does_not_starve_the_others() -> None:
    turns_of_others = 0
    turns_seen: list[int] = []

    async def busy(wire: Wire) -> None:
        await wire.start(200, SSE_HEADERS)
        first = turns_of_others
        for _ in range(256):
            await wire.write(b"data: x\n\n")
        turns_seen.append(turns_of_others - first)
        await wire.end()

    def extend(app: App) -> None:
        async def answer() -> GenerationResponse:
            return GenerationResponse(busy)

        app.add_url_rule("/busy", "busy", answer, methods=["GET"])

    async with running(silent, extend) as server, connected(server.port) as client, trio.open_nursery() as nursery:

        async def other() -> None:
            nonlocal turns_of_others
            while True:
                await trio.lowlevel.checkpoint()
                turns_of_others += 1

        nursery.start_soon(other)
        assert (await client.get("/busy")).body == b"data: x\n\n" * 256
        # The first and the last turn may fall outside the count: trio runs the tasks of one turn in any order.
        assert turns_seen[0] >= 256 // hardening.WRITES_BEFORE_YIELD - 2
        nursery.cancel_scope.cancel()


# --- shutdown ---------------------------------------------------------------------------------------------------------


async def refused(port: int) -> bool:
    try:
        async with connected(port):
            return False
    except OSError:
        return True


async def test_at_shutdown_new_connections_are_refused_and_running_streams_finish() -> None:
    async with running(counting(10, 0.03), drain_timeout_s=5.0) as server, connected(server.port) as client:
        await client.post("/text", STREAM)
        await client.until(b"data: 0/0 1 \n\n")
        server.shutdown.set()
        await trio.sleep(0.03)
        assert await refused(server.port)
        assert b"data: [DONE]" in await client.to_end()
        with trio.fail_after(8):
            await server.stopped.wait()


async def test_a_stream_that_outlasts_the_drain_gets_its_error_frame_and_terminator() -> None:
    async with running(silent, drain_timeout_s=0.1) as server, connected(server.port) as client:
        await client.post("/text", STREAM)
        await client.until(b"data: start\n\n")
        server.shutdown.set()
        rest = await client.to_end()
        assert b"data: error The server is shutting down.\n\ndata: [DONE]\n\n" in rest
        assert rest.endswith(b"0\r\n\r\n")
        await server.stopped.wait()
        assert len(server.engine.cancelled) == 1


async def test_an_idle_kept_connection_does_not_hold_up_a_shutdown() -> None:
    async with running(counting(1, 0), drain_timeout_s=10.0) as server, connected(server.port) as client:
        await client.post("/text", HELLO)
        await client.reply()
        server.shutdown.set()
        with trio.fail_after(8):
            await server.stopped.wait()


# --- what it rests on -------------------------------------------------------------------------------------------------


async def test_accepted_connections_do_not_delay_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    run = hardening.HardenedTCPServer.run

    async def spy(self: hardening.HardenedTCPServer) -> None:
        seen.append(self.stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await run(self)

    monkeypatch.setattr(hardening.HardenedTCPServer, "run", spy)
    async with running(silent) as server:
        assert await alive(server.port)
    assert seen == [1]


def test_other_versions_than_the_pinned_ones_are_refused_at_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    install()

    def newer(name: str) -> str:
        return "0.19.0" if name == "hypercorn" else metadata.version(name)

    monkeypatch.setattr(hardening, "version", newer)
    with pytest.raises(StartupError, match=r"hypercorn 0\.19\.0 .* hypercorn 0\.18\.0"):
        install()
