"""Reads large bodies and writes large answers on worker threads, a few at a time, while the event loop serves others.

Both are Python between short calls that hold the interpreter's lock (pieces.py), so the loop gets its turn within the
switch interval. The cyclic collector rests meanwhile: it would look at all of a half-read body again and again, each
time without letting go of the lock. What is read or written has no cycles.
"""

import gc
from collections.abc import Callable
from typing import TypeVar

import trio
from attrs import define, field

from stages.errors import QueueFull, RequestError

# Each is as slow as all of them together; a second one lets a small body overtake a large one.
MAX_AT_ONCE = 2
# Bodies that wait stay in memory, each of up to --max-request-bytes.
MAX_WAITING = 16

T = TypeVar("T")


@define(eq=False)
class Aside:
    """The threads that read and write, and who waits for one."""

    readers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_AT_ONCE))
    writers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_AT_ONCE))
    _num_running: int = 0
    _collects: bool = True

    async def read(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, on a thread; raises what it raises, or QueueFull when too many wait."""
        if self.readers.statistics().tasks_waiting >= MAX_WAITING:
            raise QueueFull("Too many large requests are being read.")
        return await self._run(work, self.readers)

    async def write(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, on a thread; raises what it raises."""
        return await self._run(work, self.writers)

    async def _run(self, work: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        async with limiter:
            self._begin()
            try:
                return await trio.to_thread.run_sync(_forgetful, work)
            finally:
                self._end()

    def _begin(self) -> None:
        if not self._num_running:
            self._collects = gc.isenabled()
            gc.disable()
        self._num_running += 1

    def _end(self) -> None:
        self._num_running -= 1
        if not self._num_running and self._collects:
            gc.enable()


def _forgetful(work: Callable[[], T]) -> T:
    """Run `work`; a refusal forgets where it comes from, so that a refused body dies here and not on the loop."""
    try:
        return work()
    except RequestError as error:
        error.__context__ = None
        raise error.with_traceback(None) from None
