"""What nothing here answers goes to the engine as it came and comes back as it was, in pieces, both ways at once."""

import socket
from typing import Any, cast

import orjson
import pytest
import trio

from stages.ingress.forwarding import ForwardingRules
from stages.ingress.hardening import has_closed
from stages.ingress.proxy import STALLED_POLL_S, Body
from tests.stages.ingress.engine_behind import Asked, fine, proxied
from tests.stages.ingress.http import connected, eventually

MIB = 1 << 20


def lines(*parts: str) -> bytes:
    return "\r\n".join([*parts, "", ""]).encode("latin-1")


def echoing(*head: str) -> Any:
    async def answer(asked: Asked) -> None:
        body = await asked.body()
        await asked.send(lines("HTTP/1.1 200 OK", f"content-length: {len(body)}", *head) + body)

    return answer


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "QUERY"])
async def test_every_method_is_passed_on(method: str) -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        reply = await client.get("/some/where", method)
        assert (reply.status, reply.body, behind.asked[0].method) == (200, b"ok", method)


@pytest.mark.parametrize(
    "target",
    [
        "/a",
        "/a?",
        "/a?b=c&b=%20%zz",
        "/a%2Fb/%C3%A9",
        "//a//b",
        "/a;v=1?x=/../y",
        "/a/?q=a+b",
        "/xx?x",
        "/A/b.c~!$&'()*",
    ],
)
async def test_path_and_query_are_the_clients_own(target: str) -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        assert (await client.get(target)).status == 200
        # A query that is empty is none.
        assert behind.asked[0].target == target.removesuffix("?")


async def test_of_an_absolute_target_the_engine_gets_the_path() -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        assert (await client.get("http://elsewhere:99/a/b?c=d")).status == 200
        assert behind.asked[0].target == "/a/b?c=d"
        assert behind.asked[0].values("host") == [f"127.0.0.1:{behind.port}"]


async def test_what_the_application_owns_never_reaches_the_engine() -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        assert (await client.get("/v1/models")).json["object"] == "list"
        assert (await client.get("/v1/%6dodels")).json["object"] == "list"
        assert (await client.get("/v1/models", "DELETE")).status == 405
        assert (await client.get("/text")).status == 405
        assert behind.asked == []


async def test_headers_of_this_hop_are_left_out_of_a_request_and_all_others_passed() -> None:
    given = [
        "X-One: 1",
        "x-two: a",
        "x-two: b",
        "cookie: a=b; c=d",
        "authorization: Bearer theirs",
        "accept-encoding: br",
        "connection: keep-alive, X-Named",
        "x-named: z",
        "keep-alive: 5",
        "te: trailers",
        "trailer: x",
        "upgrade: websocket",
        "proxy-authorization: x",
        "proxy-connection: keep-alive",
    ]
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        assert (await client.get("/x", headers=given)).status == 200
        assert sorted(behind.asked[0].headers) == [
            ("accept-encoding", "br"),
            ("authorization", "Bearer theirs"),
            ("connection", "close"),
            ("cookie", "a=b; c=d"),
            ("host", f"127.0.0.1:{behind.port}"),
            ("x-one", "1"),
            ("x-two", "a"),
            ("x-two", "b"),
        ]


async def test_headers_of_this_hop_are_left_out_of_a_response_and_all_others_passed() -> None:
    async def answer(asked: Asked) -> None:
        head = ("HTTP/1.1 207 Odd", "set-cookie: a=1", "set-cookie: b=2", "X-Own: y", "connection: close, x-hop")
        hops = ("x-hop: 1", "keep-alive: timeout=5", "proxy-authenticate: Basic", "upgrade: h2c", "content-length: 2")
        await asked.send(lines(*head, *hops, "server: engine", "x-request-id: theirs") + b"ok")

    async with proxied(answer) as (server, _), connected(server.port) as client:
        await client.send(lines("GET /x HTTP/1.1", "host: x", "x-request-id: mine"))
        head = (await client.until(b"\r\n\r\n")).decode().lower().split("\r\n")
        assert head[0].startswith("http/1.1 207")
        given = [line for line in head[1:] if line and not line.startswith("date")]
        assert sorted(given) == [
            "content-length: 2",
            "server: engine",
            "set-cookie: a=1",
            "set-cookie: b=2",
            "x-own: y",
            "x-request-id: theirs",
        ]
        await client.until(b"ok")
        assert (await client.get("/y")).status == 207  # its connection stays open, whatever the engine said of its own


@pytest.mark.parametrize(("status", "extra"), [(307, ["location: /elsewhere"]), (404, []), (418, []), (503, [])])
async def test_any_status_comes_back_and_no_redirect_is_followed(status: int, extra: list[str]) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(lines(f"HTTP/1.1 {status} Because", "content-length: 1", *extra) + b"!")

    async with proxied(answer) as (server, behind), connected(server.port) as client:
        reply = await client.get("/x", "POST", ["content-length: 0"])
        assert (reply.status, reply.body, len(behind.asked)) == (status, b"!", 1)
        assert reply.headers.get("location") == ("/elsewhere" if extra else None)


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none(status: int) -> None:
    async def answer(asked: Asked) -> None:
        extra = ["content-length: 5"] if status == 304 else []
        await asked.send(lines(f"HTTP/1.1 {status} No", "etag: x", *extra))

    async with proxied(answer) as (server, _), connected(server.port) as client:
        for _ in range(2):
            await client.send(lines("GET /x HTTP/1.1", "host: x"))
            head = await client.until(b"\r\n\r\n")
            assert b" %d " % status in head
            assert b"etag: x" in head
            assert client.buffer == b""


@pytest.mark.parametrize("framing", ["content-length: 1234", "transfer-encoding: chunked"])
async def test_the_answer_to_head_has_the_head_alone(framing: str) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(lines("HTTP/1.1 200 OK", framing))

    async with proxied(answer) as (server, _), connected(server.port) as client:
        for _ in range(2):
            reply = await client.get("/x", "HEAD")
            assert reply.status == 200
            name, _, value = framing.partition(": ")
            assert reply.headers[name] == value


@pytest.mark.parametrize(
    ("head", "wire"),
    [
        (["content-length: 5"], b"hello"),
        (["transfer-encoding: chunked"], b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nx-trailer: 1\r\n\r\n"),
        ([], b"hello"),
        # Both framings: the coding counts, and no length is passed on.
        (["transfer-encoding: chunked", "content-length: 3"], b"5\r\nhello\r\n0\r\n\r\n"),
    ],
)
async def test_a_body_comes_back_however_it_was_framed(head: list[str], wire: bytes) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(lines("HTTP/1.1 100 Continue") + lines("HTTP/1.1 103 Early", "link: x"))
        await asked.send(lines("HTTP/1.1 200 OK", *head) + wire)

    async with proxied(answer) as (server, _), connected(server.port) as client:
        for _ in range(2):
            reply = await client.get("/x")
            assert (reply.status, reply.body, reply.complete) == (200, b"hello", True)
            assert "x-trailer" not in reply.headers


async def test_a_body_above_the_limit_of_owned_routes_and_its_answer_go_at_the_same_time() -> None:
    """The engine answers each MiB as it comes, and the client sends no more before it has read that."""

    async def answer(asked: Asked) -> None:
        await asked.send(lines("HTTP/1.1 200 OK", "transfer-encoding: chunked"))
        received = 0
        for count in range(1, 34):
            while received < count * MIB:
                size = int(await asked.client.until(b"\r\n"), 16)
                received += len(await asked.client.until(b"\r\n")) - 2
                assert 0 < size <= MIB
            await asked.send(b"2\r\nok\r\n")
        await asked.send(b"0\r\n\r\n")

    async with proxied(answer, max_request_bytes=MIB) as (server, _), connected(server.port) as client:
        await client.send(lines("POST /x HTTP/1.1", "host: x", "transfer-encoding: chunked"))
        await client.until(b"\r\n\r\n")  # the head is here before a byte of the body went
        for _ in range(33):
            await client.send(b"%x\r\n%b\r\n" % (MIB, b"x" * MIB))
            await client.until(b"ok")
        await client.send(b"0\r\n\r\n")
        await client.until(b"0\r\n\r\n")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_body_arrives_whole_with_the_clients_own_framing(chunked: bool) -> None:
    size = 33 * MIB
    seen: list[int] = []

    async def answer(asked: Asked) -> None:
        assert bool(asked.values("transfer-encoding")) == chunked
        assert asked.values("content-length") == ([] if chunked else [str(size)])
        seen.append(len(await asked.body()))
        await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with proxied(answer, max_request_bytes=MIB) as (server, _), connected(server.port) as client:
        framing = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
        await client.send(lines("POST /x HTTP/1.1", "host: x", framing))
        for _ in range(33):
            piece = b"y" * MIB
            await client.send(b"%x\r\n%b\r\n" % (MIB, piece) if chunked else piece)
        if chunked:
            await client.send(b"0\r\n\r\n")
        assert (await client.reply()).body == b"ok"
        assert seen == [size]


async def test_who_waits_for_a_100_gets_it_and_the_engine_is_not_asked_for_another() -> None:
    async with proxied(echoing()) as (server, behind), connected(server.port) as client:
        await client.send(lines("POST /x HTTP/1.1", "host: x", "content-length: 5", "expect: 100-continue"))
        assert b" 100 " in await client.until(b"\r\n\r\n")
        await client.send(b"hello")
        assert (await client.reply()).body == b"hello"
        assert behind.asked[0].values("expect") == []


async def test_an_answer_before_the_end_of_the_body_comes_through_and_ends_the_call() -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(lines("HTTP/1.1 413 Large", "content-length: 3", "connection: close") + b"big")

    async with proxied(answer) as (server, _), connected(server.port) as client:
        await client.send(lines("POST /x HTTP/1.1", "host: x", f"content-length: {MIB}") + b"x" * 70_000)
        reply = await client.reply()
        assert (reply.status, reply.body) == (413, b"big")
        await eventually(lambda: server.app.proxy is not None and server.app.proxy.num_running == 0)


async def test_an_engine_that_is_not_there_is_a_502_in_plain_text() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with proxied(fine, port=port) as (server, _), connected(server.port) as client:
        for body in (b"", b"hello"):
            await client.send(lines("POST /x HTTP/1.1", "host: x", f"content-length: {len(body)}") + body)
            reply = await client.reply()
            assert (reply.status, reply.headers["content-type"]) == (502, "text/plain; charset=utf-8")
            assert b"cannot connect" in reply.body


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_a_502_and_asked_for_only_once(wire: bytes) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(wire)

    async with proxied(answer) as (server, behind), connected(server.port) as client:
        assert (await client.get("/x")).status == 502
        assert behind.num_connections == 1


@pytest.mark.parametrize(
    ("head", "wire"),
    [
        ("content-length: 10", b"hello"),
        ("transfer-encoding: chunked", b"5\r\nhello\r\n"),
        ("transfer-encoding: chunked", b"5\r\nhello\r\nnonsense\r\n"),
    ],
)
async def test_an_answer_that_breaks_off_breaks_off(head: str, wire: bytes) -> None:
    async def answer(asked: Asked) -> None:
        await asked.send(lines("HTTP/1.1 200 OK", head) + wire)

    async with proxied(answer) as (server, _), connected(server.port) as client:
        reply = await client.get("/x")
        assert (reply.status, reply.body, reply.complete) == (200, b"hello", False)


async def test_a_client_that_leaves_is_told_to_the_engine_at_once() -> None:
    async def answer(asked: Asked) -> None:
        await asked.body()
        if asked.target == "/started":
            await asked.send(lines("HTTP/1.1 200 OK", "transfer-encoding: chunked") + b"1\r\na\r\n")
        await asked.gone()

    async with proxied(answer) as (server, behind):
        for index, target in enumerate(("/silent", "/started")):
            async with connected(server.port) as client:
                await client.post(target, b"{}")
                await eventually(lambda index=index: len(behind.asked) > index)  # type: ignore[misc]
                if target == "/started":
                    await client.until(b"1\r\na\r\n")
            with trio.fail_after(2):
                await behind.asked[index].closed.wait()


async def test_a_client_that_leaves_inside_of_its_body_is_told_too_and_its_body_is_not_ended() -> None:
    async def answer(asked: Asked) -> None:
        await asked.gone()

    async with proxied(answer) as (server, behind):
        for framing in ("content-length: 100", "transfer-encoding: chunked"):
            async with connected(server.port) as client:
                await client.send(lines("POST /x HTTP/1.1", "host: x", framing) + b"5\r\nhello\r\n")
                await eventually(lambda: bool(behind.asked))
            with trio.fail_after(2):
                await behind.asked[-1].closed.wait()


async def test_a_client_that_leaves_behind_a_body_that_nobody_reads_ends_the_call(autojump_clock: Any) -> None:
    """Its end cannot be read there: it stands behind what there is no room for."""

    class Wire:
        @property
        def has_left(self) -> bool:
            return trio.current_time() >= left_s

    class Stuck:
        async def write(self, piece: bytes) -> None:
            await trio.sleep_forever()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x", "more_body": True}

    left_s, connected_to = trio.current_time() + 7, trio.Event()
    connected_to.set()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            body = Body(receive, nursery.cancel_scope, cast(Any, Stuck()))
            nursery.start_soon(body.watch, Wire())
            nursery.start_soon(body.run, connected_to)
    assert trio.current_time() - left_s <= STALLED_POLL_S


async def test_a_connection_whose_client_has_closed_is_seen_without_reading(autojump_clock: Any) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1]) as client:
        server = await listeners[0].accept()
        await client.send_all(b"unread")
        seen = [has_closed(server.socket)]
    seen.append(has_closed(server.socket))
    await server.aclose()
    assert [*seen, has_closed(server.socket)] == [False, True, True]
    await listeners[0].aclose()


async def test_a_call_under_way_when_the_server_stops_is_told_so_or_broken_off() -> None:
    async def answer(asked: Asked) -> None:
        if asked.target == "/started":
            await asked.send(lines("HTTP/1.1 200 OK", "transfer-encoding: chunked") + b"1\r\na\r\n")
        await asked.gone()

    async with proxied(answer) as (server, behind):
        async with connected(server.port) as silent, connected(server.port) as started:
            await silent.send(lines("GET /silent HTTP/1.1", "host: x"))
            await started.send(lines("GET /started HTTP/1.1", "host: x"))
            await started.until(b"1\r\na\r\n")
            await eventually(lambda: len(behind.asked) == 2)
            server.shutdown.set()
            assert (await silent.reply()).status == 503
            assert b"0\r\n\r\n" not in await started.to_end()


# ---------------------------------------------------------------------------------------------------------------------
# What is not passed on, and keys
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_lines",
    [
        ["POST /x HTTP/1.1", "host: x", "content-length: 3", "content-length: 4"],
        ["POST /x HTTP/1.1", "host: x", "content-length: 3", "transfer-encoding: chunked"],
        ["POST /x HTTP/1.1", "host: x", "transfer-encoding: chunked", "transfer-encoding: chunked"],
        ["POST /x HTTP/1.1", "host: x", "transfer-encoding: xchunked"],
        ["POST /x HTTP/1.1", "host: x", "transfer-encoding: chunked, identity"],
        ["POST /x HTTP/1.1", "host: x", "transfer-encoding:\x0bchunked"],
        ["POST /x HTTP/1.1", "host: x", "content-length: +3"],
        ["POST /x HTTP/1.1", "host: x", "content-length : 3"],
        ["GET /x HTTP/1.1", "host: x", "bad\x00: y"],
        ["GET /x\x01 HTTP/1.1", "host: x"],
        ["GET x HTTP/1.1", "host: x"],
        ["GET ftp://x/y HTTP/1.1", "host: x"],
        ["OPTIONS * HTTP/1.1", "host: x"],
        ["CONNECT x:80 HTTP/1.1", "host: x"],
        ["TRACE /x HTTP/1.1", "host: x"],
        ["GET /a/../flush_cache HTTP/1.1", "host: x"],
        ["GET /a/%2e%2E/flush_cache HTTP/1.1", "host: x"],
        ["GET /%25252525252e HTTP/1.1", "host: x"],
        ["GET /x HTTP/1.1", "host: x", "host: y"],
    ],
)
async def test_what_two_servers_could_read_differently_is_refused(request_lines: list[str]) -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        await client.send(lines(*request_lines) + b"0\r\n\r\n")
        assert (await client.reply(has_body=False)).status in (400, 404, 405, 501)
        assert behind.asked == []


@pytest.mark.parametrize("target", ["/x", "/text"])
@pytest.mark.parametrize(
    "framings",
    [
        ["content-length: 4", "transfer-encoding: chunked"],
        ["transfer-encoding: chunked", "content-length: 40"],
        ["content-length: 4", "content-length: 5"],
        ["transfer-encoding: chunked", "transfer-encoding: chunked"],
        ["transfer-encoding: chunked, chunked"],
    ],
)
async def test_behind_a_body_whose_end_is_anyones_guess_nothing_is_read(framings: list[str], target: str) -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        tail = b"0\r\n\r\n" + lines("GET /smuggled HTTP/1.1", "host: x")
        await client.send(lines(f"POST {target} HTTP/1.1", "host: x", *framings) + tail)
        answer = await client.to_end()
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
        assert (answer.count(b"HTTP/1.1"), behind.asked) == (1, [])


async def test_a_folded_header_reaches_the_engine_on_one_line() -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        assert (await client.get("/x", headers=["x-folded: a\r\n b\r\n\tc"])).status == 200
        assert behind.asked[0].values("x-folded") == ["a b c"]


@pytest.mark.parametrize(
    "target", ["/start_profile", "//start_profile/", "/start%5Fprofile", "/start%255fprofile?x", "/start_profile;a=b"]
)
async def test_what_an_engine_is_run_by_is_passed_on_only_once_it_was_opened(target: str) -> None:
    async with proxied(fine) as (server, behind), connected(server.port) as client:
        reply = await client.get(target, "POST")
        assert (reply.status, behind.asked) == (403, [])
        assert b"--proxy-deny" in reply.body
    for rules in (ForwardingRules(deny=()), ForwardingRules(allow=("*", "/start_profile"))):
        async with proxied(fine, rules) as (server, behind), connected(server.port) as client:
            assert (await client.get(target, "POST")).status == 200


async def test_with_an_allow_list_nothing_else_is_passed_on() -> None:
    rules = ForwardingRules(allow=("/v2/*", "/metrics"))
    async with proxied(fine, rules) as (server, _), connected(server.port) as client:
        for target, status in (("/v2/a/b", 200), ("/metrics", 200), ("/metrics/x", 403), ("/x", 403)):
            assert (await client.get(target)).status == status


async def test_the_servers_own_key_stays_here_and_the_engines_goes_where_the_client_has_none() -> None:
    rules = ForwardingRules(engine_api_key="engine", own_keys=("ours",))
    cases = [
        (["authorization: Bearer ours"], [("authorization", "Bearer engine")]),
        (["x-api-key: ours"], [("authorization", "Bearer engine")]),
        (["x-api-key: ours", "authorization: Bearer theirs"], [("authorization", "Bearer theirs")]),
        (["authorization: bearer ours", "x-api-key: theirs"], [("x-api-key", "theirs")]),
    ]
    async with proxied(fine, rules, api_key="ours") as (server, behind), connected(server.port) as client:
        for given, expected in cases:
            assert (await client.get("/x", headers=given)).status == 200
            sent = [pair for pair in behind.asked[-1].headers if pair[0] in ("authorization", "x-api-key")]
            assert sent == expected
        count = len(behind.asked)
        refused = await client.get("/x")
        assert (refused.status, len(behind.asked)) == (401, count)
        assert orjson.loads(refused.body)
        # Let in without a key, sent on without one.
        for target, method in (("/health_x", "GET"), ("/x", "OPTIONS")):
            assert (await client.get(target, method)).status == 200
            assert behind.asked[-1].values("authorization") == []


async def test_admin_routes_that_are_passed_on_need_the_admin_key_where_there_is_one() -> None:
    rules = ForwardingRules(allow=("*", "/start_profile"), own_keys=("ours", "boss"))
    async with (
        proxied(fine, rules, api_key="ours", admin_api_key="boss") as (server, behind),
        connected(server.port) as client,
    ):
        for target in ("/start_profile", "//start_profile/"):
            assert (await client.get(target, "POST", ["x-api-key: ours"])).status == 401
            assert (await client.get(target, "POST", ["x-api-key: boss"])).status == 200
        assert (await client.get("/stop_profile", "POST", ["x-api-key: boss"])).status == 403
        assert [asked.values("x-api-key") for asked in behind.asked] == [[], []]
