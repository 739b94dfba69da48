"""The Messages dialects behind the real server, byte for byte, and their calls on a virtual clock."""

import re
from collections.abc import Iterable
from typing import Any

import pytest

from stages.ingress.dialects import anthropic_count_tokens, anthropic_messages
from stages.ingress.respond import Serving, respond
from stages.messages import Delta, Ended, Event, Finish, Submit, ToolCallDelta, Usage
from stages.settings import IngressSettings
from tests.fakes import FakeWire, counting, fake_services, silent
from tests.stages.ingress.dialects.anthropic_kit import events_of, message_of
from tests.stages.ingress.dialects.kit import parse
from tests.stages.ingress.http import ask, connected, eventually, running

DIALECTS = (anthropic_messages.DIALECT, anthropic_count_tokens.DIALECT)
HI: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "hey"}],
    "tools": [{"name": "look", "input_schema": {"type": "object"}}],
}


def thinks_speaks_and_calls(submit: Submit) -> Iterable[tuple[float, Event]]:
    choice, prompt = submit.key.choice, len(submit.prompt_ids)

    def delta(count: int, **more: Any) -> tuple[float, Event]:
        return 0.0, Delta(choice, (count,), usage=Usage(prompt, count, 64, 1), **more)

    yield delta(1, reasoning="hm")
    yield delta(2, text="Hi 😀")
    yield delta(3, tool_calls=(ToolCallDelta(0, "look"),))
    yield delta(4, tool_calls=(ToolCallDelta(0, None, '{"at": 1}'),))
    yield 0.0, Ended(choice, Finish("stop", 1), Usage(prompt, 5, 64, 1))


TRANSCRIPT = """\
event: message_start
data: {"type":"message_start","message":{"id":"msg_ID","type":"message","role":"assistant","model":"fake","content":[],\
"stop_reason":null,"stop_sequence":null,"stop_details":null,"usage":{"input_tokens":NEW,"cache_creation_input_tokens":0,\
"cache_read_input_tokens":64,"output_tokens":0,"output_tokens_details":{"thinking_tokens":0},"service_tier":"standard"}}}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"ID"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hi 😀"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_ID","name":"look",\
"input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\\"at\\": 1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null,"stop_details":null},\
"usage":{"input_tokens":NEW,"cache_creation_input_tokens":0,"cache_read_input_tokens":64,"output_tokens":5,\
"output_tokens_details":{"thinking_tokens":1},"service_tier":"standard"}}

event: message_stop
data: {"type":"message_stop"}

"""


async def test_a_call_as_claude_code_makes_it_is_answered_byte_for_byte() -> None:
    headers = ["anthropic-version: 2023-06-01", "anthropic-beta: claude-code-20250219", "x-api-key: none"]
    async with running(thinks_speaks_and_calls, dialects=DIALECTS) as server:
        reply = await ask(server.port, "/v1/messages?beta=true", {**HI, "stream": True}, headers)
        whole = await ask(server.port, "/v1/messages?beta=true", HI, headers)
        counted = await ask(server.port, "/v1/messages/count_tokens?beta=true", HI, headers)
        num_runs = len(server.engine.submits)
    assert (reply.status, reply.complete) == (200, True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    usage = whole.json["usage"]
    text = re.sub('"input_tokens":[0-9]+', '"input_tokens":NEW', re.sub("[0-9a-f]{24,}", "ID", reply.body.decode()))
    assert text == TRANSCRIPT
    joined = message_of(events_of(reply.body))
    volatile = {"id": "", "content": []}
    assert {**joined, **volatile} == {**whole.json, **volatile}
    assert [block["type"] for block in whole.json["content"]] == ["thinking", "text", "tool_use"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted.json["input_tokens"]
    assert num_runs == 2


async def test_counting_goes_on_while_the_engine_takes_nothing() -> None:
    async with running(silent, dialects=DIALECTS) as server:
        server.engine.draining = True
        assert (await ask(server.port, "/v1/messages/count_tokens", HI)).status == 200
        refused = await ask(server.port, "/v1/messages", {**HI, "stream": True})
    assert (refused.status, refused.json["error"]["type"]) == (503, "overloaded_error")
    assert refused.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        ({**HI, "max_tokens": None}, 400, "invalid_request_error"),
        ({**HI, "messages": [{"role": "user", "content": "x" * 5000}], "stream": True}, 400, "invalid_request_error"),
        ({**HI, "model": "other"}, 404, "not_found_error"),
        ({**HI, "messages": [{"role": "user", "content": "x" * 70_000}]}, 413, "request_too_large"),
    ],
)
async def test_a_refusal_is_a_status_with_anthropics_body(body: Any, status: int, kind: str) -> None:
    async with running(silent, dialects=DIALECTS, max_request_bytes=65_536) as server:
        reply = await ask(server.port, "/v1/messages", body, ["x-request-id: mine"])
    assert (reply.status, reply.json["type"], reply.json["error"]["type"]) == (status, "error", kind)
    assert reply.json["request_id"] == reply.headers["request-id"] == "mine"


async def test_other_methods_and_paths_beneath_are_refused_in_the_same_shape() -> None:
    async with running(silent, dialects=DIALECTS) as server, connected(server.port) as client:
        for path, status in (("/v1/messages", 405), ("/v1/messages/batches", 404)):
            reply = await client.get(path)
            assert (reply.status, reply.json["type"]) == (status, "error")
        assert (await client.get("/v1/messagesque")).json["error"]["code"] is None


async def test_an_operators_abort_is_an_error_in_a_stream_and_out_of_it() -> None:
    async with running(counting(1000, 0.005), dialects=DIALECTS) as server, connected(server.port) as client:
        for stream in (True, False):
            await client.post("/v1/messages", {**HI, "stream": stream})
            await eventually(lambda: bool(server.engine.running))
            if stream:
                await client.until(b"text_delta")
            server.app.serving.services.abort_all()
            if stream:
                await client.until(b"event: error\n")
                data = await client.until(b"\n\n")
                assert b'"type":"api_error","message":"The request was aborted."' in data
                await client.until(b"0\r\n\r\n")
                continue
            reply = await client.reply()
            assert (reply.status, reply.json["error"]["type"]) == (500, "api_error")


async def test_a_silent_stream_pings_with_an_event(autojump_clock: Any) -> None:
    def script(submit: Submit) -> Iterable[tuple[float, Event]]:
        yield 40.0, Delta(0, (1,), "x", usage=Usage(3, 1))
        yield 20.0, Ended(0, Finish("length"), Usage(3, 1))

    wire = FakeWire()
    dialect = anthropic_messages.DIALECT
    async with fake_services(script) as fakes:
        parsed = parse(dialect, {**HI, "model": "glm", "stream": True})
        await respond(parsed, dialect, "r", Serving(fakes.services, IngressSettings(sse_ping_s=15.0)), wire)
    kinds = [event["type"] for event in events_of(b"".join(wire.chunks))]
    assert kinds[:5] == ["message_start", "ping", "ping", "ping", "content_block_start"]
    assert [kind for kind in kinds if kind == "ping"] == ["ping"] * 4
    assert (wire.instants_s[0], *wire.instants_s[1:4]) == (0.0, 15.0, 30.0, 40.0)
    assert message_of(events_of(b"".join(wire.chunks)))["content"] == [{"type": "text", "text": "x"}]


async def test_a_stream_out_of_time_ends_with_an_error_event(autojump_clock: Any) -> None:
    wire = FakeWire()
    dialect = anthropic_messages.DIALECT
    async with fake_services(counting(100, 1.0)) as fakes:
        parsed = parse(dialect, {**HI, "model": "glm", "stream": True, "request_timeout": 2.5})
        await respond(parsed, dialect, "r", Serving(fakes.services, IngressSettings()), wire)
        assert not fakes.engine.running
    last = events_of(b"".join(wire.chunks))[-1]
    assert (last["type"], last["error"]["message"]) == ("error", "Request running timeout reached.")
