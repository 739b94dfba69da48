"""An answer made of tokens that a client brings is the one the renderer would have made with an engine of its own."""

import json
import random
from typing import Any

import pytest

from tests.fake_engine import Exchange, Script
from tests.scripted.server import one_name
from tests.stages.ingress.http import ask
from tests.trnrt.render_kit import MESSAGES, Rendering, events, ids, rendering, spoiled

CHAT: dict[str, Any] = {"messages": MESSAGES}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
TEXT = "I think so.</think>Good day, é😀! <tool_call>f<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
PARSERS = ("--reasoning-parser", "glm45", "--tool-call-parser", "glm47")
STOP = {"type": "stop", "matched": None}


def frames_of(text: str, *, logprobs: bool = False) -> list[dict[str, Any]]:
    """An engine's incremental frames of a text, one token each."""
    token_ids = ids(text)
    frames = []
    for count, token_id in enumerate(token_ids, 1):
        meta: dict[str, Any] = {
            "prompt_tokens": 11,
            "completion_tokens": count,
            "finish_reason": STOP if count == len(token_ids) else None,
        }
        if logprobs:
            meta["output_token_logprobs"] = [[-0.5 * count, token_id, None]]
            meta["output_top_logprobs"] = [[[-0.5 * count, token_id, None], [-9.0, 5, None]]]
        frames.append({"output_ids": [token_id], "meta_info": meta})
    return frames


def sending(frames: list[dict[str, Any]]) -> Script:
    async def script(exchange: Exchange) -> None:
        for frame in frames:
            await exchange.frame(frame)
        await exchange.done()

    return script


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**CHAT, "tools": TOOLS}),
    "chat with a stop": ("/v1/chat/completions", {**CHAT, "stop": ["day"]}),
    "two choices": ("/v1/chat/completions", {**CHAT, "n": 2}),
    "completions": ("/v1/completions", {"prompt": "Once", "echo": True, "max_tokens": 64}),
    "a batch": ("/v1/completions", {"prompt": ["Once", "Twice"], "n": 2, "max_tokens": 64}),
    "logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
}


async def infer(run: Rendering, path: str, body: dict[str, Any]) -> Any:
    with one_name():
        reply = await ask(run.port, path, body)
    assert reply.status == 200, reply.body
    return events(reply.body)[:-1] if body.get("stream") else reply.json


async def derender(run: Rendering, path: str, body: dict[str, Any]) -> Any:
    with one_name():
        reply = await ask(run.port, f"{path}/derender", body)
    assert reply.status == 200, reply.body
    return reply.json


def num_choices(body: dict[str, Any]) -> int:
    prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [0]
    return int(body.get("n", 1)) * len(prompts)


def joined(chunks: list[Any]) -> Any:
    """What chunks say when they are put together, by choice, with ends and usage."""
    choices: dict[int, Any] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            told = choices.setdefault(choice["index"], {"text": "", "reasoning": "", "calls": "", "logprobs": []})
            delta = choice.get("delta", choice)
            told["text"] += delta.get("content") or delta.get("text") or ""
            told["reasoning"] += delta.get("reasoning_content") or ""
            told["calls"] += json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""
            told["logprobs"] += (choice.get("logprobs") or {}).get("content") or []
            told["end"] = choice["finish_reason"]
    return choices, usage


@pytest.mark.parametrize("name", CASES)
async def test_a_whole_answer_is_the_same(name: str) -> None:
    path, body = CASES[name]
    frames = frames_of(TEXT, logprobs=name == "logprobs")
    async with rendering(sending(frames), *PARSERS) as run:
        expected = await infer(run, path, body)
        outputs = [{"index": index, **frame} for frame in frames for index in range(num_choices(body))]
        assert await derender(run, path, {"request": body, "outputs": outputs}) == expected


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_in_any_pieces_says_the_same(name: str, seed: int) -> None:
    path, body = CASES[name]
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    frames = frames_of(TEXT, logprobs=name == "logprobs")
    choose = random.Random(seed)
    async with rendering(sending(frames), *PARSERS) as run:
        expected = joined(await infer(run, path, body))
        outputs = [{"index": index, **frame} for frame in frames for index in range(num_choices(body))]
        chunks, state = [], None
        told: dict[str, Any] = {"is_done": False}
        while outputs:
            size = choose.randint(1, 9)
            part, outputs = outputs[:size], outputs[size:]
            told = await derender(run, path, {"request": body, "outputs": part, "state": state})
            chunks += told["chunks"]
            state = told["state"]
            if told["is_done"]:
                break
    assert joined(chunks) == expected
    assert (told["is_done"], told["state"], len(told["ended"])) == (True, None, num_choices(body))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [chunk["choices"] for chunk in chunks].count([]) == 1


async def test_cumulative_frames_and_bare_ids_will_do() -> None:
    token_ids = list(ids("Good day"))
    body = {"prompt": "Once", "stream": True}
    async with rendering() as run:
        first = await derender(run, "/v1/completions", {"request": body, "outputs": [{"output_ids": token_ids[:1]}]})
        last = {"output_ids": token_ids, "meta_info": {"completion_tokens": len(token_ids), "finish_reason": STOP}}
        rest = {"request": body, "outputs": [last], "state": first["state"]}
        second = await derender(run, "/v1/completions", rest)
    chunks = [*first["chunks"], *second["chunks"]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Good day"


END = {"output_ids": [40], "meta_info": {"finish_reason": STOP}}
PLAIN = {"prompt": "Once"}
STREAM = {**PLAIN, "stream": True}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "request"),
        ({"request": PLAIN}, "outputs"),
        ({"request": {"prompt": ""}, "outputs": []}, "Prompt cannot be empty"),
        ({"request": {**PLAIN, "zeta": 1}, "outputs": []}, "unsupported request field(s): zeta"),
        ({"request": PLAIN, "outputs": []}, "no end of choice 0"),
        ({"request": PLAIN, "outputs": [{"output_ids": [40]}]}, "no end of choice 0"),
        ({"request": PLAIN, "outputs": [5]}, "outputs.0"),
        ({"request": PLAIN, "outputs": [{"output_ids": [-1]}]}, "outputs.0"),
        ({"request": PLAIN, "outputs": [{"output_ids": [10**6]}]}, "outputs.0"),
        ({"request": PLAIN, "outputs": [{"output_ids": 5}]}, "outputs.0"),
        ({"request": PLAIN, "outputs": [{"output_ids": [40], "meta_info": 5}]}, "outputs.0"),
        ({"request": PLAIN, "outputs": [{"index": 1, **END}]}, "outputs.0.index"),
        ({"request": PLAIN, "outputs": [END, END]}, "outputs.1"),
        ({"request": PLAIN, "outputs": [{"output_ids": [40] * 9000}]}, "outputs.0"),
        ({"request": {**PLAIN, "logprobs": 1}, "outputs": [END]}, "output_token_logprobs"),
        ({"request": PLAIN, "outputs": [END], "state": {"id": "a"}}, "state goes with a streamed request"),
        ({"request": STREAM, "outputs": [END], "state": {"id": ""}}, "state.id"),
        ({"request": STREAM, "outputs": [END], "state": {"id": "a"}}, "0 prompts"),
        ({"request": STREAM, "outputs": [END], "state": {"id": "a", "prompts": [{}]}}, "0 choices"),
        (
            {
                "request": STREAM,
                "outputs": [END],
                "state": {"id": "a", "prompts": [{"num_tokens": 10**9}], "choices": [None]},
            },
            "length",
        ),
        ({"request": {**STREAM, "echo": True, "logprobs": 1}, "outputs": [END]}, "not served in steps"),
    ],
)
async def test_what_makes_no_answer_is_a_400_that_says_where(
    body: dict[str, Any], words: str, alone: Rendering
) -> None:
    reply = await ask(alone.port, "/v1/completions/derender", body)
    assert (reply.status, words in reply.json["error"]["message"]) == (400, True), reply.body


@pytest.fixture
async def alone() -> Any:
    async with rendering() as run:
        yield run


async def test_an_engines_failure_is_told_as_it_was() -> None:
    failed = {"error": {"message": "lost the device", "code": 502}}
    async with rendering() as run:
        for request in (PLAIN, STREAM):
            reply = await ask(run.port, "/v1/completions/derender", {"request": request, "outputs": [failed]})
            assert (reply.status, reply.json["error"]["message"]) == (502, "lost the device")


async def test_whatever_is_brought_is_answered_or_refused_and_never_a_500() -> None:
    body = {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2}
    frames = frames_of(TEXT, logprobs=True)
    choose = random.Random(5)
    async with rendering(None, *PARSERS) as run:
        first = await derender(run, "/v1/chat/completions", {"request": body, "outputs": frames[:9]})
        whole = {"request": body, "outputs": frames[9:12], "state": first["state"]}
        statuses = set()
        for _ in range(400):
            sent = {**whole, (part := choose.choice(("outputs", "state"))): spoiled(whole[part], choose)}
            reply = await ask(run.port, "/v1/chat/completions/derender", sent)
            assert reply.status in (200, 400), (reply.body, sent)
            statuses.add(reply.status)
    assert statuses == {200, 400}


async def test_no_frame_of_an_engine_harms_anything_but_its_own_answer() -> None:
    frames = frames_of("Good day", logprobs=True)
    choose = random.Random(7)

    async def script(exchange: Exchange) -> None:
        if exchange.body["rid"].startswith("bad"):
            at = choose.randrange(len(frames))
            for frame in [*frames[:at], spoiled(frames[at], choose), *frames[at + 1 :]]:
                await exchange.frame(frame)
        else:
            for frame in frames:
                await exchange.frame(frame)
        await exchange.done()

    async with rendering(script, *PARSERS) as run:
        body = {**CHAT, "logprobs": True, "top_logprobs": 2}
        expected = (await infer(run, "/v1/chat/completions", {**body, "rid": "good"}))["choices"]
        for number in range(200):
            bad = {**body, "rid": f"bad{number}", "stream": number % 2 == 0, "n": 1 + number % 2}
            reply = await ask(run.port, "/v1/chat/completions", bad)
            assert reply.status in (200, 400, 500, 502, 503)
            assert reply.complete
        assert (await infer(run, "/v1/chat/completions", {**body, "rid": "good"}))["choices"] == expected
