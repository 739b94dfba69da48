"""The engine behind another server's `/generate`: a choice is one stream, its rows go to this process's detokenizer.

A request is one scope that holds all its choices. Their streams are all opened, in order, max_opening at a time, before
the first is read, so an engine may wait for all of them; then each is read by a task of its own. A choice that fails
ends its request: all its choices are told, and their streams closed. Whatever is closed before the engine said its end
is also told to `/abort_request`, as well as it goes: a proxy between may hide that a connection closed.

# Invariant: every choice of a request that was submitted gets exactly one row that ends it, unless it is cancelled with
# nobody listening.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import orjson
import trio
from attrs import define, field

from stages.engine.frames import FrameReader
from stages.engine.generate_body import ToolConstraint, generate_body, no_tool_constraint, rid_of
from stages.engine.http_client import Connect, Headers, HttpClient, connector
from stages.engine.orders import call_of
from stages.engine.port import Order, Scope
from stages.engine.readiness import Readiness
from stages.engine.streams import Stream, post
from stages.errors import Draining, EngineFailure, InvalidRequest, QueueFull, RemoteFailure
from stages.messages import Cancel, CommandResult, Finish, Submit, Tokens, TokensRow, Usage
from stages.settings import RemoteSettings

# Aborts that wait to be told to the engine, by how many tasks, and how long one may take.
ABORT_QUEUE = 1024
NUM_ABORTERS = 4
ABORT_TIMEOUT_S = 5.0
TOO_SLOW = 504


@define(eq=False)
class _Choice:
    """One choice under way."""

    submit: Submit
    rid: str
    body: bytes
    stream: Stream
    # The engine may have heard of it.
    was_sent: bool = False
    is_cut: bool = False
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def within(self) -> trio.CancelScope:
        """Return a scope that ends when the choice is cut, which may have happened."""
        self._scope = trio.CancelScope()
        if self.is_cut:
            self._scope.cancel()
        return self._scope

    def cut(self) -> None:
        """End whatever is done for it."""
        self.is_cut = True
        self._scope.cancel()

    @property
    def usage(self) -> Usage:
        """Return what it has taken so far."""
        return self.stream.frames.usage


@define(eq=False)
class _Request:
    """The choices of one request that have not ended, by index."""

    request_id: str
    choices: dict[int, _Choice]


@define(eq=False)
class RemoteEngine:
    """Engine over HTTP; run() makes one."""

    settings: RemoteSettings
    client: HttpClient
    deliver: Callable[[Tokens], None]
    nursery: trio.Nursery
    aborts: "trio.MemorySendChannel[str]"
    readiness: Readiness | None = None
    tool_constraint: ToolConstraint = no_tool_constraint
    is_draining: bool = False
    _requests: dict[str, _Request] = field(factory=dict)
    _rids: set[str] = field(factory=set)
    _idle: trio.Event = field(factory=trio.Event)

    @property
    def num_running(self) -> int:
        """How many choices have not ended."""
        return len(self._rids)

    def submit(self, submits: tuple[Submit, ...]) -> None:
        """Start all choices of a request or none; raises QueueFull, Draining or InvalidRequest."""
        if self.is_draining:
            raise Draining
        limit = self.settings.max_running_choices
        if len(submits) > limit:
            raise InvalidRequest(f"n of {len(submits)} can never fit {limit} (--max-concurrent-requests).", "n")
        if self.num_running + len(submits) > limit:
            raise QueueFull
        request_id = submits[0].key.request_id
        choices = {submit.key.choice: self._choice(submit) for submit in submits}
        rids = {choice.rid for choice in choices.values()}
        if request_id in self._requests or len(rids) < len(choices) or not self._rids.isdisjoint(rids):
            raise InvalidRequest(f"Duplicate request ID detected: {request_id}", "rid")
        self._rids |= rids
        request = self._requests[request_id] = _Request(request_id, choices)
        self.nursery.start_soon(self._run, request, tuple(choices.values()))

    def cancel(
        self, request_id: str, *, deliver: bool = False, message: str = "Aborted", scope: Scope = "request"
    ) -> None:
        """Close the streams of every choice that request_id and scope name; unknown ids are ignored."""
        finish = Finish("abort", message=message) if deliver else None
        if scope == "request":
            named = [self._requests[request_id]] if request_id in self._requests else []
        elif scope == "all":
            named = [*self._requests.values()]
        else:
            named = [one for one in self._requests.values() if request_id and one.request_id.startswith(request_id)]
        # All leave before the first is told of: one's id may begin with another's.
        for request, choices in [(one, [*one.choices.values()]) for one in named]:
            for choice in choices:
                self._leave(request, choice)
            self._cut(choices, finish)

    def obey(self, order: Cancel) -> None:
        """Carry out the detokenizer's order: a stop string ended a choice, or a reader has gone."""
        request = self._requests.get(order.request_id)
        if order.choice is None or request is None:
            self.cancel(order.request_id, deliver=order.deliver, message=order.message, scope=order.scope)
        elif (choice := request.choices.get(order.choice)) is not None:
            self._leave(request, choice)
            self._cut([choice], None)

    async def command(self, order: Order) -> CommandResult:
        """Have the engine carry out an order; raises Draining, or EngineFailure with the engine's words."""
        if self.is_draining:
            raise Draining
        path, fields = call_of(order)
        async with await post(self.client, path, orjson.dumps(fields)) as response:
            text = (await response.text()).decode("utf-8", "replace")
        if response.status >= 500:
            raise RemoteFailure(f"the engine answered {path} with HTTP {response.status}: {text}"[:500], 502)
        return CommandResult(is_done=response.status < 300, text=text)

    async def drain(self) -> None:
        """Take nothing more and wait until every choice has ended."""
        self.is_draining = True
        if self._requests:
            await self._idle.wait()

    def _choice(self, submit: Submit) -> _Choice:
        body = generate_body(submit, own_end_ids=self.settings.own_end_ids, tool_constraint=self.tool_constraint)
        return _Choice(
            submit, rid_of(submit), body, Stream(self.client, self.settings, FrameReader(submit), self.readiness)
        )

    async def _run(self, request: _Request, choices: tuple[_Choice, ...]) -> None:
        """Open every stream, then read them all."""
        try:
            if len(choices) == 1:
                await self._open_all(request, iter(choices))
                await self._read(request, choices[0])
                return
            waiting = iter(choices)
            async with trio.open_nursery() as nursery:
                for _ in range(min(self.settings.max_opening, len(choices))):
                    nursery.start_soon(self._open_all, request, waiting)
            async with trio.open_nursery() as nursery:
                for choice in choices:
                    nursery.start_soon(self._read, request, choice)
        finally:
            for choice in choices:
                await choice.stream.close()

    async def _open_all(self, request: _Request, waiting: Iterator[_Choice]) -> None:
        """Open one stream after the other until there are no more."""
        for choice in waiting:
            if choice.is_cut:
                continue
            choice.was_sent = True
            with choice.within():
                try:
                    await choice.stream.open(choice.body, _trace_headers(choice.submit))
                except RemoteFailure as failure:
                    # What was refused runs nowhere; what was waited for in vain may.
                    choice.was_sent = failure.status == TOO_SLOW
                    self._fail(request, failure)

    async def _read(self, request: _Request, choice: _Choice) -> None:
        """Read one stream to its end."""
        if choice.is_cut:
            return
        with choice.within():
            try:
                if choice.submit.tells_start:
                    self.deliver(Tokens((TokensRow(choice.submit, (), usage=choice.usage),)))
                await choice.stream.rows(partial(self._take, request, choice))
            except RemoteFailure as failure:
                self._fail(request, failure)
                return
        if choice.stream.frames.has_ended:
            await choice.stream.settle()
        else:
            await choice.stream.close()  # cancelled: the engine hears of it now

    def _take(self, request: _Request, choice: _Choice, row: TokensRow) -> None:
        if choice.submit.key.choice not in request.choices:
            return  # ended here meanwhile
        if row.finish is not None:
            self._leave(request, choice)
        self.deliver(Tokens((row,)))

    def _fail(self, request: _Request, failure: RemoteFailure) -> None:
        """End every choice of a request that is still there with a failure."""
        finish = Finish("error", None, failure.message, failure.status, True, failure.retry_after_s)
        choices = [*request.choices.values()]
        for choice in choices:
            self._leave(request, choice)
        self._cut(choices, finish)

    def _leave(self, request: _Request, choice: _Choice) -> None:
        """Forget a choice that has ended."""
        del request.choices[choice.submit.key.choice]
        self._rids.discard(choice.rid)
        if not request.choices:
            del self._requests[request.request_id]
        if not self._requests:
            self._idle.set()
            self._idle = trio.Event()

    def _cut(self, choices: list[_Choice], finish: Finish | None) -> None:
        """Close the streams of choices that have left, tell the engine, and with a finish whoever listens."""
        for choice in choices:
            choice.cut()
            # An engine takes an id for the beginning of others: those that are live must not hear of it.
            if choice.was_sent and not any(rid.startswith(choice.rid) for rid in self._rids):
                with suppress(trio.WouldBlock):
                    self.aborts.send_nowait(choice.rid)
        if finish is not None:
            self.deliver(Tokens(tuple(TokensRow(one.submit, (), finish=finish, usage=one.usage) for one in choices)))


def client_of(settings: RemoteSettings, connect: Connect | None = None) -> HttpClient:
    """Return a client of the engine, over the network unless something else connects."""
    headers = () if settings.api_key is None else (("Authorization", f"Bearer {settings.api_key}"),)
    opens = connector(settings.origin) if connect is None else connect
    return HttpClient(settings.origin, opens, settings.connect_timeout_s, headers)


async def run_remote_engine(
    settings: RemoteSettings,
    tokens: "trio.MemorySendChannel[Tokens]",
    *,
    connect: Connect | None = None,
    tool_constraint: ToolConstraint = no_tool_constraint,
    task_status: "trio.TaskStatus[RemoteEngine]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a RemoteEngine, which it starts with, until it is cancelled."""
    client = client_of(settings, connect)
    aborts, rids = trio.open_memory_channel[str](ABORT_QUEUE)
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(NUM_ABORTERS):
                nursery.start_soon(_tell_aborts, client, rids)

            def send(batch: Tokens) -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the detokenizer went first
                    tokens.send_nowait(batch)

            rows: list[TokensRow] = []

            def deliver(batch: Tokens) -> None:
                if readiness.is_awake:
                    rows.extend(batch.rows)  # all that one wake brought is one batch, as a step's is
                else:
                    send(batch)

            def after_wake() -> None:
                if rows:
                    send(Tokens(tuple(rows)))
                    rows.clear()

            readiness = Readiness(after_wake)
            nursery.start_soon(readiness.run)
            engine = RemoteEngine(settings, client, deliver, nursery, aborts, readiness, tool_constraint)
            task_status.started(engine)
            await trio.sleep(math.inf)
    finally:
        client.close()


async def _tell_aborts(client: HttpClient, rids: "trio.MemoryReceiveChannel[str]") -> None:
    """Post one abort after the other; the engine that does not take one has noticed that its client left, or will."""
    async for rid in rids:
        with suppress(EngineFailure), trio.move_on_after(ABORT_TIMEOUT_S):
            async with await post(client, "/abort_request", orjson.dumps({"rid": rid})) as response:
                await response.text()


def _trace_headers(submit: Submit) -> Headers:
    """Return what lets the engine join the trace of the call, if there is one."""
    trace = submit.trail.trace if submit.trail is not None else None
    return tuple(trace.headers().items()) if trace is not None else ()
