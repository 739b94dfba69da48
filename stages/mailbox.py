"""The send end of one request's events: into a bounded channel, or straight to whoever waits at its other end.

The request's task, while it waits for the next event, may lend the mailbox a *sink*: events are then given to it at
once by whoever sends them, and wake nobody. What the sink declines goes into the channel, wakes the task and takes the
sink away, so no event overtakes another, and the task and its sink never act at the same time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from stages.messages import Event

# Whether it took the event; it must not raise, since it is called in the stage that sends.
Sink = Callable[["Event"], bool]


class Mailbox:
    """Sends to a channel, or to the sink that its reader has lent."""

    def __init__(self, channel: "trio.MemorySendChannel[Event]") -> None:
        self._channel = channel
        self._sink: Sink | None = None

    def send_nowait(self, event: "Event") -> None:
        """Deliver an event; raises trio.WouldBlock for a reader too far behind, BrokenResourceError for none."""
        if self._sink is not None:
            if self._sink(event):
                return
            self._sink = None
        self._channel.send_nowait(event)

    def close(self) -> None:
        """Send nothing more; the reader gets what is there, then EndOfChannel."""
        self._sink = None
        self._channel.close()

    @contextmanager
    def lent(self, sink: Sink) -> Iterator[None]:
        """Give events to `sink` until it declines one or the block ends; the block waits for the channel.

        # Invariant: the channel is empty when it begins.
        """
        self._sink = sink
        try:
            yield
        finally:
            self._sink = None

    @property
    def has_reader(self) -> bool:
        """Whether anybody may still read what is sent."""
        return self._channel.statistics().open_receive_channels > 0
