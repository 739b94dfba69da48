"""Every way in which an engine fails, in every phase, as clients of the renderer see it, and clients that leave."""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
import trio
from attrs import frozen

from tests.fake_engine import STOP, Exchange, never
from tests.stages.ingress.http import Client, Reply, ask, connected, eventually
from tests.trnrt.render_kit import MESSAGES, Rendering, events, ids, rendering

PATHS = ("/v1/chat/completions", "/v1/completions")
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, **fields} if "chat" in path else {"prompt": "Hello", **fields}


def told(status: int, message: str) -> dict[str, Any]:
    kind = "InternalServerError" if status >= 500 else "BadRequestError"
    return {"error": {"object": "error", "message": message, "type": kind, "param": None, "code": status}}


@frozen
class Fault:
    """What the engine does, and what is heard of it."""

    name: str
    script: Callable[[Exchange], Awaitable[None]]
    status: int
    words: str
    flags: tuple[str, ...] = ()
    is_up: bool = True
    hangs: bool = False


def refusing(status: int, value: object, **headers: str) -> Callable[[Exchange], Awaitable[None]]:
    async def script(exchange: Exchange) -> None:
        await exchange.refuse(status, value, **headers)

    return script


def sending(data: bytes) -> Callable[[Exchange], Awaitable[None]]:
    async def script(exchange: Exchange) -> None:
        await exchange.stream.send_all(data)

    return script


async def no_answer(exchange: Exchange) -> None:
    """Close without a word."""


async def head_alone(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.gone()


async def error_first(exchange: Exchange) -> None:
    await exchange.frame({"error": {"message": "no room", "code": 503}})
    await exchange.done()


async def abort_first(exchange: Exchange) -> None:
    finish = {"type": "abort", "message": "the queue is full", "status_code": 503}
    await exchange.tokens([], 0, finish)
    await exchange.done()


JSON_ERROR = {"error": {"message": "in its words", "type": "x", "code": 1}}
AT_SUBMISSION = (
    *(Fault(f"{status}", refusing(status, JSON_ERROR), status, "in its words") for status in (400, 401, 404, 422, 503)),
    Fault("older shape", refusing(400, {"object": "error", "message": "in its words"}), 400, "in its words"),
    Fault("text", refusing(500, b"oh no"), 500, "engine returned HTTP 500"),
    Fault("empty", refusing(418, b""), 418, "engine returned HTTP 418"),
    Fault("redirect", refusing(307, b"", location="http://elsewhere/generate"), 502, "redirect"),
    Fault("refused", never, 503, "engine request failed: cannot connect", is_up=False),
    Fault("hangs", never, 504, "within 0.2 s", ("--engine-connect-timeout", "0.2"), hangs=True),
    Fault("closes", no_answer, 503, "without an answer"),
    Fault("half a head", sending(b"HTTP/1.1 200 OK\r\nconte"), 503, "inside the answer's head"),
    Fault("no HTTP", sending(b"SSH-2.0-x\r\n\r\n"), 503, "no HTTP/1.1 answer"),
    Fault("never", never, 504, "within 0.3 s", ("--engine-timeout", "0.3")),
    Fault("a head alone", head_alone, 504, "within 0.3 s", ("--engine-timeout", "0.3")),
    Fault("error frame first", error_first, 503, "no room"),
    Fault("abort first", abort_first, 503, "the queue is full"),
)


def after_two(rest: Callable[[Exchange], Awaitable[None]]) -> Callable[[Exchange], Awaitable[None]]:
    async def script(exchange: Exchange) -> None:
        for count, one in enumerate(ids("Good day")[:2], 1):
            await exchange.tokens([one], count)
        await rest(exchange)

    return script


async def error_frame(exchange: Exchange) -> None:
    await exchange.frame({"error": {"message": "lost the device", "code": 507}})
    await exchange.done()


async def error_without_code(exchange: Exchange) -> None:
    await exchange.frame({"error": {"message": "lost the device"}})
    await exchange.done()


async def aborted(exchange: Exchange) -> None:
    await exchange.tokens([], 2, {"type": "abort", "message": "thrown out", "status_code": 429})
    await exchange.done()


async def cut(exchange: Exchange) -> None:
    """Leave the connection to be closed inside of the body."""


async def early_done(exchange: Exchange) -> None:
    await exchange.done()


async def early_end(exchange: Exchange) -> None:
    await exchange.end()


async def no_json(exchange: Exchange) -> None:
    await exchange.send(b"data: {nonsense\n\n")
    await exchange.gone()


async def no_frame(exchange: Exchange) -> None:
    await exchange.frame([1, 2])
    await exchange.gone()


async def wrong_count(exchange: Exchange) -> None:
    await exchange.tokens([1, 2, 3, 4, 5], 4)
    await exchange.gone()


async def fewer(exchange: Exchange) -> None:
    await exchange.tokens([1], 1)
    await exchange.gone()


async def bad_chunk(exchange: Exchange) -> None:
    await exchange.stream.send_all(b"nonsense\r\n")
    await exchange.gone()


async def silent(exchange: Exchange) -> None:
    await exchange.gone()


IN_THE_STREAM = (
    Fault("error frame", after_two(error_frame), 507, "lost the device"),
    Fault("error without a code", after_two(error_without_code), 500, "lost the device"),
    Fault("abort with a status", after_two(aborted), 429, "thrown out"),
    Fault("cut", after_two(cut), 503, "engine stream failed"),
    Fault("bad chunk", after_two(bad_chunk), 503, "engine stream failed"),
    Fault("early [DONE]", after_two(early_done), 500, "before a terminal frame"),
    Fault("early end", after_two(early_end), 500, "closed before [DONE]"),
    Fault("no JSON", after_two(no_json), 500, "invalid engine frame"),
    Fault("no frame", after_two(no_frame), 500, "invalid engine frame"),
    Fault("wrong count", after_two(wrong_count), 500, "4"),
    Fault("fewer", after_two(fewer), 500, "decreased"),
    Fault("silent", after_two(silent), 504, "within 0.3 s", ("--engine-idle-timeout", "0.3")),
)


def by_flags(faults: tuple[Fault, ...]) -> list[Any]:
    """Faults that one server can show one after the other, as parameters of a test."""
    groups: dict[tuple[str, ...], list[Fault]] = {}
    for fault in faults:
        groups.setdefault(fault.flags, []).append(fault)
    return [pytest.param(group, id="; ".join(fault.name for fault in group)[:60]) for group in groups.values()]


async def failing(run: Rendering, fault: Fault, path: str, **fields: Any) -> Reply:
    """Return the answer to a call that the engine fails; nothing of it is left behind."""
    engine = run.server.engine
    assert engine is not None
    run.engine.script, run.engine.is_up, run.engine.hangs = fault.script, fault.is_up, fault.hangs
    if fault.hangs:  # kept connections do
        engine.client.close()
        engine.client.is_closed = False
    reply = await ask(run.port, path, body_of(path, **fields))
    await nothing_runs(run)
    return reply


def check_error(value: Any, fault: Fault) -> None:
    assert fault.words in value["error"]["message"], (fault.name, value)
    assert value == told(fault.status, value["error"]["message"]), fault.name


@pytest.mark.parametrize(("path", "n"), [(PATHS[0], 1), (PATHS[0], 3), (PATHS[1], 1)])
@pytest.mark.parametrize("faults", by_flags(AT_SUBMISSION + IN_THE_STREAM))
async def test_a_whole_answer_is_the_error_alone(faults: list[Fault], path: str, n: int) -> None:
    async with rendering(never, *faults[0].flags) as run:
        for fault in faults:
            reply = await failing(run, fault, path, n=n)
            assert (reply.status, reply.headers["content-type"]) == (fault.status, "application/json"), fault.name
            check_error(reply.json, fault)


@pytest.mark.parametrize(("path", "n"), [(PATHS[0], 1), (PATHS[0], 3), (PATHS[1], 1)])
@pytest.mark.parametrize("faults", by_flags(AT_SUBMISSION))
async def test_a_stream_that_never_began_is_one_error_frame_and_the_end(faults: list[Fault], path: str, n: int) -> None:
    async with rendering(never, *faults[0].flags) as run:
        for fault in faults:
            reply = await failing(run, fault, path, n=n, stream=True, stream_options={"include_usage": True})
            assert reply.status == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            error, done = events(reply.body)
            check_error(error, fault)
            assert done is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("with_usage", [False, True])
@pytest.mark.parametrize("faults", by_flags(IN_THE_STREAM))
async def test_a_stream_that_had_begun_says_what_came_then_the_error_its_usage_and_the_end(
    faults: list[Fault], with_usage: bool, path: str
) -> None:
    async with rendering(never, *faults[0].flags) as run:
        for fault in faults:
            options = {"stream": True, "stream_options": {"include_usage": with_usage}}
            reply = await failing(run, fault, path, **options)
            *chunks, done = events(reply.body)
            assert (reply.status, done) == (200, None)
            [at] = [index for index, chunk in enumerate(chunks) if "error" in chunk]
            check_error(chunks[at], fault)
            choices = [chunk["choices"][0] for chunk in chunks[:at]]
            text = "".join((one.get("delta", {}).get("content") or "") + (one.get("text") or "") for one in choices)
            assert text in ("Good", "Good day"), fault.name
            assert all(not choice.get("finish_reason") for choice in choices)
            after = [(chunk["choices"], chunk["usage"]["completion_tokens"]) for chunk in chunks[at + 1 :]]
            assert after == [([], 2)] * with_usage, fault.name


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_retry_after_is_passed_on_with_a_whole_answer(stream: bool, path: str) -> None:
    fault = Fault("busy", refusing(429, JSON_ERROR, **{"retry-after": "7"}), 429, "in its words")
    async with rendering(never) as run:
        reply = await failing(run, fault, path, stream=stream)
        assert reply.headers.get("retry-after") == (None if stream else "7")
        check_error(events(reply.body)[0] if stream else reply.json, fault)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_logged_once(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    fault = Fault("away", never, 503, "engine request failed", is_up=False)
    async with rendering(never) as run:
        await failing(run, fault, PATHS[0], stream=stream)
    assert [record.message for record in caplog.records if "a request failed" in record.message] == [
        "a request failed: engine request failed: cannot connect to http://engine:1: Connection refused"
    ]


async def test_what_is_refused_here_is_a_400_in_json_and_never_reaches_the_engine() -> None:
    bads: list[dict[str, Any]] = [{"temperature": -1}, {"n": 0}, {"no_such_field": 1}, {"model": "other"}]
    async with rendering(never) as run:
        for path, stream, bad in itertools.product(PATHS, (False, True), bads):
            reply = await ask(run.port, path, body_of(path, stream=stream, **bad))
            assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
            assert reply.json == told(400, reply.json["error"]["message"])
        assert run.engine.exchanges == []


# ---------------------------------------------------------------------------------------------------------------------
# One of several choices
# ---------------------------------------------------------------------------------------------------------------------


def one_fails(after: int) -> Callable[[Exchange], Awaitable[None]]:
    """Choice 1 fails once it said so many tokens; the others would go on for ever."""

    async def script(exchange: Exchange) -> None:
        is_bad = exchange.body["rid"].endswith("-1")
        for count in range(1, 10_000):
            if is_bad and count > after:
                await exchange.frame({"error": {"message": "lost the device", "code": 500}})
                await exchange.done()
                return
            await exchange.tokens([ids("a")[0]], count)
            await trio.sleep(0.01)

    return script


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("after", [0, 3])
async def test_the_other_choices_end_with_the_one_that_failed(after: int, path: str) -> None:
    async with rendering(one_fails(after)) as run:
        reply = await ask(run.port, path, body_of(path, n=3))
        assert (reply.status, reply.json) == (500, told(500, "lost the device"))
        await eventually(lambda: len(run.engine.left) == 2, 2)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        reply = await ask(run.port, path, body_of(path, n=3, **options))
        *chunks, done = events(reply.body)
        [at] = [index for index, chunk in enumerate(chunks) if "error" in chunk]
        assert chunks[at] == told(500, "lost the device")
        assert done is None
        # Nothing more of anybody, but usage where there is something to count.
        assert all(chunk["choices"] == [] for chunk in chunks[at + 1 :])
        await eventually(lambda: len(run.engine.left) == 4, 2)
        assert {rid[-1] for rid in run.engine.left} == {"0", "2"}


# ---------------------------------------------------------------------------------------------------------------------
# Clients that leave
# ---------------------------------------------------------------------------------------------------------------------


def jailed(exchange: Exchange) -> Awaitable[None]:
    """Begin a tool call, of which nothing is told before it is whole."""

    async def script() -> None:
        for count, one in enumerate(ids("<tool_call>get_weather<arg_key>city"), 1):
            await exchange.tokens([one], count)
        await exchange.gone()

    return script()


async def endless(exchange: Exchange) -> None:
    for count in range(1, 10_000):
        await exchange.tokens([ids("a")[0]], count)
        await trio.sleep(0.01)


PARSER = ("--tool-call-parser", "glm47")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("script", "flags", "fields"),
    [(never, (), {}), (head_alone, (), {}), (jailed, PARSER, {"tools": [TOOL]}), (endless, (), {})],
    ids=["silent", "a head", "a jailed call", "talking"],
)
async def test_a_client_that_leaves_is_told_to_the_engine_for_every_choice(
    script: Callable[[Exchange], Awaitable[None]],
    flags: tuple[str, ...],
    fields: dict[str, Any],
    n: int,
    stream: bool,
) -> None:
    gone: list[str] = []

    async def noting(exchange: Exchange) -> None:
        try:
            await script(exchange)
        finally:
            gone.append(exchange.body["rid"])

    async with rendering(noting, *flags) as run:
        for how, path in itertools.product(("closes", "half-closes", "resets"), PATHS[: 1 if fields else 2]):
            for seen in (gone, run.engine.aborts, run.engine.exchanges):
                seen.clear()
            async with connected(run.port) as client:
                await client.post(path, body_of(path, n=n, stream=stream, **fields))
                await eventually(lambda: len(run.engine.exchanges) == n)
                await trio.sleep(0.05)
                await leave(client, how)
                await eventually(lambda: len(gone) == n and len(run.engine.aborts) == n, 2)
                assert sorted(gone) == sorted(run.engine.aborts) == sorted(run.engine.rids)
            await nothing_runs(run)


async def leave(client: Client, how: str) -> None:
    if how == "half-closes":
        await client.stream.send_eof()
        return
    if how == "resets":
        client.stream.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER of no time
    await client.stream.aclose()


async def nothing_runs(run: Rendering) -> None:
    engine, serving = run.server.engine, run.server.serving
    assert engine is not None
    assert serving is not None
    await eventually(lambda: engine.num_running == 0 and not serving.answering, 5)


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_in_single_bytes_is_whole(path: str) -> None:
    async def script(exchange: Exchange) -> None:
        frames = [([one], count) for count, one in enumerate(ids("Good day"), 1)]
        lines = b"".join(
            b"data: "
            + orjson.dumps({"output_ids": new, "meta_info": {"prompt_tokens": 1, "completion_tokens": count}})
            + b"\r\n\r\n"
            for new, count in frames
        )
        last = {"prompt_tokens": 1, "completion_tokens": len(frames), "finish_reason": STOP}
        lines += b"data: " + orjson.dumps({"output_ids": [], "meta_info": last}) + b"\n\ndata: [DONE]\n\n"
        wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        wire += b"".join(b"1\r\n%c\r\n" % byte for byte in lines) + b"0\r\n\r\n"
        for at in range(len(wire)):
            await exchange.stream.send_all(wire[at : at + 1])
        exchange.has_ended = True

    async with rendering(script) as run:
        for stream in (False, True):
            reply = await ask(run.port, path, body_of(path, stream=stream))
            assert reply.status == 200
            if not stream:
                choice = reply.json["choices"][0]
                assert (choice.get("text") or choice["message"]["content"]) == "Good day"
