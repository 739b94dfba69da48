"""Calls whose every byte is kept: for each API some requests, what the model generates for them, and all that is sent.

A transcript is the request, the events of its choices and the bytes of its answer, each with its instant on a virtual
clock. Ids and the date are the same in all of them, so a line that changes is one a client would see change.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import trio
import trio.testing
from attrs import field, frozen

from stages.messages import Delta, Ended, Event, Finish
from tests.scripted.apis import APIS, Api, put
from tests.scripted.script import END, END_OF_TEXT, call, script
from tests.scripted.server import Exchange, ScriptedServer, by_choice, scripted_server

CACHED_TOKENS = 4
FORCED_AT_S = 2.5
PLAIN = "</think>Hi 🧑‍🚀é, all is well."
THINKS = "So: hi.</think>Hi."
TYPED = call(s="123", i="5", o='{"a": [1, "x\\"y"]}')
TWO = "</think>Both:\n" + call(s="Rome") + "\n" + call()


@frozen(eq=False)
class Told:
    """One call: what is added to its API's body, what its choices generate in which steps, and what befalls it."""

    texts: Sequence[str] = (PLAIN,)
    stream: bool = True
    more: Mapping[str, Any] = field(factory=dict)
    cuts: Sequence[int] = (4,)
    finish: Finish | None = None
    force: Callable[[ScriptedServer], None] | None = None
    engine: Mapping[str, Any] = field(factory=dict)
    with_tools: bool = False


def _fault(server: ScriptedServer) -> None:
    server.engine.fail(Finish("error", message="the device is lost", status=500))


def _abort(server: ScriptedServer) -> None:
    server.serving.services.abort_all()


LOGPROBS: dict[str, Mapping[str, Any]] = {
    "chat": {"logprobs": True, "top_logprobs": 2},
    "completions": {"logprobs": 2, "echo": False},
    "generate": {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True},
    "generate-incremental": {"return_logprob": True, "top_logprobs_num": 2},
    "ollama-chat": {"logprobs": True, "top_logprobs": 2},
    "ollama-generate": {"logprobs": True},
}
CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
# What only some APIs have.
OWN: dict[str, dict[str, Told]] = {
    "chat": {
        "usage all along": Told(("</think>Hi.",), more=CONTINUOUS, cuts=(2,)),
        "token ids": Told((THINKS,), more={"return_token_ids": True}),
    },
    "completions": {
        "usage all along": Told(("Hi.",), more=CONTINUOUS, cuts=(1,)),
        "its own prompt first": Told(("Hi.",), more={"echo": True}),
    },
    "generate": {"the prompt's ids, not streamed": Told(more={"return_prompt_token_ids": True}, stream=False)},
    "responses": {
        "a summary and a blob": Told(
            (THINKS,), more={"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
        ),
        "a custom tool": Told(
            ("</think>" + call("patch", input='+a "b" \\ é\n'),),
            more={"tools": [{"type": "custom", "name": "patch"}]},
        ),
    },
    "messages": {"thinking omitted": Told((THINKS,), more={"thinking": {"type": "adaptive", "display": "omitted"}})},
}


def table(api: Api) -> dict[str, Told]:
    """The calls of one API."""
    long = {api.budget: 100_000}
    calls = {
        "plain": Told(),
        "plain, not streamed": Told(stream=False),
        "a stop string": Told(("</think>alpha END beta",), more={api.stop: ["END"]}, cuts=(1,)),
        "the budget used up": Told(("</think>" + "one two three four",), more={api.budget: 4}, cuts=(3,)),
        "refused": Told(more={api.stop: 5}),
        "a full queue": Told(engine={"max_choices": 0}),
        "a failure in the stream": Told(force=_fault),
        "a failure, not streamed": Told(force=_fault, stream=False),
        "aborted in the stream": Told(force=_abort),
    }
    if not api.name.startswith("ollama"):
        calls["beyond the context"] = Told(more=long)
    if api.is_parsed:
        calls["reasoning"] = Told((THINKS,), cuts=(2,))
        calls["reasoning, not streamed"] = Told((THINKS,), stream=False)
    if api.tools:
        calls["a call"] = Told(("hm</think>" + TYPED,), with_tools=True, cuts=(3,))
        calls["two calls"] = Told((TWO,), with_tools=True, cuts=(5,))
        calls["two calls, not streamed"] = Told((TWO,), with_tools=True, stream=False)
        calls["a call cut off"] = Told(
            ("</think>" + call(s="Paris")[:-28],), with_tools=True, finish=Finish("length"), cuts=(3,)
        )
    if api.name in LOGPROBS:
        calls["logprobs"] = Told(("</think>é!",), more=LOGPROBS[api.name], cuts=(2,))
        calls["logprobs, not streamed"] = Told(("</think>é!",), more=LOGPROBS[api.name], stream=False)
    if api.several:
        calls["two choices"] = Told(("</think>One.", THINKS), more={api.several: 2}, cuts=(3,))
    return {**calls, **OWN.get(api.name, {})}


def record(api: Api) -> str:
    """Return the transcripts of one API as text."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return "\n\n".join(trio.run(_told, api, name, told, clock=clock) for name, told in table(api).items()) + "\n"


async def _told(api: Api, name: str, told: Told) -> str:
    body = _body(api, told)
    scripts = [script(text, told.finish, END if told.with_tools else END_OF_TEXT) for text in told.texts]
    began_s = trio.current_time()
    lines = [f"## {name}", "", f"POST {api.path}", json.dumps(body, ensure_ascii=False)]
    lines += [f"choice {index} generates {text!r}" for index, text in enumerate(told.texts)]
    engine = {"cuts": told.cuts, "cached_tokens": CACHED_TOKENS, **told.engine}
    async with scripted_server(by_choice(scripts), model=api.model, **engine) as server:
        exchange = await _run(server, api, body, told)
    timed = [(at_s, _event(event)) for at_s, event in server.engine.delivered]
    timed.append((exchange.started_s, f"{exchange.status} {json.dumps(exchange.headers)}"))
    # What goes out at one instant is one piece here, however many writes it took.
    for at_s, chunks in groupby(exchange.chunks, key=lambda one: one[0]):
        text = b"".join(data for _, data in chunks).decode()
        timed += [(at_s, f"< {line}") for line in text.split("\n")]
    timed.sort(key=lambda one: one[0])
    return "\n".join([*lines, "", *(f"{at_s - began_s:g} s {text}".rstrip() for at_s, text in timed)])


def _body(api: Api, told: Told) -> dict[str, Any]:
    body = api.ask(stream=told.stream)
    if not told.with_tools:
        body.pop("tools", None)
    for name, value in told.more.items():
        put(body, name, value)
    return body


async def _run(server: ScriptedServer, api: Api, body: dict[str, Any], told: Told) -> Exchange:
    exchanges: list[Exchange] = []

    async def ask() -> None:
        exchanges.append(await server.post(api.path, body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        if told.force is not None:
            await trio.sleep(FORCED_AT_S)
            told.force(server)
    (exchange,) = exchanges
    assert exchange.has_ended
    return exchange


def _event(event: Event) -> str:
    if isinstance(event, Ended):
        finish = event.finish
        details = {"matched": finish.matched, "message": finish.message, "status": finish.status}
        told = [f"{name} {value!r}" for name, value in details.items() if value is not None]
        return f"choice {event.choice}: {', '.join([f'ended by {finish.kind}', *told])}"
    return f"choice {event.choice}: {', '.join(_delta(event))}"


def _delta(delta: Delta) -> list[str]:
    parts = [f"ids {' '.join(map(str, delta.token_ids))}"]
    parts += [f"{name} {text!r}" for name in ("reasoning", "text") if (text := getattr(delta, name))]
    for piece in delta.tool_calls:
        parts.append(f"call {piece.index}" + (f" of {piece.name}" if piece.name else f" + {piece.arguments!r}"))
    return parts


RECORDED = {api.name: api for api in APIS}
