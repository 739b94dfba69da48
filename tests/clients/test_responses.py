"""The Responses API of a started `python -m trnrt` process, by the real openai client, as an agent would use it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.clients.process import Server, started

MODEL = "glm-5.3-flash-demo"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
NOTE: Any = {"type": "custom", "name": "note", "description": "Write a note."}
ASK: dict[str, Any] = {
    "model": MODEL,
    "input": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [WEATHER, NOTE, {"type": "web_search"}],
    "temperature": 0,
    "max_output_tokens": 200,
}
THINKING: list[dict[str, Any]] = [
    {},
    {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
    {"reasoning": {"effort": "none"}},
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with started("--device-mode", "eager", "--max-running-requests", "8", "--sse-ping", "0.05") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def told(item: Any) -> dict[str, Any]:
    """An item without its ids, which are new in every response, and without what the client adds to it."""
    return {name: value for name, value in item.to_dict().items() if not name.endswith("id") and "parsed" not in name}


@pytest.mark.parametrize("thinking", THINKING, ids=["content", "summary", "off"])
def test_the_stream_helper_gives_the_response_that_is_not_streamed(client: OpenAI, thinking: dict[str, Any]) -> None:
    whole = client.responses.create(**ASK, **thinking)
    with client.responses.stream(**ASK, **thinking) as stream:
        numbers = [event.sequence_number for event in stream]
        joined = stream.get_final_response()

    assert numbers == list(range(len(numbers)))
    assert (whole.output[0].type == "reasoning") == (thinking != {"reasoning": {"effort": "none"}})
    *_, last = client.responses.create(**ASK, **thinking, stream=True)
    assert [told(item) for item in last.response.output] == [told(item) for item in whole.output]
    assert [item.type for item in joined.output] == [item.type for item in whole.output]
    assert whole.status == joined.status == "completed"


# https://github.com/vllm-project/vllm/pull/56285 and https://github.com/BerriAI/litellm/pull/28899
def test_ids_numbers_and_types_agree_all_through_a_stream_with_a_function_and_a_custom_tool(client: OpenAI) -> None:
    kinds: set[str] = set()
    # A model this small calls the one or the other tool now and then.
    for seed in range(1, 24):
        events = list(client.responses.create(**{**ASK, "temperature": 1}, stream=True, extra_body={"seed": seed}))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        final = events[-1].response
        assert {event.response.id for event in events if hasattr(event, "response")} == {final.id}
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert [item.to_dict() for item in done] == [item.to_dict() for item in final.output]
        added = [event.item for event in events if event.type == "response.output_item.added"]
        assert [(item.id, item.type) for item in added] == [(item.id, item.type) for item in done]
        named = {(event.output_index, event.item_id) for event in events if hasattr(event, "item_id")}
        assert named == {(index, item.id) for index, item in enumerate(done)}
        for item in done:
            if item.type == "function_call":
                (whole,) = [
                    event
                    for event in events
                    if event.type == "response.function_call_arguments.done" and event.item_id == item.id
                ]
                assert whole.arguments == item.arguments
        kinds |= {item.type for item in done}
        if {"function_call", "custom_tool_call"} <= kinds:
            break
    assert "function_call" in kinds


# https://github.com/BerriAI/litellm/pull/28899
def test_every_frame_has_its_type_in_the_line_and_in_the_data(server: Server) -> None:
    reply = httpx.post(server.url + "/v1/responses", json={**ASK, "stream": True}, timeout=120)
    frames = reply.text.removesuffix("\n\n").split("\n\n")
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)


def test_the_stream_helper_bears_the_keepalives_of_a_long_prefill(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="word " * 3000, max_output_tokens=3) as stream:
        kinds = [event.type for event in stream]
    assert kinds[:3] == ["response.created", "response.in_progress", "keepalive"]
    assert kinds[-1] == "response.incomplete"


def test_a_conversation_goes_on_from_what_it_was_answered(client: OpenAI) -> None:
    history = list(ASK["input"])
    for turn in range(3):
        response = client.responses.create(**{**ASK, "input": history})
        usage = response.usage
        assert usage is not None
        if turn:
            assert usage.input_tokens_details.cached_tokens > 0
        history += [item.to_dict() for item in response.output]
        calls = [item.call_id for item in response.output if item.type in ("function_call", "custom_tool_call")]
        history += [{"type": "function_call_output", "call_id": call, "output": "Sunny."} for call in calls]
        history += [{"role": "user", "content": "And now?"}]


def test_a_limit_is_an_incomplete_response(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="Tell me a story.", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 3


def test_an_abort_ends_the_stream_in_a_failed_response(server: Server, client: OpenAI) -> None:
    more = {"request_id": "resp_mine", "ignore_eos": True}
    stream = iter(client.responses.create(model=MODEL, input="Tell me a story.", stream=True, extra_body=more))
    first = next(stream)
    assert first.type == "response.created"
    assert first.response.id == "resp_mine"
    httpx.post(server.url + "/abort_request", json={"rid": "resp_mine"})
    *_, last = stream
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"


def test_what_is_not_served_is_named(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=MODEL, input="x", store=True)
    assert (caught.value.param, caught.value.code) == ("store", "unsupported_parameter")
    with pytest.raises(BadRequestError, match="maximum context length is 8192 tokens") as caught:
        client.responses.create(model=MODEL, input="word " * 20_000)
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")
    with pytest.raises(NotFoundError):
        client.responses.retrieve("resp_1")
