"""The record of a call: instants and counts of scripted runs whose answers are known, on a virtual clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import asdict

from stages.messages import Finish, RequestRecord
from stages.settings import IngressSettings
from stages.trace_context import TraceContext
from tests.scripted.script import MODEL, Script, call, encoded, script
from tests.scripted.server import CREATED_S, REQUEST_ID, Exchange, ScriptedServer, by_choice, scripted_server

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
WORDS = script("hm</think>Hello there")
ENDLESS = Script(encoded("hm</think>Hello there ") * 40)


@asynccontextmanager
async def recorded(*scripts: Script, **options: Any) -> AsyncIterator[tuple[ScriptedServer, list[RequestRecord]]]:
    async with scripted_server(by_choice(scripts), **options) as server:
        records: list[RequestRecord] = []
        server.serving.calls.send = records.append
        yield server, records
        assert not server.serving.calls.live


@pytest.mark.parametrize("stream", [False, True])
async def test_a_record_has_the_instants_and_the_counts_of_its_call(autojump_clock: Any, stream: bool) -> None:
    async with recorded(WORDS, prefill_s=3.0, gap_s=0.5, cached_tokens=2) as (server, records):
        began_s = trio.current_time()
        headers = {"x-request-id": "mine", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        await server.post(CHAT, {**HELLO, "stream": stream}, headers)
    (record,) = records
    num_tokens = len(WORDS.ids)
    last_s = began_s + 3.0 + 0.5 * (num_tokens - 1)
    assert asdict(record) == {
        "request_id": "mine",
        "route": CHAT,
        "dialect": "openai_chat",
        "model": MODEL.served_model_name,
        "is_streamed": stream,
        "is_constrained": False,
        "num_choices": 1,
        "arrived_unix_s": CREATED_S,
        "arrived_s": began_s,
        "parsed_s": began_s,
        "prompt_ready_s": began_s,
        "submitted_s": began_s,
        "admitted_s": None,  # by no scheduler: this engine has none
        "first_token_s": began_s + 3.0,
        "last_token_s": last_s,
        "ended_s": last_s,
        "prompt_tokens": len(server.engine.submits[0].prompt_ids),
        "cached_device_tokens": 2,
        "cached_host_tokens": 0,
        "completion_tokens": num_tokens,
        "reasoning_tokens": len(encoded("hm</think>")),
        "retractions": 0,
        "outcome": "stop",
        "status": 200,
        "cause": None,
        "trace": asdict(TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")),
    }


async def test_a_prompt_counts_once_and_every_choice_s_tokens(autojump_clock: Any) -> None:
    other = script("no</think>A much longer answer than the first")
    async with recorded(WORDS, other, cached_tokens=2) as (server, records):
        await server.post(CHAT, {**HELLO, "n": 2})
    (record,) = records
    assert record.num_choices == 2
    assert record.prompt_tokens == len(server.engine.submits[0].prompt_ids)
    assert record.cached_device_tokens == 2
    assert record.completion_tokens == len(WORDS.ids) + len(other.ids)


async def test_a_batch_of_prompts_is_one_record(autojump_clock: Any) -> None:
    async with recorded(WORDS) as (server, records):
        await server.post("/v1/completions", {"prompt": ["a", "b c d"], "max_tokens": 3})
    (record,) = records
    assert (record.num_choices, record.completion_tokens, record.outcome) == (2, 6, "length")
    assert record.prompt_tokens == sum(len(submit.prompt_ids) for submit in server.engine.submits)


async def test_a_stop_after_a_call_is_told_from_one_after_words(autojump_clock: Any) -> None:
    async with recorded(script("hm</think>" + call(s="Paris"))) as (server, records):
        await server.post(CHAT, {**HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]})
    assert records[0].outcome == "tool_calls"


async def test_what_comes_behind_a_stop_string_counts_for_nobody(autojump_clock: Any) -> None:
    async with recorded(ENDLESS, cuts=(4,)) as (server, records):
        exchange = await server.post(CHAT, {**HELLO, "stop": "Hello there"})
    assert records[0].completion_tokens == exchange.json["usage"]["completion_tokens"]
    assert records[0].outcome == "stop"


async def test_a_client_that_leaves_is_told_with_what_it_got(autojump_clock: Any) -> None:
    async with recorded(ENDLESS) as (server, records), trio.open_nursery() as nursery:
        exchange = Exchange()
        arguments = (server.app, CHAT, b'{"messages":[{"role":"user","content":"Hi"}],"stream":true}')
        nursery.start_soon(exchange.run, *arguments, {"content-type": "application/json"}, "POST")
        await trio.sleep(5.5)
        (trail,) = server.serving.calls.live
        assert (trail.completion_tokens, trail.request_id) == (5, REQUEST_ID)
        exchange.left.set()
        await trio.sleep(0.1)
        (record,) = records
    assert (record.outcome, record.status, record.completion_tokens, record.cause) == ("disconnected", 200, 5, None)
    assert record.ended_s - record.arrived_s == 5.5


async def test_a_client_that_leaves_before_the_status_has_none(autojump_clock: Any) -> None:
    async with recorded(ENDLESS) as (server, records), trio.open_nursery() as nursery:
        exchange = Exchange()
        arguments = (server.app, CHAT, b'{"messages":[{"role":"user","content":"Hi"}]}')
        nursery.start_soon(exchange.run, *arguments, {"content-type": "application/json"}, "POST")
        await trio.sleep(5.5)
        exchange.left.set()
        await trio.sleep(0.1)
    assert (records[0].outcome, records[0].status) == ("disconnected", None)


@pytest.mark.parametrize(
    ("options", "body", "expected"),
    [
        ({"max_choices": 0}, HELLO, ("refused", 503, "queue_full")),
        ({"max_prompts": 0}, HELLO, ("refused", 503, "queue_full")),
        ({"draining": True}, HELLO, ("refused", 503, "draining")),
        ({"settings": IngressSettings(request_timeout_s=4.0)}, HELLO, ("error", 503, "timeout")),
        ({"settings": IngressSettings(request_timeout_s=0.5)}, HELLO, ("refused", 503, "timeout")),
        ({}, {**HELLO, "temperature": -1}, ("refused", 400, "invalid")),
        ({}, {**HELLO, "max_tokens": 10_000_000}, ("refused", 400, "context_length")),
        ({"settings": IngressSettings(max_request_bytes=10)}, HELLO, ("refused", 413, "body_too_large")),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_call_that_fails_says_why(autojump_clock: Any, options: Any, body: Any, expected: Any) -> None:
    async with recorded(ENDLESS, **options) as (server, records):
        exchange = await server.post(CHAT, body)
    (record,) = records
    assert (record.outcome, record.status, record.cause) == expected
    assert exchange.status == record.status


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (Finish("error", message="lost", status=500, cause="engine_failed"), ("error", 500, "engine_failed")),
        (Finish("abort", message="x", status=503, cause="displaced"), ("error", 503, "displaced")),
        (Finish("abort", message="x"), ("abort", 200, None)),
        (Finish("length"), ("length", 200, None)),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_end_that_the_engine_makes_is_told_by_its_cause(
    autojump_clock: Any, finish: Finish, expected: Any
) -> None:
    async with recorded(Script(ENDLESS.ids[:5], finish)) as (server, records):
        exchange = await server.post(CHAT, HELLO)
    (record,) = records
    assert (record.outcome, record.status, record.cause) == expected
    assert exchange.status == record.status


async def test_a_refusal_by_the_queue_before_any_token_is_refused_with_its_cause(autojump_clock: Any) -> None:
    finish = Finish("abort", message="Request waiting timeout reached.", status=503, cause="queue_timeout")
    async with recorded(Script((), finish)) as (server, records):
        await server.post(CHAT, HELLO)
        await server.post("/generate", {"text": "a"})
    assert [(record.outcome, record.status, record.cause) for record in records] == [
        ("refused", 503, "queue_timeout")
    ] * 2


async def test_a_failure_in_a_stream_keeps_its_status_and_says_why(autojump_clock: Any) -> None:
    finish = Finish("error", message="lost", status=500, cause="engine_failed")
    async with recorded(Script(ENDLESS.ids[:5], finish)) as (server, records):
        await server.post(CHAT, {**HELLO, "stream": True})
    assert (records[0].outcome, records[0].status, records[0].cause) == ("error", 200, "engine_failed")


async def test_what_generates_nothing_leaves_no_record(autojump_clock: Any) -> None:
    async with recorded(WORDS) as (server, records):
        await server.post("/tokenize", {"prompt": "a b"})
    assert records == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": 5}),
        ("/v1/detokenize", b"{"),
        ("/v1/messages/count_tokens", {}),
        ("/parse_function_call", {}),
        ("/api/show", b"{"),
    ],
)
async def test_what_generates_nothing_leaves_no_record_when_it_is_refused_either(
    autojump_clock: Any, path: str, body: Any
) -> None:
    async with recorded(WORDS) as (server, records):
        exchange = await server.post(path, body)
    assert exchange.status == 400
    assert records == []
