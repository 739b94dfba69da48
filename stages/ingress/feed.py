"""The events of one call's asks, merged in order of arrival.

A call with one ask reads its mailbox directly. A batch runs every ask in a task of its own; each reports to one channel
that it was admitted, what its mailbox brings, and what went wrong. `next` drains what is there: one wake, one chunk.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import trio
from attrs import frozen

from stages.errors import EngineFailure
from stages.ingress.dialect import Collected
from stages.mailbox import Sink
from stages.messages import Ask, Ended, Event, Prompt
from stages.request import Answer, Services, admitted
from stages.trail import Trail

MERGED_EVENTS = 64
ASKS_AT_A_TIME = 64


@frozen(eq=False)
class Arrival:
    """One event of asks[ask_index]."""

    ask_index: int
    prompt: Prompt
    event: Event


class Feed:
    """Arrivals until every choice of every ask has ended; all asks are admitted already."""

    def __init__(self, asks: Sequence[Ask], prompts: Sequence[Prompt], trail: Trail | None = None) -> None:
        self.prompts = prompts
        self._trail = trail
        self.num_running = sum(ask.num_choices for ask in asks)

    async def next(self, sink: Sink | None = None) -> list[Arrival]:
        """Wait for arrivals and return all that are there; an empty list once everything has ended.

        The events of a single ask may go to `sink` meanwhile: those it takes are no arrivals any more.
        """
        raise NotImplementedError

    def _count(self, arrivals: list[Arrival]) -> list[Arrival]:
        for arrival in arrivals:
            if isinstance(arrival.event, Ended):
                self.num_running -= 1
                if self._trail is not None:
                    self._trail.ended(arrival.event)
        return arrivals


class SingleFeed(Feed):
    """The mailbox of the only ask."""

    def __init__(self, answer: Answer, trail: Trail | None = None) -> None:
        super().__init__([answer.ask], [answer.prompt], trail)
        self._answer = answer

    async def next(self, sink: Sink | None = None) -> list[Arrival]:
        """Wait for arrivals and return all that are there; raises EngineFailure when the mailbox is cut off."""
        if not self.num_running:
            return []
        events = self._answer.events
        prompt = self._answer.prompt
        try:
            arrivals = [Arrival(0, prompt, await self._first(sink))]
        except trio.EndOfChannel:
            raise EngineFailure("a mailbox was closed before its choices had ended") from None
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                arrivals.append(Arrival(0, prompt, events.receive_nowait()))
        return self._count(arrivals)

    async def _first(self, sink: Sink | None) -> Event:
        events = self._answer.events
        if sink is None:
            return await events.receive()
        with suppress(trio.WouldBlock):
            return events.receive_nowait()
        with self._answer.mailbox.lent(sink):
            return await events.receive()


class MergedFeed(Feed):
    """The mailboxes of several asks, pumped into one channel."""

    def __init__(
        self,
        asks: Sequence[Ask],
        prompts: Sequence[Prompt],
        merged: "trio.MemoryReceiveChannel[Arrival | Exception]",
        trail: Trail | None = None,
    ) -> None:
        super().__init__(asks, prompts, trail)
        self._merged = merged

    async def next(self, sink: Sink | None = None) -> list[Arrival]:
        """Wait for arrivals and return all that are there, none by the sink; raises what any of the asks raised."""
        if not self.num_running:
            return []
        arrivals = [_raised(await self._merged.receive())]
        with suppress(trio.WouldBlock):
            while True:
                arrivals.append(_raised(self._merged.receive_nowait()))
        return self._count(arrivals)


@asynccontextmanager
async def admit(asks: Sequence[Ask], services: Services, trail: Trail | None = None) -> AsyncIterator[Feed]:
    """Admit every ask or none, giving their Feed; leaving the block cancels what still runs; `trail` is the call's.

    Raises the first ask's RequestError, Unavailable or EngineFailure.
    """
    if len(asks) == 1:
        async with admitted(asks[0], services, trail) as answer:
            yield SingleFeed(answer, trail)
        return
    admissions, admission_reports = trio.open_memory_channel[tuple[int, Prompt] | Exception](len(asks))
    arrivals, merged = trio.open_memory_channel[Arrival | Exception](MERGED_EVENTS)
    async with trio.open_nursery() as nursery:
        for index, ask in enumerate(asks):
            nursery.start_soon(_run_ask, index, ask, services, trail, admissions, arrivals)
            if index % ASKS_AT_A_TIME == ASKS_AT_A_TIME - 1:
                await trio.lowlevel.checkpoint()  # thousands would keep everybody else waiting
        prompts: dict[int, Prompt] = {}
        failure: Exception | None = None
        while len(prompts) < len(asks) and failure is None:
            report = await admission_reports.receive()
            if isinstance(report, Exception):
                failure = report
            else:
                prompts[report[0]] = report[1]
        if failure is None:
            try:
                yield MergedFeed(asks, [prompts[index] for index in range(len(asks))], merged, trail)
            except Exception as error:
                failure = error  # raised below, outside the nursery, so that no group is wrapped around it
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def collect(asks: Sequence[Ask], feed: Feed) -> list[Collected]:
    """Read the feed to its end, giving one Collected per ask, in ask order."""
    events: list[list[Event]] = [[] for _ in asks]
    began_s = [0.0 for _ in asks]
    last_s = [0.0 for _ in asks]
    while arrivals := await feed.next():
        now_s = trio.current_time()
        for arrival in arrivals:
            index = arrival.ask_index
            if not events[index]:
                began_s[index] = now_s
            last_s[index] = now_s
            events[index].append(arrival.event)
    return [
        Collected(prompt, tuple(of_ask), last - began)
        for prompt, of_ask, began, last in zip(feed.prompts, events, began_s, last_s, strict=True)
    ]


async def _run_ask(
    index: int,
    ask: Ask,
    services: Services,
    trail: Trail | None,
    admissions: "trio.MemorySendChannel[tuple[int, Prompt] | Exception]",
    arrivals: "trio.MemorySendChannel[Arrival | Exception]",
) -> None:
    is_admitted = False
    try:
        async with admitted(ask, services, trail) as answer:
            admissions.send_nowait((index, answer.prompt))
            is_admitted = True
            feed = SingleFeed(answer)
            while batch := await feed.next():
                for arrival in batch:
                    await arrivals.send(Arrival(index, arrival.prompt, arrival.event))
    except Exception as error:
        # Not swallowed: the reader of either channel raises it, outside the nursery and so without a group around it.
        if is_admitted:
            await arrivals.send(error)
        else:
            admissions.send_nowait(error)


def _raised(arrival: Arrival | Exception) -> Arrival:
    if isinstance(arrival, Exception):
        raise arrival
    return arrival
