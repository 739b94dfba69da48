"""The whole application over a scheduler that follows scripts, called in-process: HTTP without sockets or threads.

Template, tokenizer, dialects, request task and detokenizer are the real ones. Whatever has a time has one of trio's
clock, so a test under a MockClock sees exact instants.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import orjson
import trio
from attrs import define, evolve, field, frozen

import stages.ingress.app
import stages.ingress.generation
from stages.detokenizer.stage import Detokenizer
from stages.engine.port import Order, Scope
from stages.errors import Draining, QueueFull
from stages.ingress.app import App
from stages.ingress.calls import Calls
from stages.ingress.dialects import find_dialects
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.messages import (
    Cancel,
    CommandResult,
    Event,
    Finish,
    Render,
    Submit,
    TokenGaps,
    Tokens,
    TokensRow,
    Usage,
    Work,
    WorkDone,
)
from stages.prompt.stage import Prompter
from stages.prompt.templates import load_template
from stages.request import Services
from stages.settings import IngressSettings, ModelSettings
from stages.stats.book import Book
from stages.stats.sources import Sources
from stages.stats.stage import Stats, open_stats, run_stats
from tests.scripted.script import DECODING, MODEL, TOKENIZER, Script, Stepper
from tests.stages.ingress.http import fake_info

ScriptOf = Callable[[Submit], Script]
# What the prompt stage makes of a work, None for no answer ever.
PromptOf = Callable[[Work], WorkDone | Exception | None]
# A request's id and second: the same for every call, so that two answers can be compared to the last byte.
REQUEST_ID = "0123456789abcdef0123456789abcdef"
CREATED_S = 1_700_000_000
FOREVER_S = 1e6


@define(eq=False)
class ScriptedEngine:
    """Sends what scripts say, so many tokens of every choice in each step as `cuts` has it, over and over.

    A step is every gap_s, a choice's first after prefill_s.

    A submit beyond max_choices at once is refused. `delivered` gets every event with its instant.
    """

    script_of: ScriptOf
    cuts: Sequence[int] = (1,)
    gap_s: float = 1.0
    prefill_s: float = 1.0
    cached_tokens: int = 0
    max_choices: int = 1_000_000
    draining: bool = False
    # Rows of no script, for the next step.
    extra: list[TokensRow] = field(factory=list)
    submits: list[Submit] = field(factory=list)
    delivered: list[tuple[float, Event]] = field(factory=list)
    running: dict[str, Stepper] = field(factory=dict)
    _ready_s: dict[str, float] = field(factory=dict)
    _num_steps: int = 0
    tell: Callable[[TokenGaps], None] | None = None
    _wake: trio.Event = field(factory=trio.Event)

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Begin with every choice's prefill."""
        if self.draining:
            raise Draining
        if len(self.running) + len(submits) > self.max_choices:
            raise QueueFull
        for submit in submits:
            self.submits.append(submit)
            heard = evolve(submit, mailbox=_Heard(submit.mailbox, self.delivered))
            self.running[str(submit.key)] = Stepper(heard, self.script_of(submit), self.cached_tokens)
            self._ready_s[str(submit.key)] = trio.current_time() + self.prefill_s
            if submit.tells_start:
                usage = Usage(len(submit.prompt_ids), 0, self.cached_tokens)
                self.extra.append(TokensRow(heard, (), usage=usage))
        self._wake.set()

    def cancel(
        self, request_id: str, *, deliver: bool = False, message: str = "Aborted", scope: Scope = "request"
    ) -> None:
        """End the choices of the requests named, told by the next step where that is wanted."""
        for name, stepper in list(self.running.items()):
            own = stepper.submit.key.request_id
            is_prefix = scope == "prefix" and bool(request_id) and own.startswith(request_id)
            if scope == "all" or own == request_id or is_prefix:
                del self.running[name]
                if deliver:
                    self.extra.append(stepper.ended(Finish("abort", message=message)))
        self._wake.set()

    def fail(self, finish: Finish) -> None:
        """End every choice as a scheduler does that has lost its device, or has no room."""
        self.extra += [stepper.ended(finish) for stepper in self.running.values()]
        self.running.clear()
        self._wake.set()

    async def command(self, order: Order) -> CommandResult:
        """Carry out any order at once."""
        return CommandResult(is_done=True)

    async def run(self) -> None:
        """Deliver a step whenever there is something in one, until cancelled."""
        detokenizer = Detokenizer(DECODING, self._stop, self.tell)
        while True:
            due_s = min((self._ready_s[name] for name in self.running), default=math.inf)
            if self.extra:
                due_s = trio.current_time()
            elif due_s <= trio.current_time():
                due_s = trio.current_time() + self.gap_s
            with trio.move_on_at(due_s):
                await self._wake.wait()
                self._wake = trio.Event()
                continue
            detokenizer.deliver(Tokens(tuple(self._rows())))

    def _rows(self) -> list[TokensRow]:
        rows, self.extra = self.extra, []
        num_tokens = self.cuts[self._num_steps % len(self.cuts)]
        self._num_steps += 1
        for name, stepper in list(self.running.items()):
            if self._ready_s[name] > trio.current_time():
                continue
            row = stepper.row(num_tokens)
            if row is not None:
                rows.append(row)
            if stepper.has_ended:
                del self.running[name]
            elif row is None:
                self._ready_s[name] = math.inf  # it has said all there is, and does not end
        return rows

    def _stop(self, order: Cancel) -> None:
        """Drop a choice that a stop string has ended, or whose reader has gone."""
        for name, stepper in list(self.running.items()):
            key = stepper.submit.key
            if key.request_id == order.request_id and order.choice in (None, key.choice):
                del self.running[name]


@frozen(eq=False)
class _Heard:
    """A mailbox that notes what goes into it."""

    mailbox: "trio.MemorySendChannel[Event]"
    log: list[tuple[float, Event]]

    def send_nowait(self, event: Event) -> None:
        self.mailbox.send_nowait(event)
        self.log.append((trio.current_time(), event))

    def close(self) -> None:
        self.mailbox.close()


@define(eq=False)
class ScriptedServer:
    """The application and the engine behind it."""

    app: App
    engine: ScriptedEngine
    serving: Serving
    stats: Stats

    async def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> "Exchange":
        """Call the application once and return all it sent; a body of None never comes."""
        data = body if isinstance(body, bytes | None) else orjson.dumps(body)
        exchange = Exchange()
        await exchange.run(self.app, path, data, {"content-type": "application/json", **(headers or {})}, method)
        return exchange


@asynccontextmanager
async def scripted_server(
    script_of: ScriptOf,
    *,
    model: ModelSettings = MODEL,
    settings: IngressSettings | None = None,
    prompt_of: PromptOf | None = None,
    max_prompts: int = 4096,
    has_stats: bool = True,
    **engine: Any,
) -> AsyncIterator[ScriptedServer]:
    """Serve every dialect for the block; every request has the same id and second."""
    renders_send, renders_receive = trio.open_memory_channel[Render](max_prompts)
    stats = open_stats()
    stats.book = Book(trio.current_time(), CREATED_S)
    scripted = ScriptedEngine(script_of, tell=stats.send.send, **engine)
    calls = Calls(stats.send.send)
    serving = Serving(Services(scripted, renders_send, model), settings or IngressSettings(), calls=calls)
    stats.sources = Sources(
        live=lambda: calls.live,
        http_requests=serving.http.requests,
        http_active=serving.http.active,
        http_responses=serving.http.responses,
    )
    app = create_app(find_dialects(), serving, fake_info(lambda: "ready"), stats)
    async with trio.open_nursery() as nursery:
        if has_stats:
            await nursery.start(run_stats, stats)
        nursery.start_soon(scripted.run)
        if max_prompts:
            nursery.start_soon(_render, renders_receive, prompt_of or real_prompts())
        # What waits for ever ends here, in virtual seconds, instead of never.
        with one_name(), trio.fail_after(FOREVER_S):
            yield ScriptedServer(app, scripted, serving, stats)
        nursery.cancel_scope.cancel()


@contextmanager
def one_name() -> Iterator[None]:
    """Give every request REQUEST_ID and CREATED_S for the block."""
    secrets = SimpleNamespace(token_hex=lambda num_bytes: REQUEST_ID[: 2 * num_bytes])
    time = SimpleNamespace(time=lambda: CREATED_S)
    with (
        mock.patch.multiple(stages.ingress.app, secrets=secrets),
        mock.patch.multiple(stages.ingress.generation, secrets=secrets, time=time),
    ):
        yield


async def _render(renders: "trio.MemoryReceiveChannel[Render]", prompt_of: PromptOf) -> None:
    async for render in renders:
        answer = prompt_of(render.prompt)
        if answer is not None:
            with suppress(trio.BrokenResourceError):
                render.reply.send_nowait(answer)


def real_prompts() -> PromptOf:
    """Make prompts with the real template and tokenizer, in the loop instead of a thread."""
    prompter = Prompter(load_template("glm5"), TOKENIZER)
    return lambda work: prompter.answers([work])[0]


@define(eq=False)
class Exchange:
    """One HTTP exchange: what was sent, when, and whether it had a proper end."""

    status: int = 0
    started_s: float = math.inf
    headers: dict[str, str] = field(factory=dict)
    chunks: list[tuple[float, bytes]] = field(factory=list)
    has_ended: bool = False
    # Set by the test: the client goes away.
    left: trio.Event = field(factory=trio.Event)

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_stream(self) -> bool:
        return "content-length" not in self.headers

    async def run(self, app: App, path: str, data: bytes | None, headers: Mapping[str, str], method: str) -> None:
        """Send one request and take what comes."""
        bare, _, query = path.partition("?")
        messages = [{"type": "http.request", "body": data or b"", "more_body": data is None}]
        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": bare,
            "raw_path": bare.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
            "extensions": {},
        }

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        await app(scope, receive, self._send)

    async def _send(self, message: Any) -> None:
        assert not self.has_ended
        if message["type"] == "http.response.start":
            assert not self.status
            self.status, self.started_s = message["status"], trio.current_time()
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            return
        assert message["type"] == "http.response.body"
        assert self.status
        if message.get("body"):
            self.chunks.append((trio.current_time(), message["body"]))
        self.has_ended = not message.get("more_body", False)


def by_choice(scripts: Sequence[Script]) -> ScriptOf:
    """Give choice i of every request scripts[i]."""
    return lambda submit: scripts[submit.key.choice]
