"""How long a connection may be silent between requests: one task a connection, whatever number of requests it brings.

hypercorn's own way is a task for every request, which costs as much as reading one.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio


class Idling:
    """Closes a connection that has idled for limit_s, or idles once the server stops, as hypercorn's idle_task."""

    def __init__(
        self, limit_s: float, stopping: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]
    ) -> None:
        self._limit_s = limit_s
        self._stopping = stopping
        self._close = close
        self._until_s = math.inf
        # The wait that the deadline ends, while there is one; and the whole task.
        self._wait = trio.CancelScope()
        self._life: trio.CancelScope | None = None

    async def restart(self, task_group: Any, action: object) -> None:
        """Count from now on, in a task of the connection; `action` is what hypercorn would run each time."""
        self._set_deadline(trio.current_time() + self._limit_s)
        if self._life is None:
            self._life = trio.CancelScope()
            task_group.spawn(self._run, self._life)

    async def stop(self) -> None:
        """Count no more: a request is here."""
        self._set_deadline(math.inf)

    def end(self) -> None:
        """Count no more, ever; a close that has begun is finished."""
        if self._life is not None:
            self._life.cancel()

    def _set_deadline(self, until_s: float) -> None:
        self._until_s = self._wait.deadline = until_s

    async def _run(self, life: trio.CancelScope) -> None:
        with life:
            while trio.current_time() < self._until_s:
                self._wait = trio.CancelScope(deadline=self._until_s)
                with self._wait:
                    await self._stopping()
                    if self._until_s == math.inf:
                        return  # the answer under way closes the connection
                    break
            with trio.CancelScope(shield=True):
                await self._close()
