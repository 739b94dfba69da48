"""Tasks that may not die unnoticed."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from stages.errors import EngineFailure

CONSEQUENCES = (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel)

RESTART_S, MAX_RESTART_S = 1.0, 60.0

log = logging.getLogger("trnrt")


def linked(
    stage: Callable[..., Awaitable[None]],
    name: str,
    may_end: Callable[[], bool],
    before_failing: Callable[[], Awaitable[None]],
) -> Callable[..., Awaitable[None]]:
    """Return `stage` as a task that raises what it raises, and EngineFailure when it returns while may_end() is false.

    Either is raised only after before_failing(): it ends the process, and clients must hear of it first.
    """

    async def run(*args: Any, task_status: "trio.TaskStatus[Any]" = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await stage(*args, task_status=task_status)
            if not may_end():
                raise EngineFailure(f"the {name} stage ended by itself")
        except Exception:
            # Whoever found this stage gone may be done first and cancel this one, which knows why.
            with trio.CancelScope(shield=True):
                await before_failing()
            raise

    return run


def contained(stage: Callable[..., Awaitable[None]], name: str) -> Callable[..., Awaitable[None]]:
    """Return `stage` as a task whose failures are logged and end nothing but itself; it is begun again after a while.

    The while doubles from RESTART_S to MAX_RESTART_S, so that one that always fails is no load and fills no log.
    """

    async def run(*args: Any, task_status: "trio.TaskStatus[Any]" = trio.TASK_STATUS_IGNORED) -> None:
        status = _Once(task_status)
        pause_s = RESTART_S
        while True:
            try:
                await stage(*args, task_status=status)
                return
            except Exception:
                log.exception("the %s stage failed; serving goes on without it for %g s", name, pause_s)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RESTART_S)

    return run


class _Once(trio.TaskStatus[Any]):
    """Tells that a stage has started the first time it does."""

    def __init__(self, status: "trio.TaskStatus[Any]") -> None:
        self._status: trio.TaskStatus[Any] | None = status

    def started(self, value: Any = None) -> None:
        """Pass on that the stage has started."""
        if self._status is not None:
            status, self._status = self._status, None
            status.started(value)


def first_cause(error: BaseException) -> BaseException:
    """Return the leaf of an exception group that the others may have come of, or the error itself.

    A stage that finds a channel's other end gone only says that another stage went first, whoever was quicker to end.
    """
    leaves = list(_leaves(error))
    return next((leaf for leaf in leaves if not isinstance(leaf, CONSEQUENCES)), leaves[0])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for part in error.exceptions:
        yield from _leaves(part)
