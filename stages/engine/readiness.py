"""One task that reads many sockets: whatever they have is taken in one wake.

A task a socket costs a registration, a wake and two turns of the loop a token, several times what the token itself
does. Here sockets stay registered, and those that have something are read one after the other.
"""

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

READ_BYTES = 65536
# Takes what a socket had, empty at its end.
Take = Callable[[bytes], None]


@define(eq=False)
class Readiness:
    """Sockets that are read by run(), and who takes what they have; after_wake comes behind each wake's reads."""

    after_wake: Callable[[], None]
    # Whether it is reading now, so that after_wake will come.
    is_awake: bool = False
    _epoll: select.epoll = field(factory=select.epoll)
    _takes: dict[int, Take] = field(factory=dict)

    @contextmanager
    def reading(self, socket: trio.socket.SocketType, take: Take) -> Iterator[None]:
        """Give whatever comes to `take`, which must not raise, for the block; nothing else may read or close it."""
        number = socket.fileno()
        self._takes[number] = take
        self._epoll.register(number, select.EPOLLIN)
        try:
            yield
        finally:
            del self._takes[number]
            self._epoll.unregister(number)

    async def run(self) -> None:
        """Read until cancelled."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self.is_awake = True
                for number, _ in self._epoll.poll(0):
                    if (take := self._takes.get(number)) is not None:  # an earlier one may have ended it
                        _give(number, take)
                self.is_awake = False
                self.after_wake()


def _give(number: int, take: Take) -> None:
    """Hand over what a socket has; one that failed has ended, as one that was closed."""
    try:
        piece = os.read(number, READ_BYTES)
    except BlockingIOError:
        return
    except OSError:
        piece = b""
    take(piece)
