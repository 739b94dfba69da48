"""What every Engine does with submits, cancels and orders; the stand-in keeps the same contract as the real one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from stages.channels import Channels, open_channels, open_mailbox
from stages.engine.local import LocalEngine
from stages.engine.orders import call_of
from stages.engine.port import Engine, Order, Scope
from stages.errors import Draining, EngineFailure, QueueFull
from stages.messages import (
    Cancel,
    ChoiceKey,
    CloseSession,
    Command,
    CommandResult,
    Ended,
    Finish,
    FlushCache,
    OpenSession,
    Pause,
    Resume,
    Sampling,
    Submit,
    TextForm,
    Usage,
)
from tests.fake_engine import Exchange, never
from tests.fakes import FakeEngine, silent
from tests.stages.engine.kit import remote_engine

OBEY_S = 5.0
MAX_CHOICES = 3
ORDERS = [FlushCache(), FlushCache(waits=True), Pause("retract"), Resume(), OpenSession("s", 3.0), CloseSession("s")]


@define(eq=False)
class Bench:
    """An engine under test, what was carried out behind it, and how to stop it."""

    engine: Engine
    drain: Callable[[], None]
    done: list[Order] = field(factory=list)
    drops: bool = False

    def carry_out(self, order: Order) -> CommandResult:
        """Note the order and answer with its name."""
        self.done.append(order)
        return CommandResult(is_done=True, text=type(order).__name__)


@asynccontextmanager
async def local() -> AsyncIterator[Bench]:
    """A LocalEngine whose scheduler takes OBEY_S over an order, and carries out none that nobody awaits."""
    channels = open_channels(MAX_CHOICES)
    bench = Bench(LocalEngine(channels), channels.admission.close)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_schedule, channels, bench, nursery)
        yield bench
        nursery.cancel_scope.cancel()


async def _schedule(channels: Channels, bench: Bench, nursery: trio.Nursery) -> None:
    with suppress(trio.ClosedResourceError):
        async for message in channels.scheduler_receive:
            if isinstance(message, Command):
                nursery.start_soon(_obey, message, bench)
            elif isinstance(message, Cancel):
                waiting = list(channels.admission.waiting)
                for key in waiting:
                    begins = bool(message.request_id) and key.request_id.startswith(message.request_id)
                    named = {"request": key.request_id == message.request_id, "prefix": begins, "all": True}
                    if named[message.scope]:
                        _end(channels.admission.take(key), message)


async def _obey(command: Command, bench: Bench) -> None:
    await trio.sleep(OBEY_S)
    with command.reply:
        if command.reply.statistics().open_receive_channels and not bench.drops:
            command.reply.send_nowait(bench.carry_out(command.order))


def _end(submit: Submit, order: Cancel) -> None:
    if order.deliver:
        submit.mailbox.send_nowait(Ended(submit.key.choice, Finish("abort", message=order.message), Usage(1, 0)))


@asynccontextmanager
async def fake() -> AsyncIterator[Bench]:
    """The FakeEngine of the other tests."""
    async with trio.open_nursery() as nursery:
        engine = FakeEngine(nursery, silent, MAX_CHOICES)

        def drain() -> None:
            engine.draining = True

        bench = Bench(engine, drain)

        async def obey(order: Order) -> CommandResult:
            await trio.sleep(OBEY_S)
            if bench.drops:
                raise EngineFailure("dropped")
            return bench.carry_out(order)

        engine.obey = obey
        yield bench
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def remote() -> AsyncIterator[Bench]:
    """A RemoteEngine whose engine takes OBEY_S over an order, and carries out none whose caller has closed."""
    async with remote_engine(never, max_running_choices=MAX_CHOICES) as running:

        def drain() -> None:
            running.engine.is_draining = True

        bench = Bench(running.engine, drain)

        async def obey(exchange: Exchange) -> None:
            with trio.move_on_after(OBEY_S):
                await exchange.gone()
                return
            if not bench.drops:
                order = next(one for one in ORDERS if call_of(one) == (exchange.path, exchange.body))
                await exchange.refuse(200, bench.carry_out(order).text.encode())

        running.fake.order = obey
        yield bench


@pytest.fixture(params=[local, fake, remote])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    async with request.param() as bench:
        yield bench


def submit_of(request_id: str, mailbox: "trio.MemorySendChannel[object]") -> Submit:
    form, key = TextForm(), ChoiceKey(request_id, 0)
    return Submit(key, (1,), Sampling(), 0, 8, 0, frozenset(), (), form, False, False, 0, mailbox)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ORDERS, ids=str)
async def test_an_order_is_answered_with_what_came_of_it(bench: Bench, order: Order, autojump_clock: Any) -> None:
    result = await bench.engine.command(order)
    assert (result.text, bench.done) == (type(order).__name__, [order])


async def test_an_order_given_up_is_not_carried_out(bench: Bench, autojump_clock: Any) -> None:
    with trio.move_on_after(OBEY_S - 1):
        await bench.engine.command(FlushCache(waits=True))
    await trio.sleep(2 * OBEY_S)
    assert bench.done == []


async def test_an_order_that_is_dropped_is_an_engine_failure(bench: Bench, autojump_clock: Any) -> None:
    bench.drops = True
    with pytest.raises(EngineFailure):
        await bench.engine.command(Resume())


async def test_a_draining_engine_takes_no_order_and_no_request_and_ignores_cancels(
    bench: Bench, autojump_clock: Any
) -> None:
    bench.drain()
    with pytest.raises(Draining):
        await bench.engine.command(Resume())
    with pytest.raises(Draining):
        bench.engine.submit((submit_of("a", open_mailbox(8, 1)[0]),))
    bench.engine.cancel("a")
    assert bench.done == []


async def test_more_choices_than_there_is_room_for_are_refused_as_a_whole(bench: Bench, autojump_clock: Any) -> None:
    bench.engine.submit((submit_of("a", open_mailbox(8, 1)[0]),))
    with pytest.raises(QueueFull):
        bench.engine.submit(tuple(submit_of(name, open_mailbox(8, 1)[0]) for name in ("b", "c", "e")))
    bench.engine.submit((submit_of("d", open_mailbox(8, 1)[0]),))


@pytest.mark.parametrize(
    ("request_id", "scope", "expected"),
    [
        ("a", "request", ["a"]),
        ("a", "prefix", ["a", "ab"]),
        ("ab", "prefix", ["ab"]),
        # Whether a request has exactly that id is the caller's to know: its prompt may still be in the making.
        ("c", "prefix", ["cd"]),
        ("", "prefix", []),
        ("", "all", ["a", "ab", "cd"]),
    ],
)
async def test_an_abort_ends_those_it_names_with_its_message(
    bench: Bench, request_id: str, scope: Scope, expected: list[str], autojump_clock: Any
) -> None:
    mailboxes = {name: open_mailbox(8, 1) for name in ("a", "ab", "cd")}
    for name, (send, _) in mailboxes.items():
        bench.engine.submit((submit_of(name, send),))
    bench.engine.cancel(request_id, deliver=True, message="Aborted by hand", scope=scope)
    await trio.sleep(1)
    ended = {}
    for name, (_, receive) in mailboxes.items():
        with suppress(trio.WouldBlock):
            ended[name] = receive.receive_nowait()
    assert sorted(ended) == expected
    for event in ended.values():
        assert isinstance(event, Ended)
        assert (event.finish.kind, event.finish.message) == ("abort", "Aborted by hand")


async def test_a_cancel_of_somebody_else_ends_nothing(bench: Bench, autojump_clock: Any) -> None:
    send, receive = open_mailbox(8, 1)
    bench.engine.submit((submit_of("a", send),))
    bench.engine.cancel("b", deliver=True)
    await trio.sleep(1)
    with pytest.raises(trio.WouldBlock):
        receive.receive_nowait()
