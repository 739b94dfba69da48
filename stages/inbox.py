"""The receiving end of a stage's channel, which notes how the stage's time goes and how much ever stood in it.

A stage waits from when it asks for an item until it gets one, and works from then until it asks again; what stands in
the channel only shrinks when it asks, so the most there ever was is seen there. It costs two looks at the clock an
item, and a token is none: the channels carry steps, batches and orders.
"""

from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import trio
from attrs import define

T = TypeVar("T")


@define(eq=False)
class Meter:
    """How one stage's time went, in seconds since it began, and what its inbox held."""

    waiting_s: float = 0.0
    working_s: float = 0.0
    received: int = 0
    high_water: int = 0
    # Since when it has waited, or worked; None before it began.
    _since_s: float | None = None
    _is_waiting: bool = False

    def waits(self, now_s: float) -> None:
        """Note that the stage begins to wait."""
        self._turn(now_s, is_waiting=True)

    def works(self, now_s: float, num_received: int, depth: int) -> None:
        """Note that the wait ended, with an item or none, and that so many had stood in the inbox."""
        self._turn(now_s, is_waiting=False)
        self.received += num_received
        if depth > self.high_water:
            self.high_water = depth

    def times(self, now_s: float) -> tuple[float, float]:
        """Return how long it has waited and worked until now_s."""
        since_s = now_s - self._since_s if self._since_s is not None else 0.0
        if self._is_waiting:
            return self.waiting_s + since_s, self.working_s
        return self.waiting_s, self.working_s + since_s

    def _turn(self, now_s: float, *, is_waiting: bool) -> None:
        self.waiting_s, self.working_s = self.times(now_s)
        self._since_s, self._is_waiting = now_s, is_waiting


class Receive(Protocol[T]):
    """What a stage needs of its inbox: trio's channel has it, and so has Inbox."""

    async def receive(self) -> T:
        """Wait for an item; raises trio.EndOfChannel when nobody sends any more."""
        ...

    def receive_nowait(self) -> T:
        """Return an item; raises trio.WouldBlock or trio.EndOfChannel."""
        ...

    def close(self) -> None:
        """Take nothing more."""
        ...

    def statistics(self) -> "trio.MemoryChannelStatistics":
        """Return what stands in it and who has it."""
        ...

    def __aiter__(self) -> "Receive[T]": ...

    async def __anext__(self) -> T: ...

    async def __aenter__(self) -> "Receive[T]": ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __enter__(self) -> "Receive[T]": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Inbox(Generic[T]):
    """A channel's receiving end with a meter, each reader of it with one of its own."""

    def __init__(self, channel: "trio.MemoryReceiveChannel[T]", meter: Meter | None = None) -> None:
        self._channel = channel
        self.meter = meter or Meter()

    async def receive(self) -> T:
        """Wait for an item; raises trio.EndOfChannel when nobody sends any more."""
        meter, num_received = self.meter, 0
        meter.waits(trio.current_time())
        try:
            item = await self._channel.receive()
            num_received = 1
        finally:
            depth = self._channel.statistics().current_buffer_used + num_received
            meter.works(trio.current_time(), num_received, depth)
        return item

    def receive_nowait(self) -> T:
        """Return an item; raises trio.WouldBlock or trio.EndOfChannel."""
        item = self._channel.receive_nowait()
        self.meter.received += 1
        return item

    def close(self) -> None:
        """Take nothing more."""
        self._channel.close()

    def statistics(self) -> "trio.MemoryChannelStatistics":
        """Return what stands in it and who has it."""
        return self._channel.statistics()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
