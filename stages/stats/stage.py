"""Collects records into counters; everybody else reads them synchronously through Stats.snapshot."""

from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

import trio
from attrs import define, field

from stages.channels import STATS_QUEUE
from stages.messages import Load, Record, RequestRecord, StatsInbox, TokenGaps
from stages.stats.counters import Counters, Snapshot
from stages.stats.lossy import StatsSend


@define(eq=False)
class Stats:
    """Both ends of the stats channel and what was counted; it outlives a stats stage that has to be restarted."""

    send: StatsSend
    receive: "trio.MemoryReceiveChannel[StatsInbox]"
    counters: Counters = field(factory=Counters)
    # Who else gets every item, in the stats stage: calls that neither wait nor raise.
    taps: list[Callable[[StatsInbox], None]] = field(factory=list)

    def snapshot(self, now_s: float) -> Snapshot:
        """Return the totals as of now_s, on the loop's clock."""
        return self.counters.snapshot(now_s, self.send.num_lost)


def open_stats() -> Stats:
    """Return the stats of one server, nothing counted yet."""
    send, receive = trio.open_memory_channel[StatsInbox](STATS_QUEUE)
    return Stats(StatsSend(send), receive)


async def run_stats(stats: Stats, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Count what arrives until the channel's send end is closed, all that is there at each wake."""
    task_status.started()
    async for item in stats.receive:
        _count(item, stats)
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                _count(stats.receive.receive_nowait(), stats)


def _count(item: StatsInbox, stats: Stats) -> None:
    match item:
        case Record():
            stats.counters.record(item, trio.current_time())
        case Load():
            stats.counters.load(item)
        case RequestRecord() | TokenGaps():
            pass
        case _:
            assert_never(item)
    for tap in stats.taps:
        tap(item)
