"""However a call ends, its client is told: by a status, or in a stream by its API's last event; and nothing is left.

What forces each end is the same for every API, what the client must then hear is a table.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import orjson
import pytest
import trio
from attrs import evolve, field, frozen

from stages.messages import Finish
from stages.settings import IngressSettings
from tests.scripted.apis import (
    APIS,
    CHAT,
    COMPLETIONS,
    GENERATE,
    INCREMENTAL,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPONSES,
    Api,
    Failure,
    error_text,
    put,
)
from tests.scripted.asking import LENGTH, STOP, end_of, text_of
from tests.scripted.script import Script, call, encoded, script
from tests.scripted.server import Exchange, ScriptedServer, by_choice, scripted_server

over_every_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
in_both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

ENDLESS = Script(encoded("hm</think>Hello there " + call(s="Paris")) * 40)
GENERIC = "Internal server error"
DRAINING = "The server is shutting down."
DEADLINE = "Request running timeout reached."
FULL = "The request queue is full."
ABORTED = {"messages": "The request was aborted.", "responses": "Aborted"}


@frozen(eq=False)
class Ending:
    """What forces an end at 6 s, six tokens into the answer, and what its client hears of it.

    `status` is that of a call without a stream, and of a stream that has not begun; `failure` is the error's text, None
    for an ordinary end.
    """

    failure: str | None
    status: int = 200
    force: Callable[[ScriptedServer], Awaitable[None] | None] = lambda server: None
    engine: dict[str, Any] = field(factory=dict)
    body: dict[str, Any] = field(factory=dict)
    # Whether it comes before anything was admitted, so that a stream gets the status too.
    is_refusal: bool = False
    # SGLang's own API tells an abort by the system in its own words, whatever the status.
    in_sglang: str | None = None

    def words(self, api: Api) -> str | None:
        """The error's text in an API."""
        return self.in_sglang if self.in_sglang and api in (GENERATE, INCREMENTAL) else self.failure


async def _abort(server: ScriptedServer) -> None:
    (submit, *_) = server.engine.submits
    assert (await server.post("/abort_request", {"rid": submit.key.request_id})).status == 200


async def _abort_all(server: ScriptedServer) -> None:
    assert (await server.post("/abort_request", {"abort_all": True})).status == 200


def _fault(server: ScriptedServer) -> None:
    server.engine.fail(Finish("error", message="/secret/path: device lost", status=500))


def _no_room(server: ScriptedServer) -> None:
    server.engine.fail(Finish("abort", message="There is no memory left.", status=500))


def _let_go(server: ScriptedServer) -> None:
    server.engine.fail(Finish("abort", message="Request waiting timeout reached.", status=503))


def _cut_off(server: ScriptedServer) -> None:
    for stepper in server.engine.running.values():
        stepper.submit.mailbox.close()
    server.engine.running.clear()


def _cutoff(server: ScriptedServer) -> None:
    server.serving.cutoff.set()


def _stage_failed(server: ScriptedServer) -> None:
    server.serving.failed.set()
    server.serving.cutoff.set()


ENDINGS = {
    "an engine's fault": Ending(GENERIC, 500, _fault),
    "no memory left": Ending(GENERIC, 500, _no_room, in_sglang="There is no memory left."),
    "let go from the queue": Ending("Request waiting timeout reached.", 503, _let_go),
    "a mailbox cut off": Ending(GENERIC, 500, _cut_off),
    "the drain's end": Ending(DRAINING, 503, _cutoff),
    "a stage that failed": Ending(GENERIC, 500, _stage_failed),
    "its deadline": Ending(DEADLINE, 503, body={"request_timeout": 6.0}),
    "a full queue": Ending(FULL, 503, engine={"max_choices": 0}, is_refusal=True),
    "a server that drains": Ending(DRAINING, 503, engine={"draining": True}, is_refusal=True),
}
on_every_ending = pytest.mark.parametrize("name", ENDINGS)


def wanted(api: Api, body: dict[str, Any], stream: bool) -> dict[str, Any]:
    return {**api.ask(stream=stream), **body}


async def ended(api: Api, ending: Ending, stream: bool) -> tuple[Exchange, ScriptedServer]:
    """Run one call to its forced end."""
    async with scripted_server(by_choice([ENDLESS]), model=api.model, **ending.engine) as server:
        async with trio.open_nursery() as nursery:
            exchange = Exchange()

            async def ask() -> None:
                sent = await server.post(api.path, wanted(api, ending.body, stream))
                for name in ("status", "headers", "chunks", "has_ended"):
                    setattr(exchange, name, getattr(sent, name))

            nursery.start_soon(ask)
            await trio.sleep(5.5)
            if (forcing := ending.force(server)) is not None:
                await forcing
        await trio.sleep(3)
        assert not server.engine.running
        assert not server.serving.live_ids
        assert not server.serving.answering
    return exchange, server


@over_every_api
@on_every_ending
async def test_without_a_stream_a_failure_is_a_status_with_a_body_of_the_api(
    api: Api, name: str, autojump_clock: Any
) -> None:
    ending = ENDINGS[name]
    exchange, _ = await ended(api, ending, stream=False)
    assert exchange.has_ended
    assert (exchange.status, error_text(exchange.json)) == (ending.status, ending.words(api))
    assert ("retry-after" in exchange.headers) == (ending.status == 503)
    assert ("x-trnrt-queue-full" in exchange.headers) == (ending.failure == FULL)
    assert "secret" not in exchange.body.decode()


@over_every_api
@on_every_ending
async def test_a_stream_that_fails_ends_in_its_apis_last_event(api: Api, name: str, autojump_clock: Any) -> None:
    ending = ENDINGS[name]
    exchange, _ = await ended(api, ending, stream=True)
    assert exchange.has_ended
    if ending.is_refusal:
        assert (exchange.status, error_text(exchange.json)) == (ending.status, ending.failure)
        assert exchange.headers["retry-after"]
        return
    assert exchange.status == 200
    # The reader demands the terminator, and that nothing follows it.
    assert api.answer(exchange) == Failure(ending.words(api))
    assert "secret" not in exchange.body.decode()
    assert "Hello" in exchange.body.decode()


@over_every_api
@in_both_modes
@pytest.mark.parametrize("abort", [_abort, _abort_all], ids=["its id", "all"])
async def test_an_operators_abort_keeps_what_there_is(
    api: Api, stream: bool, abort: Callable[[ScriptedServer], Awaitable[None]], autojump_clock: Any
) -> None:
    exchange, _ = await ended(api, Ending(None, force=abort), stream)
    told = api.answer(exchange)
    if api.name in ABORTED:
        assert told == Failure(ABORTED[api.name])
        assert exchange.status == (500 if api is MESSAGES and not stream else 200)
    else:
        assert (end_of(told), "Hello" in text_of(told)) == ("abort", True)


@over_every_api
@in_both_modes
async def test_the_budgets_end_is_told_as_that(api: Api, stream: bool, autojump_clock: Any) -> None:
    async with scripted_server(by_choice([ENDLESS]), model=api.model) as server:
        told = api.answer(await server.post(api.path, api.ask(stream=stream, budget=5)))
    assert end_of(told) == LENGTH.get(api.name, "length")


@over_every_api
@in_both_modes
async def test_a_stop_string_ends_the_engines_work_too(api: Api, stream: bool, autojump_clock: Any) -> None:
    async with scripted_server(by_choice([ENDLESS]), model=api.model) as server:
        told = api.answer(await server.post(api.path, api.ask(stream=stream, stop=["there"])))
        assert end_of(told) == {"messages": "stop_sequence"}.get(api.name, STOP.get(api.name, "stop"))
        assert text_of(told).endswith("Hello ")
        assert not server.engine.running


SMALL = 40
# Where a budget is cut to what the context has room for.
SHRINK = (MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)
TOO_LONG = "All work and no play makes a long prompt. " * 30


@over_every_api
@in_both_modes
@pytest.mark.parametrize("is_alone", [True, False], ids=["the prompt alone", "with its budget"])
async def test_an_input_beyond_the_context_is_a_400_in_the_words_agents_look_for(
    api: Api, stream: bool, is_alone: bool, autojump_clock: Any
) -> None:
    body = wanted(api, {}, stream)
    if is_alone:
        (name,) = [name for name in ("messages", "prompt", "text", "input") if name in body]
        body[name] = [{"role": "user", "content": TOO_LONG}] if name == "messages" else TOO_LONG
    put(body, api.budget, 5 if is_alone else 9000)
    model = evolve(api.model, context_length_tokens=SMALL) if is_alone else api.model
    async with scripted_server(by_choice([script("hm")]), model=model) as server:
        exchange = await server.post(api.path, body)
        assert bool(server.engine.submits) == (api in SHRINK and not is_alone)
    if api in SHRINK and not is_alone:
        assert exchange.status == 200
        return
    is_200 = stream and api in (GENERATE, INCREMENTAL)  # SGLang's way
    assert exchange.status == (200 if is_200 else 400)
    text = api.answer(exchange).message
    if api is MESSAGES:
        assert text.startswith("prompt is too long: ")
        assert text.endswith(f"> {SMALL - 1} maximum")
    elif api in (CHAT, COMPLETIONS, RESPONSES):
        assert f"maximum context length is {model.context_length_tokens} tokens" in text
        assert exchange.json["error"]["code"] == "context_length_exceeded"
        assert exchange.json["error"]["param"] in body
    else:
        assert "context length" in text


@pytest.mark.parametrize(
    ("api", "n"),
    [pytest.param(api, n, id=f"{api.name}-{n}") for api in APIS for n in ((1, 3) if api.several else (1,))],
)
@in_both_modes
@pytest.mark.parametrize("after_s", [0.5, 5.5], ids=["before the first token", "in the middle"])
async def test_a_client_that_leaves_frees_every_choice(
    api: Api, stream: bool, after_s: float, n: int, autojump_clock: Any
) -> None:
    exchange = Exchange()
    async with scripted_server(by_choice([ENDLESS] * n), model=api.model) as server:
        async with trio.open_nursery() as nursery:
            headers = {"content-type": "application/json"}
            data = orjson.dumps(api.ask(stream=stream, n=n))
            nursery.start_soon(exchange.run, server.app, api.path, data, headers, "POST")
            await trio.sleep(after_s)
            assert len(server.engine.running) == n
            exchange.left.set()
            await trio.sleep(0.001)
            assert not server.engine.running
        assert not server.serving.live_ids
        assert not server.serving.answering
    assert not exchange.has_ended


PREFILL_S = 61.0
PING_S = 15.0
SILENT = (GENERATE, INCREMENTAL, OLLAMA_CHAT, OLLAMA_GENERATE)


@over_every_api
@pytest.mark.parametrize("ending", ["an ordinary end", "an engine's fault"])
async def test_through_a_prefill_of_a_minute_a_stream_is_open_and_not_silent(
    api: Api, ending: str, autojump_clock: Any
) -> None:
    began_s = trio.current_time()
    texts = [script("hm</think>Hi", None if ending == "an ordinary end" else Finish("error", message="lost"))]
    settings = IngressSettings(sse_ping_s=PING_S)
    async with scripted_server(by_choice(texts), model=api.model, settings=settings, prefill_s=PREFILL_S) as server:
        exchange = await server.post(api.path, api.ask(stream=True))
    assert exchange.started_s == began_s
    instants_s = [began_s, *(at_s for at_s, _ in exchange.chunks)]
    longest_s = max(after - before for before, after in pairwise(instants_s))
    # Neither SGLang's API nor Ollama's has a frame that says nothing.
    assert longest_s >= PREFILL_S if api in SILENT else longest_s == PING_S
    told = api.answer(exchange)
    assert isinstance(told, Failure) == (ending != "an ordinary end")


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Have one method of every encoder raise what nobody expected."""
    with mock.patch(name, side_effect=KeyError("/secret/path")):
        yield


DELTAS = {
    "chat": "stages.ingress.dialects.openai_chat_answer.ChatEncoder._deltas",
    "completions": "stages.ingress.dialects.openai_completions.CompletionEncoder._index",
    "generate": "stages.ingress.dialects.sglang_answer.GenerateEncoder._object",
    "generate-incremental": "stages.ingress.dialects.sglang_answer.GenerateEncoder._object",
    "responses": "stages.ingress.dialects.openai_responses_answer.Output.add",
    "messages": "stages.ingress.dialects.anthropic_blocks.Blocks.take",
    "ollama-chat": "stages.ingress.dialects.ollama_answer.OllamaEncoder._said",
    "ollama-generate": "stages.ingress.dialects.ollama_answer.OllamaEncoder._said",
}


@over_every_api
async def test_a_mistake_of_our_own_in_a_stream_is_told_in_general_words_and_ends_it(
    api: Api, autojump_clock: Any
) -> None:
    async with scripted_server(by_choice([ENDLESS]), model=api.model) as server:
        with broken(DELTAS[api.name]):
            exchange = await server.post(api.path, api.ask(stream=True))
        assert not server.engine.running
    assert api.answer(exchange) == Failure(GENERIC)
    assert b"secret" not in exchange.body
    assert b"Traceback" not in exchange.body
