"""Raw Messages calls against a started `python -m trnrt` process, as claude-code makes them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.process import started
from tests.stages.ingress.dialects.anthropic_kit import events_of, message_of

MODEL = "glm-5.3-flash-demo"
PAGE = 64
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "cache_control": {"type": "ephemeral"},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started("--device-mode", "eager", "--max-running-requests", "8") as server:
        yield server.url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "none"}
    with httpx.Client(base_url=url, headers=headers, params={"beta": "true"}, timeout=120) as client:
        yield client


def body_of(text: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": text}]}
    return {**body, **more}


def whole(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    reply = http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    value: dict[str, Any] = reply.json()
    return value


def streamed(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    reply = http.post("/v1/messages", json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    return message_of(events_of(reply.content))


def count(http: httpx.Client, body: dict[str, Any]) -> int:
    value: int = http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    return value


def without_ids(message: dict[str, Any]) -> Any:
    content = [{**block, "signature": "", "id": ""} for block in message["content"]]
    return content, message["stop_reason"], message["stop_sequence"], message["usage"]["output_tokens"]


def prompt_tokens(message: dict[str, Any]) -> int:
    usage = message["usage"]
    total: int = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    return total


def test_an_answer_thinks_then_speaks_the_same_streamed_and_not(http: httpx.Client) -> None:
    body = body_of("What is the capital of France?")
    answer = whole(http, body)
    thought, text = answer["content"]
    assert thought["thinking"]
    assert "Paris" in text["text"]
    assert answer["stop_reason"] == "end_turn"
    again = streamed(http, body)
    assert without_ids(again) == without_ids(answer)
    assert prompt_tokens(answer) == prompt_tokens(again) == count(http, body)


def test_thinking_can_be_turned_off(http: httpx.Client) -> None:
    answer = streamed(http, body_of("What is the capital of France?", thinking={"type": "disabled"}))
    assert [block["type"] for block in answer["content"]] == ["text"]


def test_a_call_and_its_result_go_round(http: httpx.Client) -> None:
    body = body_of("What is the weather in Paris?", tools=[WEATHER])
    answer = streamed(http, body)
    assert answer["stop_reason"] == "tool_use"
    call = answer["content"][-1]
    assert (call["type"], type(call["input"])) == ("tool_use", dict)
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "sunny, 20 C"}]}
    turns = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]}]
    body["messages"] += turns
    second = whole(http, body)
    assert second["content"]
    assert prompt_tokens(second) == count(http, body)
    first_turn = prompt_tokens(answer) + answer["usage"]["output_tokens"] - 1
    assert second["usage"]["cache_read_input_tokens"] >= first_turn // PAGE * PAGE


def test_a_stop_sequence_is_told_and_not_shown(http: httpx.Client) -> None:
    body = body_of("What is the capital of France?", stop_sequences=["Paris"])
    for answer in (whole(http, body), streamed(http, body)):
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "Paris")
        assert "Paris" not in answer["content"][-1]["text"]


def test_a_billing_header_that_changes_leaves_the_cache_its_hits(http: httpx.Client) -> None:
    def asked(value: str) -> dict[str, Any]:
        header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.37; cch={value};"}
        rules = {"type": "text", "text": "You are terse. " * 40, "cache_control": {"type": "ephemeral"}}
        return streamed(http, body_of("Name a color.", system=[header, rules], max_tokens=8))

    first, second = asked("1f2e3"), asked("93ab0")
    assert prompt_tokens(first) == prompt_tokens(second)
    assert second["usage"]["cache_read_input_tokens"] > prompt_tokens(second) // 2


def test_the_limit_of_the_context_is_told_in_the_words_agents_look_for(http: httpx.Client) -> None:
    reply = http.post("/v1/messages", json={**body_of("word " * 20_000), "stream": True})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "prompt is too long: " in reply.json()["error"]["message"]
