"""A model's own ids of its calls reach the client through every API that has room for them."""

from typing import Any

import orjson
import pytest

from stages.ingress.dialects import anthropic_messages, ollama_chat, openai_chat, openai_responses
from stages.messages import Delta, Ended, Finish, ToolCallDelta, Usage
from tests.stages.ingress.dialects.kit import EOS, Events, frames, whole

HELLO = [{"role": "user", "content": "x"}]
OWN = "functions.f:0"


def events(call_id: str | None) -> Events:
    calls = (ToolCallDelta(0, "f", "{}", call_id), ToolCallDelta(1, "g", "{}", call_id and "functions.g:1"))
    deltas = [(0, Delta(0, (1,), tool_calls=(call,), usage=Usage(3, 1))) for call in calls]
    return [*deltas, (0, Ended(0, Finish("stop", EOS), Usage(3, 2)))]


def ids(name: str, call_id: str | None) -> list[Any]:
    if name == "chat":
        answer = whole(openai_chat.DIALECT, {"messages": HELLO}, events(call_id))
        return [call["id"] for call in answer["choices"][0]["message"]["tool_calls"]]
    if name == "messages":
        answer = whole(anthropic_messages.DIALECT, {"max_tokens": 9, "messages": HELLO}, events(call_id))
        return [block["id"] for block in answer["content"]]
    if name == "responses":
        answer = whole(openai_responses.DIALECT, {"input": "x"}, events(call_id))
        return [item["call_id"] for item in answer["output"]]
    answer = whole(ollama_chat.DIALECT, {"model": "glm", "messages": HELLO, "stream": False}, events(call_id))
    return [call["id"] for call in answer["message"]["tool_calls"]]


@pytest.mark.parametrize("name", ["chat", "messages", "responses", "ollama"])
def test_a_call_has_the_models_own_id_or_one_of_ours(name: str) -> None:
    assert ids(name, OWN) == [OWN, "functions.g:1"]
    made = ids(name, None)
    assert len(set(made)) == 2
    assert OWN not in made


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (anthropic_messages.DIALECT, {"max_tokens": 9, "messages": HELLO}),
        (openai_responses.DIALECT, {"input": "x"}),
        (openai_chat.DIALECT, {"messages": HELLO}),
    ],
)
def test_a_stream_has_the_same_ids(dialect: Any, body: dict[str, Any]) -> None:
    text = b"".join(frames(dialect, body, events(OWN)))
    assert orjson.dumps(OWN) in text
