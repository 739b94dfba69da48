"""Asks a server for constrained text and calls by each of its APIs, streaming or not, and joins what it answers.

Streams are put together from their deltas alone, as a client would, so that an answer that differs between what was
streamed and what is whole is seen as one that does not follow its schema.
"""

import http.client
import json
from collections.abc import Iterator
from typing import Any

from attrs import Factory, define, frozen

TIMEOUT_S = 600
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate": "/generate",
}


@frozen
class Ask:
    """What is asked for, in no API's words."""

    api: str
    stream: bool
    thinks: bool
    seed: int
    max_tokens: int
    text: str = "Answer with a value."
    biases: dict[str, float] = Factory(dict)
    schema: Any = None
    tools: tuple[Any, ...] = ()
    named: str | None = None
    is_parallel: bool = True


@define
class Answer:
    """What came: the visible text, the calls in order, whether it ended by itself, or why there is none."""

    text: str = ""
    calls: list[tuple[str, str]] = Factory(list)
    is_whole: bool = False
    refusal: str | None = None


def ask(port: int, asked: Ask) -> Answer:
    """Return the answer to one call; raises ValueError where it is none of those the API has."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        body = json.dumps(_BODIES[asked.api](asked))
        connection.request("POST", PATHS[asked.api], body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        data = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        return Answer(refusal=f"{reply.status} {data.decode()[:300]}")
    if not asked.stream:
        return _WHOLE[asked.api](json.loads(data))
    answer = Answer()
    for event in _events(data):
        if event.get("error"):
            return Answer(refusal=f"in the stream: {event['error']}")
        _DELTAS[asked.api](event, answer)
    return answer


def _events(data: bytes) -> Iterator[Any]:
    for line in data.split(b"\n"):
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


# --- bodies ---


def _common(asked: Ask) -> dict[str, Any]:
    return {
        "model": "glm-5.3-flash-demo",
        "temperature": 1.0,
        "seed": asked.seed,
        "stream": asked.stream,
        "logit_bias": asked.biases,
    }


def _chat(asked: Ask) -> dict[str, Any]:
    body = _common(asked) | {
        "messages": [{"role": "user", "content": asked.text}],
        "max_tokens": asked.max_tokens,
        "chat_template_kwargs": {"enable_thinking": asked.thinks},
    }
    if asked.thinks:
        body["thinking_token_budget"] = 6
    if asked.schema is not None:
        body["response_format"] = _format(asked.schema)
    if asked.tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in asked.tools]
        body["tool_choice"] = _named({"function": {"name": asked.named}}, asked) or "required"
        body["parallel_tool_calls"] = asked.is_parallel
    return body


def _format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _named(choice: dict[str, Any], asked: Ask) -> dict[str, Any] | None:
    return {"type": "function", **choice} if asked.named is not None else None


def _completions(asked: Ask) -> dict[str, Any]:
    return _common(asked) | {
        "prompt": asked.text,
        "max_tokens": asked.max_tokens,
        "response_format": _format(asked.schema),
    }


def _generate(asked: Ask) -> dict[str, Any]:
    params = {
        "temperature": 1.0,
        "sampling_seed": asked.seed,
        "max_new_tokens": asked.max_tokens,
        "logit_bias": asked.biases,
        "json_schema": json.dumps(asked.schema),
    }
    return {"text": asked.text, "stream": asked.stream, "sampling_params": params}


def _responses(asked: Ask) -> dict[str, Any]:
    body = _common(asked) | {"input": asked.text, "max_output_tokens": asked.max_tokens}
    body["reasoning"] = {"effort": "low" if asked.thinks else "none"}
    if asked.thinks:
        body["thinking_token_budget"] = 6
    if asked.schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": asked.schema}}
    if asked.tools:
        body["tools"] = [{"type": "function", **tool} for tool in asked.tools]
        body["tool_choice"] = _named({"name": asked.named}, asked) or "required"
        body["parallel_tool_calls"] = asked.is_parallel
    return body


def _messages(asked: Ask) -> dict[str, Any]:
    body = _common(asked) | {
        "messages": [{"role": "user", "content": asked.text}],
        "max_tokens": asked.max_tokens,
        "thinking": {"type": "enabled", "budget_tokens": 1024} if asked.thinks else {"type": "disabled"},
    }
    if asked.thinks:
        body["thinking_token_budget"] = 6
        del body["thinking"]
    if asked.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema}}
    if asked.tools:
        body["tools"] = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in asked.tools]
        choice = {"type": "any"} if asked.named is None else {"type": "tool", "name": asked.named}
        body["tool_choice"] = choice | {"disable_parallel_tool_use": not asked.is_parallel}
    return body


_BODIES = {
    "chat": _chat,
    "completions": _completions,
    "generate": _generate,
    "responses": _responses,
    "messages": _messages,
}

# --- whole answers ---


def _whole_chat(body: Any) -> Answer:
    (choice,) = body["choices"]
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls") or ()
    ]
    return Answer(choice["message"]["content"] or "", calls, choice["finish_reason"] in ("stop", "tool_calls"))


def _whole_completions(body: Any) -> Answer:
    (choice,) = body["choices"]
    return Answer(choice["text"], [], choice["finish_reason"] == "stop")


def _whole_generate(body: Any) -> Answer:
    return Answer(body["text"], [], body["meta_info"]["finish_reason"]["type"] == "stop")


def _whole_responses(body: Any) -> Answer:
    answer = Answer(is_whole=body["status"] == "completed")
    for item in body["output"]:
        if item["type"] == "function_call":
            answer.calls.append((item["name"], item["arguments"]))
        elif item["type"] == "message":
            answer.text += "".join(part["text"] for part in item["content"])
    return answer


def _whole_messages(body: Any) -> Answer:
    answer = Answer(is_whole=body["stop_reason"] in ("end_turn", "tool_use"))
    for block in body["content"]:
        if block["type"] == "tool_use":
            answer.calls.append((block["name"], json.dumps(block["input"])))
        elif block["type"] == "text":
            answer.text += block["text"]
    return answer


_WHOLE = {
    "chat": _whole_chat,
    "completions": _whole_completions,
    "generate": _whole_generate,
    "responses": _whole_responses,
    "messages": _whole_messages,
}

# --- streams ---


def _add(answer: Answer, arguments: str) -> None:
    name, so_far = answer.calls[-1]
    answer.calls[-1] = (name, so_far + arguments)


def _chat_delta(event: Any, answer: Answer) -> None:
    for choice in event["choices"]:
        answer.text += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or ():
            if call["function"].get("name"):
                answer.calls.append((call["function"]["name"], ""))
            if call["index"] != len(answer.calls) - 1:
                raise ValueError(
                    f"a delta of call {call['index']} came where call {len(answer.calls) - 1} is under way"
                )
            _add(answer, call["function"].get("arguments") or "")
        answer.is_whole |= choice["finish_reason"] in ("stop", "tool_calls")


def _completions_delta(event: Any, answer: Answer) -> None:
    for choice in event["choices"]:
        answer.text += choice["text"]
        answer.is_whole |= choice["finish_reason"] == "stop"


def _generate_event(event: Any, answer: Answer) -> None:
    # Each event holds the whole text so far.
    answer.text = event["text"]
    answer.is_whole = (event["meta_info"]["finish_reason"] or {}).get("type") == "stop"


def _responses_event(event: Any, answer: Answer) -> None:
    kind = event["type"]
    if kind == "response.output_text.delta":
        answer.text += event["delta"]
    elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
        answer.calls.append((event["item"]["name"], ""))
    elif kind == "response.function_call_arguments.delta":
        _add(answer, event["delta"])
    elif kind == "response.completed":
        answer.is_whole = True
        if _whole_responses(event["response"]) != answer:
            raise ValueError(f"the stream said {answer}, its end {event['response']['output']}")


def _messages_event(event: Any, answer: Answer) -> None:
    kind = event["type"]
    if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
        answer.calls.append((event["content_block"]["name"], ""))
    elif kind == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
        _add(answer, event["delta"]["partial_json"])
    elif kind == "content_block_delta" and event["delta"]["type"] == "text_delta":
        answer.text += event["delta"]["text"]
    elif kind == "message_delta":
        answer.is_whole = event["delta"]["stop_reason"] in ("end_turn", "tool_use")


_DELTAS = {
    "chat": _chat_delta,
    "completions": _completions_delta,
    "generate": _generate_event,
    "responses": _responses_event,
    "messages": _messages_event,
}
