"""An engine of the real scheduler and executor stages on whatever clock runs, with a stand-in for the detokenizer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import trio
from attrs import define, field

from graphs.step import Device
from stages.channels import Channels
from stages.engine.local import LocalEngine
from stages.executor.runner import Runner, SimRunner
from stages.executor.stage import run_executor
from stages.messages import ChoiceKey, Delta, Drain, Ended, Tokens
from stages.scheduler.core import SchedulerCore
from stages.scheduler.stage import run_scheduler
from stages.settings import SchedulerSettings
from stages.stats.stage import Stats, open_stats, run_stats
from trnrt.scheduling import engine_channels


class StatsStage(Protocol):
    """Takes what the stages tell of themselves until the channel closes."""

    async def __call__(self, stats: Stats, *, task_status: trio.TaskStatus[None]) -> None:
        """Run until the channel's send end is closed."""
        ...


@define(eq=False)
class VirtualEngine:
    """The parts of a running engine that others talk to."""

    core: SchedulerCore
    channels: Channels
    engine: LocalEngine
    stats: Stats
    # Choices of which something was told and the end not yet: what a detokenizer would keep.
    known: set[ChoiceKey] = field(factory=set)


@asynccontextmanager
async def virtual_engine(
    settings: SchedulerSettings,
    device: Device,
    *,
    runner: Runner | None = None,
    stats_stage: StatsStage = run_stats,
) -> AsyncIterator[VirtualEngine]:
    """Run an engine for the block, then drain it; the block's end is only passed once everything has ended."""
    channels = engine_channels(settings)
    stats = open_stats()

    async def scheduler(*, task_status: trio.TaskStatus[SchedulerCore]) -> None:
        with channels.transfers_send:
            await run_scheduler(settings, device.capacity, channels, stats.send, task_status=task_status)
        stats.send.channel.close()

    async with trio.open_nursery() as nursery:
        await nursery.start(stats_stage, stats)
        await nursery.start(run_executor, runner if runner is not None else SimRunner(device), channels)
        core: SchedulerCore = await nursery.start(scheduler)
        engine = VirtualEngine(core, channels, LocalEngine(channels), stats)
        nursery.start_soon(_forward, engine)
        yield engine
        channels.scheduler_send.send_nowait(Drain())


async def _forward(engine: VirtualEngine) -> None:
    """Stand in for the detokenizer: ids without text; a reader that has gone is forgotten."""
    while True:
        try:
            _deliver(engine, await engine.channels.tokens_receive.receive())
        except trio.EndOfChannel:
            return


def _deliver(engine: VirtualEngine, tokens: Tokens) -> None:
    for order in tokens.dropped:
        engine.known.discard(order.key)
    for row in tokens.rows:
        key = row.submit.key
        engine.known.add(key)
        try:
            if row.token_ids or row.finish is None:
                row.submit.mailbox.send_nowait(Delta(key.choice, row.token_ids, usage=row.usage))
            if row.finish is not None:
                row.submit.mailbox.send_nowait(Ended(key.choice, row.finish, row.usage))
        except trio.BrokenResourceError:
            # The reader left; its Cancel is on the way and brings an entry in `dropped`, unless this was the end.
            pass
        if row.finish is not None:
            engine.known.discard(key)
