"""Collects what happens into a Book; everybody else reads it synchronously through Stats."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import assert_never

import trio
from attrs import define, field

from stages.channels import STATS_QUEUE
from stages.inbox import Inbox
from stages.messages import Load, Record, RequestRecord, StatsInbox, TokenGaps
from stages.stats.book import Book
from stages.stats.counters import Counters, Snapshot
from stages.stats.lossy import StatsSend
from stages.stats.report import statistics_of
from stages.stats.sources import Sources
from stages.stats.statistics import Statistics


@define(eq=False)
class Stats:
    """Both ends of the stats channel and what was counted; it outlives a stats stage that has to be restarted."""

    send: StatsSend
    receive: Inbox[StatsInbox]
    book: Book = field(factory=Book)
    # What the role that serves has to show.
    sources: Sources = field(factory=Sources)
    # Who else gets every item, in the stats stage: calls that neither wait nor raise.
    taps: list[Callable[[StatsInbox], None]] = field(factory=list)

    @property
    def counters(self) -> Counters:
        """Return the totals by record name."""
        return self.book.counters

    def snapshot(self, now_s: float) -> Snapshot:
        """Return the totals as of now_s, on the loop's clock."""
        return self.counters.snapshot(now_s, self.send.num_lost)

    def statistics(self, now_s: float) -> Statistics:
        """Return everything as of now_s, on the loop's clock."""
        return statistics_of(self.book, self.sources, now_s, self.send.num_lost)


def open_stats() -> Stats:
    """Return the stats of one server, nothing counted yet."""
    send, receive = trio.open_memory_channel[StatsInbox](STATS_QUEUE)
    return Stats(StatsSend(send), Inbox(receive))


async def run_stats(stats: Stats, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Count what arrives until the channel's send end is closed, all that is there at each wake."""
    if not stats.book.started_unix_s:
        stats.book = Book(trio.current_time(), time.time())
    task_status.started()
    async for item in stats.receive:
        now_s = trio.current_time()
        _count(item, stats, now_s)
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                _count(stats.receive.receive_nowait(), stats, now_s)


def _count(item: StatsInbox, stats: Stats, now_s: float) -> None:
    match item:
        case Record():
            stats.book.record(item, now_s)
        case TokenGaps():
            stats.book.delivered(item, now_s)
        case RequestRecord():
            stats.book.ended(item, now_s)
        case Load():
            stats.book.load(item)
        case _:
            assert_never(item)
    for tap in stats.taps:
        tap(item)
