"""Tasks that may not die unnoticed."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from stages.errors import EngineFailure

CONSEQUENCES = (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel)

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
    """Return `stage` as a task whose failures are logged and end nothing but itself."""

    async def run(*args: Any, task_status: "trio.TaskStatus[Any]" = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await stage(*args, task_status=task_status)
        except Exception:
            log.exception("the %s stage failed; serving goes on without it", name)

    return run


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
