"""Stand-ins for the stages behind ingress, on the trio clock: a scripted engine, a prompt stage, a small dialect."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Any

import orjson
import trio
from attrs import define, field, frozen

from stages.engine.port import Order, Scope
from stages.errors import Draining, EngineFailure, InvalidRequest, QueueFull
from stages.ingress.dialect import Call, Collected, Dialect, Encoder, Parsed, Route
from stages.ingress.error_bodies import message_of, openai_error
from stages.messages import (
    Ask,
    CommandResult,
    Delta,
    Ended,
    Event,
    Finish,
    Limits,
    Prompt,
    Render,
    Sampling,
    Submit,
    Usage,
    Work,
)
from stages.prompt.stage import run_prompt_stage
from stages.request import Services
from stages.settings import ModelSettings, PromptSettings

Step = tuple[float, Event]
Script = Callable[[Submit], Iterable[Step]]
Obey = Callable[[Order], Awaitable[CommandResult]]

FAKE_MODEL = ModelSettings(
    served_model_name="fake",
    model_path="/models/fake",
    model_type="glm5_next",
    architectures=("Glm5NextForCausalLM",),
    context_length_tokens=4096,
    vocab_size=512,
    eos_token_ids=frozenset({1}),
    reasoning_parser="glm45",
    tool_call_parser="glm47",
    default_sampling=Sampling(),
)


def counting(num_tokens: int, delay_s: float = 1.0) -> Script:
    """A script of num_tokens words, one every delay_s, ended by the length limit."""

    def script(submit: Submit) -> Iterable[Step]:
        choice = submit.key.choice
        prompt_tokens = len(submit.prompt_ids)
        for index in range(min(num_tokens, submit.max_new_tokens)):
            yield delay_s, Delta(choice, (index,), f"{index} ", usage=Usage(prompt_tokens, index + 1))
        yield 0.0, Ended(choice, Finish("length"), Usage(prompt_tokens, num_tokens))

    return script


def silent(submit: Submit) -> Iterable[Step]:
    """A script that never says anything."""
    yield float("inf"), Ended(submit.key.choice, Finish("length"), Usage(0, 0))


async def obedient(order: Order) -> CommandResult:
    """Carry out any order at once."""
    return CommandResult(is_done=True)


@frozen
class Aborted:
    """What FakeEngine keeps of a cancel that is not a plain one of a request."""

    request_id: str
    message: str
    scope: Scope


@define(eq=False)
class FakeEngine:
    """Plays `script` for every choice and has orders carried out by `obey`; keeps what was asked of it.

    A submit beyond max_choices at once is refused. A cancel with `deliver` ends its choices with an Ended("abort").
    """

    nursery: trio.Nursery
    script: Script
    max_choices: int = 1_000_000
    draining: bool = False
    submits: list[Submit] = field(factory=list)
    cancelled: list[str] = field(factory=list)
    running: dict[str, tuple[Submit, trio.CancelScope]] = field(factory=dict)
    obey: Obey = obedient
    orders: list[Order] = field(factory=list)
    aborted: list[Aborted] = field(factory=list)

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Start the script of every choice."""
        if self.draining:
            raise Draining
        if len(self.running) + len(submits) > self.max_choices:
            raise QueueFull
        for submit in submits:
            self.submits.append(submit)
            scope = trio.CancelScope()
            self.running[str(submit.key)] = submit, scope
            self.nursery.start_soon(self._play, submit, scope)

    def cancel(
        self, request_id: str, *, deliver: bool = False, message: str = "Aborted", scope: Scope = "request"
    ) -> None:
        """Stop the scripts of the requests named; keeps the ids of those that were still running."""
        if deliver or scope != "request":
            self.aborted.append(Aborted(request_id, message, scope))
        live = dict.fromkeys(key.rpartition("/")[0] for key in self.running)
        named = [name for name in live if scope == "all" or name == request_id]
        if scope == "prefix":
            named = [name for name in live if request_id and name.startswith(request_id)]
        self.cancelled.extend(named)
        keys = [key for key in self.running if key.rpartition("/")[0] in named]
        for key in keys:
            submit, script_scope = self.running.pop(key)
            script_scope.cancel()
            if deliver:
                with suppress(trio.BrokenResourceError):
                    usage = Usage(len(submit.prompt_ids), 0)
                    submit.mailbox.send_nowait(Ended(submit.key.choice, Finish("abort", message=message), usage))

    async def command(self, order: Order) -> CommandResult:
        """Have `obey` carry out the order."""
        if self.draining:
            raise Draining
        self.orders.append(order)
        return await self.obey(order)

    async def _play(self, submit: Submit, scope: trio.CancelScope) -> None:
        with scope, suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            steps = iter(self.script(submit))
            first = next(steps)
            if submit.tells_start:
                usage = Usage(len(submit.prompt_ids), 0, first[1].usage.cached_tokens)
                submit.mailbox.send_nowait(Delta(submit.key.choice, (), usage=usage))
            for delay_s, event in chain([first], steps):
                if delay_s:
                    await trio.sleep(delay_s)
                if isinstance(event, Ended):
                    del self.running[str(submit.key)]
                try:
                    submit.mailbox.send_nowait(event)
                except trio.WouldBlock:
                    submit.mailbox.close()  # a reader this far behind is cut off, as by the detokenizer


async def fake_prompt_stage(renders: "trio.MemoryReceiveChannel[Render]", delay_s: float = 0.0) -> None:
    """Answer every Render, text with one id a character; "unrenderable" is refused."""
    async for render in renders:
        await trio.sleep(delay_s)
        with suppress(trio.BrokenResourceError):  # its request has gone
            render.reply.send_nowait(_fake_prompt(render.prompt))


def _fake_prompt(prompt: Work) -> Prompt | Exception:
    if prompt == "unrenderable":
        return InvalidRequest("This prompt cannot be rendered.", "prompt")
    ids = prompt if isinstance(prompt, tuple) else tuple(ord(letter) % 512 for letter in str(prompt))
    return Prompt(ids, in_reasoning=False)


@define(eq=False)
class Fakes:
    """The services a request task needs, and the engine behind them."""

    services: Services
    engine: FakeEngine


@asynccontextmanager
async def fake_services(
    script: Script,
    *,
    model: ModelSettings = FAKE_MODEL,
    max_choices: int = 1_000_000,
    render_s: float = 0.0,
    tokenizer: str | None = None,
) -> AsyncIterator[Fakes]:
    """Run a fake engine for the block, and a fake prompt stage, or the real one where there is a tokenizer."""
    renders_send, renders_receive = trio.open_memory_channel[Render](4096)
    async with trio.open_nursery() as nursery:
        engine = FakeEngine(nursery, script, max_choices)
        if tokenizer is None:
            nursery.start_soon(fake_prompt_stage, renders_receive, render_s)
        else:
            await nursery.start(run_prompt_stage, PromptSettings(tokenizer), renders_receive)
        yield Fakes(Services(engine, renders_send, model), engine)
        nursery.cancel_scope.cancel()


class TextEncoder:
    """Frames are `data: index/choice text`; the body lists the texts; an Ended "error" fails the call."""

    def start(self) -> list[bytes]:
        return [b"data: start\n\n"]

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        if isinstance(event, Ended):
            if event.finish.kind == "error":
                raise EngineFailure("the script says so")
            return [b"data: %d/%d ended %b\n\n" % (ask_index, event.choice, event.finish.kind.encode())]
        return [b"data: %d/%d %b\n\n" % (ask_index, event.choice, event.text.encode())] if event.text else []

    def finish(self) -> list[bytes]:
        return [b"data: [DONE]\n\n"]

    def failed(self, error: Exception) -> list[bytes]:
        return [b"data: error " + message_of(error).encode() + b"\n\n", b"data: [DONE]\n\n"]

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        texts = []
        for one in collected:
            if any(isinstance(event, Ended) and event.finish.kind == "error" for event in one.events):
                raise EngineFailure("the script says so")
            texts.append("".join(event.text for event in one.events if isinstance(event, Delta)))
        return 200, {"texts": texts}


def parse_text_call(call: Call, model: ModelSettings) -> Parsed:
    """Read {"prompts": [...], "stream", "n", "max_tokens", "timeout_s", "rid", "errors_in_stream"}."""
    body = call.body
    prompts = body.get("prompts")
    if not isinstance(prompts, list):
        raise InvalidRequest("prompts must be a list", "prompts")
    asks = tuple(
        Ask(
            request_id=f"{body.get('rid', call.request_id)}_{index}",
            prompt=prompt,
            limits=Limits(max_new_tokens=body.get("max_tokens", 64)),
            num_choices=body.get("n", 1),
            stream=body.get("stream", False),
            timeout_s=body.get("timeout_s"),
        )
        for index, prompt in enumerate(prompts)
    )
    encoder: Encoder = TextEncoder()
    return Parsed(asks, body.get("stream", False), encoder, errors_in_stream=body.get("errors_in_stream", False))


TEXT_DIALECT = Dialect("text", (Route("/text", ("POST", "PUT")),), parse_text_call, openai_error)
LAX_TEXT_DIALECT = Dialect("lax", (Route("/lax"),), parse_text_call, openai_error, json_only=False, ping=None)


class FakeWire:
    """A Wire that keeps what was sent, with the virtual instants; `write_s` makes each write take time."""

    def __init__(self, write_s: float = 0.0) -> None:
        self.started = False
        self.ended = False
        self.written_s = trio.current_time()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self.instants_s: list[float] = []
        self._write_s = write_s

    async def start(self, status: int, headers: Any, body: bytes = b"") -> None:
        assert not self.started
        self.started, self.status, self.headers = True, status, dict(headers)
        await self.write(body)

    async def write(self, data: bytes) -> None:
        assert self.started
        assert not self.ended
        if not data:
            return
        self.written_s = trio.current_time()
        await trio.sleep(self._write_s)
        self.chunks.append(data)
        self.instants_s.append(trio.current_time())

    @property
    def can_write_now(self) -> bool:
        return False

    def write_now(self, data: bytes) -> bytes:
        raise AssertionError("this wire takes nothing at once")

    async def write_rest(self, rest: bytes) -> None:
        raise AssertionError("there is no rest")

    async def end(self, body: bytes = b"") -> None:
        assert self.started
        assert not self.ended
        await self.write(body)
        self.ended = True

    @property
    def text(self) -> str:
        return b"".join(self.chunks).decode()

    @property
    def json(self) -> Any:
        return orjson.loads(b"".join(self.chunks))


class DirectWire(FakeWire):
    """A FakeWire that also takes pieces at once, of each as many bytes as room() says; `busy` makes it take none."""

    def __init__(self, room: Callable[[], int], write_s: float = 0.0) -> None:
        super().__init__(write_s)
        self.busy = False
        self.num_direct = 0
        self._room = room
        self._is_cut = False

    @property
    def can_write_now(self) -> bool:
        return self.started and not self.ended and not self.busy

    def write_now(self, data: bytes) -> bytes:
        assert data
        assert not self._is_cut, "the rest of a piece comes before the next"
        self.num_direct += 1
        self.written_s = trio.current_time()
        room = self._room()
        if data[:room]:
            self.chunks.append(data[:room])
            self.instants_s.append(trio.current_time())
        self._is_cut = bool(data[room:])
        return data[room:]

    async def write(self, data: bytes) -> None:
        assert not self._is_cut, "the rest of a piece comes before the next"
        await super().write(data)

    async def write_rest(self, rest: bytes) -> None:
        assert self._is_cut
        self._is_cut = False
        with trio.CancelScope(shield=True):
            await super().write(rest)
