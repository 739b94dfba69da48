"""Every API that generates, as its clients see it: a body that asks, and strict readers that join a stream.

A reader demands what the strictest client does (one role, one finish, one terminator, indices in order, nothing after
the end) and gives the value a call without a stream gets, to the last field. A stream that failed gives a Failure.
"""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from attrs import evolve, field, frozen

from stages.settings import ModelSettings
from tests.scripted.script import MODEL, SCHEMA
from tests.scripted.server import Exchange
from tests.stages.ingress.dialects.anthropic_kit import events_of, message_of
from tests.stages.ingress.dialects.responses_kit import numbered, read

Json = dict[str, Any]
CHAT_TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
USER = {"role": "user", "content": "x"}
PING_LINE = b": ping\n\n"
# What depends on the clock and not on the answer.
TIMES = ("e2e_latency", "completed_at", "total_duration", "prompt_eval_duration", "eval_duration", "created_at")


@frozen
class Failure:
    """A call that failed, with the words its client reads."""

    message: str


@frozen(eq=False)
class Api:
    """A route: its body, where it puts things, and how its streams are read."""

    name: str
    path: str
    body: Json
    join: Callable[[bytes], Any]
    # The body's names of the budget, the stop strings and the tools; None where there are none.
    budget: str
    stop: str
    tools: list[Json] | None = None
    # What asks for a stream; what asks for a stream that tells all a whole answer does.
    stream: Json = field(factory=lambda: {"stream": True})
    whole: Json = field(factory=dict)
    several: str | None = None
    model: ModelSettings = MODEL
    is_parsed: bool = True

    def ask(
        self, *, stream: bool = False, budget: int | None = None, stop: list[str] | None = None, n: int = 1
    ) -> Json:
        """A body that asks for so much."""
        body = deepcopy({**self.body, **(self.stream if stream else self.whole)})
        if self.tools is not None:
            body["tools"] = deepcopy(self.tools)
        for name, value in ((self.budget, budget), (self.stop, stop)):
            if value is not None:
                put(body, name, value)
        if n > 1:
            assert self.several is not None
            put(body, self.several, n)
        return body

    def answer(self, exchange: Exchange) -> Any:
        """What a client makes of an exchange: the answer, or a Failure."""
        assert exchange.has_ended
        if exchange.status != 200:
            return Failure(error_text(exchange.json))
        if exchange.is_stream:
            return settled(self.join(exchange.body))
        value = exchange.json
        if isinstance(value, dict) and value.get("status") == "failed":
            return Failure(value["error"]["message"])
        return settled(value)


def put(body: Json, dotted: str, value: object) -> None:
    """Set a nested field."""
    *parents, name = dotted.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[name] = value


def error_text(value: Any) -> str:
    """The words of an error body of any of the shapes."""
    inner = value.get("error", value)
    return str(inner["message"] if isinstance(inner, dict) else inner)


def settled(value: Any) -> Any:
    """The value without what depends on the clock; logprobs of no token are none, as a stream of none has them."""
    if isinstance(value, list):
        return [settled(item) for item in value]
    if isinstance(value, dict):
        kept = {name: settled(item) for name, item in value.items() if name not in TIMES}
        logprobs = kept.get("logprobs")
        if isinstance(logprobs, dict) and not any(logprobs.values()):
            kept["logprobs"] = None
        return kept
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Frames
# ---------------------------------------------------------------------------------------------------------------------


def frames(body: bytes) -> list[Any]:
    """The data of a stream of OpenAI's and SGLang's kind, without pings, which ends in the one [DONE]."""
    *parts, rest = body.split(b"\n\n")
    assert rest == b"", rest
    parts = [part for part in parts if part != b": ping"]
    assert all(part.startswith(b"data: ") and b"\n" not in part for part in parts)
    *data, done = [part.removeprefix(b"data: ") for part in parts]
    assert done == b"[DONE]"
    assert b"[DONE]" not in data
    return [json.loads(one) for one in data]


def failure_in(values: list[Any]) -> Failure | None:
    """The failure that ends a stream, which nothing follows."""
    for number, value in enumerate(values):
        if "error" in value:
            assert number == len(values) - 1
            return Failure(error_text(value))
    return None


def one_head(chunks: list[Json], kind: str) -> Json:
    """What is the same in every chunk."""
    heads = [{name: chunk[name] for name in ("id", "object", "created", "model")} for chunk in chunks]
    assert all(head == heads[0] for head in heads)
    assert heads[0]["object"] == kind
    return heads[0]


def in_order(seen: Mapping[int, object], index: int) -> None:
    """Demand that indices first appear in rising order."""
    assert index in seen or index == len(seen)


ENDING = ("finish_reason", "matched_stop", "stop_reason")
TAIL = {"system_fingerprint": None, "metadata": {"weight_version": "default"}}


def _join_chat(body: bytes) -> Any:
    chunks = frames(body)
    if (failure := failure_in(chunks)) is not None:
        return failure
    head = one_head(chunks, "chat.completion.chunk")
    choices: dict[int, Json] = {}
    usage = None
    for chunk in chunks:
        if not chunk["choices"]:
            assert usage is None
            usage = chunk["usage"]
        for one in chunk["choices"]:
            assert usage is None
            in_order(choices, one["index"])
            own = choices.setdefault(one["index"], _empty_choice(one["index"]))
            assert own["finish_reason"] is None, "something follows the end of a choice"
            _join_chat_delta(own["message"], one["delta"])
            _join_lists(own, one, "token_ids")
            if one["logprobs"] is not None:
                own["logprobs"] = own["logprobs"] or {"content": [], "refusal": None}
                own["logprobs"]["content"] += one["logprobs"]["content"]
            own.update({name: one[name] for name in ENDING if name in one})
    for own in choices.values():
        assert own["message"].pop("role") == "assistant"
        assert own["finish_reason"] is not None
        own["message"]["role"] = "assistant"
        for name in ("reasoning_content", "reasoning"):
            own["message"][name] = own["message"][name] or None
        if "token_ids" in own:
            own["response_token_ids"] = own["token_ids"]
    prompt = {name: chunk[name] for chunk in chunks for name in ("prompt_token_ids",) if name in chunk}
    return {**head, "object": "chat.completion", "choices": list(choices.values()), "usage": usage, **prompt, **TAIL}


def _empty_choice(index: int) -> Json:
    message = {"role": "", "content": "", "refusal": None, "reasoning_content": "", "reasoning": ""}
    return {"index": index, "message": message, "logprobs": None, **dict.fromkeys(ENDING)}


def _join_chat_delta(message: Json, delta: Json) -> None:
    assert delta.get("reasoning", delta["reasoning_content"]) == delta["reasoning_content"]
    for name in ("role", "content", "reasoning_content", "reasoning"):
        message[name] += delta.get(name) or ""
    for piece in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        function = piece["function"]
        if piece["index"] == len(calls):
            assert (piece["type"], function["arguments"]) == ("function", "")
            assert piece["id"] not in [one["id"] for one in calls]
            calls.append({**piece, "function": dict(function)})
        else:
            # Of the newest call only, and neither id nor name twice.
            assert piece["index"] == len(calls) - 1
            assert piece.keys() == {"index", "function"}
            assert function.keys() == {"arguments"}
            assert function["arguments"]
            calls[-1]["function"]["arguments"] += function["arguments"]


def _join_lists(own: Json, one: Json, *names: str) -> None:
    for name in names:
        if name in one:
            own[name] = own.get(name, []) + one[name]


def _join_completions(body: bytes) -> Any:
    chunks = frames(body)
    if (failure := failure_in(chunks)) is not None:
        return failure
    head = one_head(chunks, "text_completion")
    choices: dict[int, Json] = {}
    usage = None
    for chunk in chunks:
        if not chunk["choices"]:
            assert usage is None
            usage = chunk["usage"]
        for one in chunk["choices"]:
            assert usage is None
            own = choices.setdefault(
                one["index"], {"index": one["index"], "text": "", "logprobs": None, **dict.fromkeys(ENDING)}
            )
            assert own["finish_reason"] is None, "something follows the end of a choice"
            own["text"] += one["text"]
            _join_lists(own, one, "token_ids")
            own.update({name: one[name] for name in (*ENDING, "prompt_token_ids") if name in one})
            if one["logprobs"] is not None:
                own["logprobs"] = own["logprobs"] or {}
                _join_lists(own["logprobs"], one["logprobs"], *one["logprobs"])
    assert all(own["finish_reason"] is not None for own in choices.values())
    ordered = [choices[index] for index in range(len(choices))]
    return {**head, "choices": ordered, "usage": usage, **TAIL}


LISTS = ("output_token_logprobs", "output_top_logprobs")


def _join_generate(is_incremental: bool) -> Callable[[bytes], Any]:
    def join(body: bytes) -> Any:
        events = frames(body)
        if (failure := failure_in(events)) is not None:
            return failure
        samples: dict[int, Json] = {}
        for event in events:
            own = samples.get(event.get("index", 0))
            if own is not None:
                assert own["meta_info"]["finish_reason"] is None, "something follows the end of a sample"
                _check_generate(own, event) if not is_incremental else _add_generate(own, event)
            samples[event.get("index", 0)] = event
        finishes = [own["meta_info"]["finish_reason"] for own in samples.values()]
        assert None not in finishes
        for finish in finishes:
            if finish.get("status_code"):  # SGLang's way: not an error event, which a stream's status would be
                return Failure(finish["message"])
        is_list = [event.pop("index", None) for event in samples.values()] != [None]
        return [samples[index] for index in range(len(samples))] if is_list else samples[0]

    return join


def _check_generate(before: Json, event: Json) -> None:
    """Demand that a cumulative event takes nothing back."""
    assert event["text"].startswith(before["text"])
    assert event["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    for name in LISTS:
        if name in event["meta_info"]:
            old = before["meta_info"][name]
            assert event["meta_info"][name][: len(old)] == old


def _add_generate(before: Json, event: Json) -> None:
    for name in ("text", "output_ids"):
        event[name] = before[name] + event[name]
    for name in LISTS:
        if name in event["meta_info"]:
            event["meta_info"][name] = before["meta_info"][name] + event["meta_info"][name]


def _join_responses(body: bytes) -> Any:
    events = numbered(body.replace(PING_LINE, b""))
    response = read(event for event in events if event["type"] != "keepalive")
    return Failure(response["error"]["message"]) if response["status"] == "failed" else response


def _join_messages(body: bytes) -> Any:
    events = events_of(body)
    if events[-1]["type"] == "error":
        return Failure(events[-1]["error"]["message"])
    return message_of(events)


def _join_ollama(body: bytes) -> Any:
    assert body.endswith(b"\n")
    lines = [json.loads(line) for line in body.splitlines()]
    if (failure := failure_in(lines)) is not None:
        return failure
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    joined: Json = dict(lines[-1])
    for name in ("thinking", "response"):
        if any(name in line for line in lines):
            joined[name] = "".join(line.get(name, "") for line in lines)
    if "message" in joined:
        messages = [line["message"] for line in lines]
        joined["message"] = {"role": "assistant", "content": "".join(message["content"] for message in messages)}
        if thinking := "".join(message.get("thinking", "") for message in messages):
            joined["message"]["thinking"] = thinking
        if calls := [call for message in messages for call in message.get("tool_calls", ())]:
            joined["message"]["tool_calls"] = calls
    if logprobs := [entry for line in lines for entry in line.get("logprobs", ())]:
        joined["logprobs"] = logprobs
    return joined


USAGE = {"stream": True, "stream_options": {"include_usage": True}}

CHAT = Api(
    "chat",
    "/v1/chat/completions",
    {"messages": [USER]},
    _join_chat,
    "max_tokens",
    "stop",
    [CHAT_TOOL],
    stream=USAGE,
    several="n",
)
COMPLETIONS = Api(
    "completions",
    "/v1/completions",
    {"prompt": "x", "max_tokens": 4096},
    _join_completions,
    "max_tokens",
    "stop",
    stream=USAGE,
    several="n",
    is_parsed=False,
)
GENERATE = Api(
    "generate",
    "/generate",
    {"text": "x", "sampling_params": {"max_new_tokens": 4096}},
    _join_generate(False),
    "sampling_params.max_new_tokens",
    "sampling_params.stop",
    several="sampling_params.n",
    is_parsed=False,
)
INCREMENTAL = evolve(
    GENERATE,
    name="generate-incremental",
    join=_join_generate(True),
    model=evolve(MODEL, incremental_streaming_output=True),
)
RESPONSES = Api(
    "responses",
    "/v1/responses",
    {"input": "x"},
    _join_responses,
    "max_output_tokens",
    "stop",
    [{"type": "function", "name": "f", "parameters": SCHEMA}],
)
MESSAGES = Api(
    "messages",
    "/v1/messages",
    {"messages": [USER], "max_tokens": 4096},
    _join_messages,
    "max_tokens",
    "stop_sequences",
    [{"name": "f", "input_schema": SCHEMA}],
)
OLLAMA_CHAT = Api(
    "ollama-chat",
    "/api/chat",
    {"messages": [USER]},
    _join_ollama,
    "options.num_predict",
    "options.stop",
    [CHAT_TOOL],
    stream={},
    whole={"stream": False},
)
OLLAMA_GENERATE = Api(
    "ollama-generate",
    "/api/generate",
    {"prompt": "x"},
    _join_ollama,
    "options.num_predict",
    "options.stop",
    stream={},
    whole={"stream": False},
)
APIS = (CHAT, COMPLETIONS, GENERATE, INCREMENTAL, RESPONSES, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)
