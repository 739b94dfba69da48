"""Asks a scripted server and says what its clients make of the answers, and where the parts of an answer stand."""

import json
from collections.abc import Sequence
from typing import Any

import trio
import trio.testing

from tests.scripted.apis import Api
from tests.scripted.script import Script
from tests.scripted.server import by_choice, scripted_server

# A body, what each of its choices generates, and how that is cut.
Asked = tuple[Any, Sequence[Script], Sequence[int]]


def answers(api: Api, *asked: Asked) -> list[Any]:
    """What a client of the API makes of each answer."""

    async def run() -> list[Any]:
        told = []
        async with scripted_server(
            by_choice([]), model=api.model, gap_s=0.001, prefill_s=0.001, cached_tokens=1
        ) as server:
            for body, scripts, cuts in asked:
                server.engine.script_of, server.engine.cuts = by_choice(scripts), cuts
                told.append(api.answer(await server.post(api.path, body)))
        return told

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def first(answer: Any) -> Any:
    """The only choice of an answer, in whatever form the API has it."""
    one = answer[0] if isinstance(answer, list) else answer
    return one["choices"][0] if "choices" in one else one


def _blocks(answer: Any, kind: str) -> list[Any]:
    return [block for block in answer.get("content", answer.get("output", ())) if block["type"] == kind]


def text_of(answer: Any) -> str:
    """The visible text of an answer's first choice."""
    choice = first(answer)
    if "output" in choice:
        return "".join(item["content"][0]["text"] for item in _blocks(choice, "message"))
    if isinstance(choice.get("content"), list):
        return "".join(block["text"] for block in _blocks(choice, "text"))
    message = choice.get("message", choice)
    return str(message.get("content", message.get("text", message.get("response"))))


def reasoning_of(answer: Any) -> str:
    """The reasoning of an answer's first choice."""
    choice = first(answer)
    if "output" in choice:
        return "".join(item["content"][0]["text"] for item in _blocks(choice, "reasoning"))
    if isinstance(choice.get("content"), list):
        return "".join(block["thinking"] for block in _blocks(choice, "thinking"))
    message = choice.get("message", choice)
    return message.get("reasoning_content") or message.get("thinking") or ""


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    """The calls of an answer's first choice: names and arguments as values."""
    choice = first(answer)
    if "output" in choice:
        return [(item["name"], json.loads(item["arguments"])) for item in _blocks(choice, "function_call")]
    if isinstance(choice.get("content"), list):
        return [(block["name"], block["input"]) for block in _blocks(choice, "tool_use")]
    functions = [call["function"] for call in choice.get("message", choice).get("tool_calls", ())]
    given = [(function["name"], function["arguments"]) for function in functions]
    return [(name, json.loads(text) if isinstance(text, str) else text) for name, text in given]


def end_of(answer: Any) -> str:
    """How an answer's first choice ended, in the API's own word."""
    choice = first(answer)
    if "meta_info" in choice:
        return str(choice["meta_info"]["finish_reason"]["type"])
    names = ("finish_reason", "stop_reason", "done_reason", "status")
    return str(next(choice[name] for name in names if name in choice))


# By the scheduler's word, how each API tells an end.
LENGTH = {"messages": "max_tokens", "responses": "incomplete"}
STOP = {"messages": "end_turn", "responses": "completed"}
