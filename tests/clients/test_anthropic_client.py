"""Anthropic's own client against a started `python -m trnrt` process; a link is where others met the fault."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import (
    Anthropic,
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    RequestTooLargeError,
)
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.clients.process import Server, started

MODEL = "glm-5.3-flash-demo"
KEY = "right"
GREEDY = {"temperature": 0, "seed": 1}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    flags = ("--device-mode", "eager", "--max-running-requests", "8", "--sse-ping", "0.05")
    with started(*flags, "--api-key", KEY, "--max-request-bytes", "200000") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


def asked(text: str, *, seed: int = 1, temperature: float = 0, **more: Any) -> dict[str, Any]:
    extra = {"temperature": temperature, "seed": seed, **more.pop("extra_body", {})}
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "max_tokens": 200, "messages": messages, "extra_body": extra, **more}


def streamed(client: Anthropic, **request: Any) -> tuple[list[Any], Message]:
    with client.messages.stream(**request) as stream:
        events = list(stream)
        return events, stream.get_final_message()


def told(message: Message) -> list[dict[str, Any]]:
    """A message's blocks without what is new in every answer."""
    return [
        {name: value for name, value in block.to_dict().items() if name not in ("id", "signature", "citations")}
        for block in message.content
    ]


def raw(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}
    return httpx.post(server.url + path, json=body, headers=headers, timeout=120)


def body_of(request: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in request.items() if name != "extra_body"}, **request["extra_body"]}


def test_an_answer_is_the_same_created_and_streamed(client: Anthropic) -> None:
    request = asked("What is the capital of France?")
    whole = client.messages.create(**request)
    events, joined = streamed(client, **request)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert "Paris" in whole.content[1].text
    assert told(joined) == told(whole)
    assert (joined.stop_reason, joined.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    pieces = "".join(event.text for event in events if event.type == "text")
    assert pieces == whole.content[1].text


# https://github.com/sgl-project/sglang/issues/20678
def test_message_start_has_the_real_count_which_count_tokens_gives_too(client: Anthropic) -> None:
    for _ in range(2):
        request = asked("Tell me about the weather in winter. " * 20, system="You are terse.", tools=[WEATHER])
        events, final = streamed(client, **request)
        counted = client.messages.count_tokens(
            model=MODEL, messages=request["messages"], system=request["system"], tools=[WEATHER]
        )
        for usage in (events[0].message.usage, final.usage):
            assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    assert events[0].message.usage.cache_read_input_tokens > counted.input_tokens // 2


def test_a_long_prompt_is_announced_before_it_is_computed(server: Server, client: Anthropic) -> None:
    events, final = streamed(client, **asked("word " * 3000, max_tokens=3))
    assert events[0].type == "message_start"
    assert events[0].message.usage.input_tokens == final.usage.input_tokens > 3000
    body = {**body_of(asked("other " * 3000, max_tokens=3)), "stream": True}
    lines = raw(server, "/v1/messages", body).text.splitlines()
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    # The ping that follows message_start, and those of a silence that is no prompt's fault but its computing.
    assert kinds[:3] == ["message_start", "ping", "ping"]


# https://github.com/vllm-project/vllm/pull/45807
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_that_matched_is_told(client: Anthropic, stream: bool) -> None:
    request = asked("What is the capital of France?", stop_sequences=["never", "Paris"])
    answer = streamed(client, **request)[1] if stream else client.messages.create(**request)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in answer.content[-1].text


# https://github.com/sgl-project/sglang/issues/16371
def test_two_calls_are_two_blocks_each_with_its_own_id_and_input(client: Anthropic) -> None:
    both = []
    # A model this small makes two calls now and then.
    for seed in range(1, 24):
        request = asked("What is the weather in Paris and in Rome?", seed=seed, temperature=1, tools=[WEATHER])
        events, message = streamed(client, **request)
        calls = [block for block in message.content if block.type == "tool_use"]
        pieces: dict[int, str] = {}
        for event in events:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                pieces[event.index] = pieces.get(event.index, "") + event.delta.partial_json
        opened = [event.index for event in events if event.type == "content_block_start"]
        assert opened == list(range(len(message.content)))
        if message.stop_reason == "tool_use":
            assert [json.loads(text) for text in pieces.values()] == [block.input for block in calls]
        if len(calls) > 1 and message.stop_reason == "tool_use":
            both = calls
            break
    assert len({block.id for block in both}) == len(both) > 1


def test_a_call_and_its_result_go_round_and_the_next_turn_finds_them_cached(client: Anthropic) -> None:
    request = asked("What is the weather in Paris?", tools=[WEATHER])
    answer = client.messages.create(**request)
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny", "is_error": False}
    request["messages"] += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(**request)
    assert second.content
    assert second.usage.cache_read_input_tokens > 0


def test_thinking_is_on_off_or_hidden_as_asked(client: Anthropic) -> None:
    question = "What is the capital of Italy?"
    for thinking, kinds in (
        ({"type": "disabled"}, ["text"]),
        ({"type": "adaptive"}, ["thinking", "text"]),
        ({"type": "enabled", "budget_tokens": 1024}, ["thinking", "text"]),
    ):
        answer = client.messages.create(**asked(question, thinking=thinking, max_tokens=2000))
        assert [block.type for block in answer.content] == kinds
    hidden = client.messages.create(**asked(question, thinking={"type": "adaptive", "display": "omitted"}))
    assert (hidden.content[0].thinking, bool(hidden.content[0].signature)) == ("", True)


def test_every_answer_and_event_is_what_the_clients_own_types_demand(server: Server, client: Anthropic) -> None:
    events = TypeAdapter(RawMessageStreamEvent)
    for request in (
        asked("What is the capital of France?"),
        asked("What is the weather in Paris?", tools=[WEATHER]),
        asked("Tell me a story.", max_tokens=3),
        asked("What is the capital of France?", stop_sequences=["Paris"]),
        asked("Tell me a story.", max_tokens=1_000_000, extra_body={"stop_token_ids": [5]}),
    ):
        # The client itself builds its objects without looking at their types.
        Message.model_validate(raw(server, "/v1/messages", body_of(request)).json(), strict=True)
        lines = raw(server, "/v1/messages", {**body_of(request), "stream": True}).text.splitlines()
        told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        for event in told:
            if event["type"] != "ping":
                events.validate_python(event, strict=True)
        assert told[-1] == {"type": "message_stop"}
    counted = raw(server, "/v1/messages/count_tokens", {"messages": request["messages"]}).json()
    MessageTokensCount.model_validate(counted, strict=True)


def test_each_refusal_is_the_clients_class_for_it(server: Server, client: Anthropic) -> None:
    def refusal(kind: type[APIStatusError], **more: Any) -> str:
        with pytest.raises(kind) as caught:
            client.messages.create(**{**asked("hi"), **more})
        error = caught.value.body["error"]  # type: ignore[index]
        assert caught.value.request_id
        return f"{error['type']}: {error['message']}"

    assert refusal(NotFoundError, model="other").startswith("not_found_error: The model `other`")
    assert refusal(BadRequestError, messages=[]).startswith("invalid_request_error: messages")
    long = [{"role": "user", "content": "word " * 20_000}]
    assert refusal(BadRequestError, messages=long).startswith("invalid_request_error: prompt is too long: ")
    huge = [{"role": "user", "content": "x" * 200_000}]
    assert refusal(RequestTooLargeError, messages=huge).startswith("request_too_large: ")
    with Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(AuthenticationError):
            stranger.messages.create(**asked("hi"))


def test_an_abort_in_a_stream_is_the_clients_error(server: Server, client: Anthropic) -> None:
    request = asked("Tell me a story.", max_tokens=5000, extra_body={"ignore_eos": True})

    def read_and_abort() -> None:
        with client.messages.stream(**request) as stream:
            for event in stream:
                if event.type == "message_start":
                    name = event.message.id
                elif event.type == "content_block_delta":
                    raw(server, "/abort_request", {"rid": name})

    with pytest.raises(APIStatusError) as caught:
        read_and_abort()
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]


# https://github.com/anthropics/claude-code/issues/64510
def test_a_body_with_every_newer_field_of_claude_code_is_answered(server: Server) -> None:
    ephemeral = {"type": "ephemeral", "ttl": "1h"}
    tool = {**WEATHER, "cache_control": ephemeral, "eager_input_streaming": True, "strict": False}
    deferred = {**WEATHER, "name": "later", "defer_loading": True, "allowed_callers": ["direct"], "input_examples": []}
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}, "caller": None}
    found = [{"type": "text", "text": "no such city"}, {"type": "tool_reference", "tool_name": "later"}]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": found}
    body = {
        "model": "claude-haiku-4-5-20251001",
        "max_tokens": 64_000,
        "temperature": 1,
        "stream": True,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;"},
            {"type": "text", "text": "You are terse.", "cache_control": ephemeral},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": ephemeral}]},
            {"role": "system", "content": "Be kind."},
            {"role": "assistant", "content": [thought, {"type": "redacted_thinking", "data": "x"}, call]},
            {"role": "user", "content": [{**result, "cache_control": ephemeral}]},
        ],
        "tools": [tool, deferred],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": '{"device_id":"d","session_id":"s"}', "more": 1},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 100}},
        "service_tier": "auto",
        "speed": None,
        "container": None,
        "mcp_servers": [],
        "betas": ["claude-code-20250219"],
        "diagnostics": {"any": True},
        "something_new": {"of": "tomorrow"},
    }
    betas = "claude-code-20250219,interleaved-thinking-2025-05-14,never-heard-of-2030-01-01"
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": betas}
    reply = httpx.post(server.url + "/v1/messages?beta=true", json=body, headers=headers, timeout=120)
    assert reply.status_code == 200, reply.text
    assert '"model":"claude-haiku-4-5-20251001"' in reply.text
    assert reply.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    without = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    counted = httpx.post(server.url + "/v1/messages/count_tokens?beta=true", json=without, headers=headers)
    assert counted.json()["input_tokens"] > 0
    assert httpx.head(server.url + "/", headers=headers).status_code == 200
