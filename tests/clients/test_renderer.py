"""`python -m trnrt render` in front of `python -m trnrt`: the renderer answers what the engine itself would."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import APIStatusError, OpenAI

from tests.clients.process import Server, started

MODEL = "glm-5.3-flash-demo"
FOLDER = "trnrt/models/demo_files"
# What no two answers share: names and instants, and what the prefix cache had.
UNIQUE = frozenset(
    (
        *("id", "created", "created_at", "completed_at", "request_id", "response_id", "item_id", "call_id"),
        *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "e2e_latency", "weight_version"),
        *("cached_tokens", "cache_read_input_tokens", "cached_tokens_details", "finish_time", "obfuscation"),
        *("prompt_tokens_details", "input_tokens_details", "metadata", "signature"),
    )
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    # An answer must not depend on what was cached.
    with started("--device-mode", "eager", "--structured-outputs", "--disable-radix-cache") as server:
        yield server


@pytest.fixture(scope="module")
def renderer(engine: Server) -> Iterator[Server]:
    flags = ("--engine-url", engine.url, "--served-model-name", MODEL)
    parsers = ("--reasoning-parser", "glm45", "--tool-call-parser", "glm47")
    with started(*flags, *parsers, command=("render", FOLDER)) as server:
        yield server


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKS_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
GREEDY = {"temperature": 0, "max_tokens": 120}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**CHAT, **GREEDY}),
    "chat without thinking": (
        "/v1/chat/completions",
        {**CHAT, **GREEDY, "chat_template_kwargs": {"enable_thinking": False}},
    ),
    # A stop is the engine's too, which knows no thinking: within that it would end the answer.
    "chat with a stop": (
        "/v1/chat/completions",
        {**CHAT, **GREEDY, "stop": ["Paris"], "chat_template_kwargs": {"enable_thinking": False}},
    ),
    "chat with logprobs": (
        "/v1/chat/completions",
        {**CHAT, "temperature": 0, "max_tokens": 5, "logprobs": True, "top_logprobs": 2},
    ),
    "chat with calls": (
        "/v1/chat/completions",
        {"messages": ASKS_WEATHER, **GREEDY, "tools": [{"type": "function", "function": WEATHER}]},
    ),
    "chat in JSON": (
        "/v1/chat/completions",
        {
            **CHAT,
            **GREEDY,
            "max_tokens": 30,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    "completions": ("/v1/completions", {"prompt": "The capital of", **GREEDY, "max_tokens": 9}),
    "completions of a batch": ("/v1/completions", {"prompt": ["One", "Two"], **GREEDY, "max_tokens": 4, "n": 2}),
    "completions echoed with logprobs": (
        "/v1/completions",
        {"prompt": "The capital of", "temperature": 0, "max_tokens": 3, "echo": True, "logprobs": 1},
    ),
    "responses": ("/v1/responses", {"input": "What is the capital of France?", "temperature": 0}),
    "messages": ("/v1/messages", {**CHAT, "max_tokens": 120, "temperature": 0}),
    "messages with calls": (
        "/v1/messages",
        {
            "messages": ASKS_WEATHER,
            **GREEDY,
            "tools": [{"name": "get_weather", "input_schema": WEATHER["parameters"]}],
        },
    ),
    "ollama chat": ("/api/chat", {**CHAT, "stream": False, "options": {"temperature": 0, "num_predict": 60}}),
    "ollama generate": (
        "/api/generate",
        {"prompt": "Hello", "raw": True, "stream": False, "options": {"temperature": 0, "num_predict": 9}},
    ),
    "generate": ("/generate", {"text": "The capital of", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}),
}


def same(value: Any) -> Any:
    """The value without what no two answers share."""
    if isinstance(value, dict):
        if isinstance(value.get("arguments"), str):  # JSON, with whitespace or without
            value = {**value, "arguments": json.loads(value["arguments"])}
        return {key: same(one) for key, one in value.items() if key not in UNIQUE}
    return [same(one) for one in value] if isinstance(value, list) else value


def frames(text: str) -> list[Any]:
    """The JSON of every event or line, comments left out."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line and not line.startswith((":", "event:"))]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_the_engines_own(name: str, engine: Server, renderer: Server) -> None:
    path, body = CASES[name]
    body = body if path == "/generate" else {"model": MODEL, **body}
    own, ours = (httpx.post(server.url + path, json=body, timeout=60) for server in (engine, renderer))

    assert (ours.status_code, own.status_code) == (200, 200), ours.text
    assert same(ours.json()) == same(own.json())


# The order of a batch's chunks is nobody's promise, and calls are told whole here, in pieces by the engine.
@pytest.mark.parametrize("name", [name for name in CASES if "batch" not in name and "calls" not in name])
def test_a_stream_has_the_engines_own_text(name: str, engine: Server, renderer: Server) -> None:
    path, body = CASES[name]
    body = {**(body if path == "/generate" else {"model": MODEL, **body}), "stream": True}
    own, ours = (httpx.post(server.url + path, json=body, timeout=60) for server in (engine, renderer))

    assert (ours.status_code, own.status_code) == (200, 200), ours.text
    assert ours.headers["content-type"] == own.headers["content-type"]
    assert [same(one) for one in frames(ours.text)] == [same(one) for one in frames(own.text)]


def test_a_streamed_call_joins_to_the_one_that_is_not(renderer: Server) -> None:
    path, body = CASES["chat with calls"]
    url = renderer.url + path
    whole = httpx.post(url, json=body, timeout=60).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    chunks = frames(httpx.post(url, json={**body, "stream": True}, timeout=60).text)[:-1]
    calls = [call["function"] for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls") or ()]
    told = {key: "".join(call.get(key) or "" for call in calls) for key in ("name", "arguments")}
    assert told == whole


def test_openais_client_works(renderer: Server) -> None:
    with OpenAI(base_url=renderer.url + "/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        messages: Any = CHAT["messages"]
        answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=200)
        assert "Paris" in str(answer.choices[0].message.content)
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=messages,
                temperature=0,
                max_tokens=200,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert (text, chunks[-1].usage and chunks[-1].usage.completion_tokens) == (
            answer.choices[0].message.content,
            answer.usage and answer.usage.completion_tokens,
        )
        with pytest.raises(APIStatusError, match="does not exist") as caught:
            client.chat.completions.create(model="other", messages=messages)
        assert caught.value.status_code == 400


def test_anthropics_client_works(renderer: Server) -> None:
    with Anthropic(base_url=renderer.url, api_key="none", max_retries=0) as client:
        messages: Any = CHAT["messages"]
        with client.messages.stream(model=MODEL, messages=messages, max_tokens=200) as stream:
            message = stream.get_final_message()
        assert message.stop_reason in ("end_turn", "max_tokens")
        counted = client.messages.count_tokens(model=MODEL, messages=messages)
        assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_what_runs_finishes_after_sigterm(engine: Server) -> None:
    flags = ("--engine-url", engine.url, "--served-model-name", MODEL)
    with started(*flags, command=("render", FOLDER)) as server:
        body = {"prompt": "a", "max_tokens": 40, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.terminate()
            rest = list(lines)
        assert rest[-2:] == ["data: [DONE]", ""]
        assert server.wait() == 0
