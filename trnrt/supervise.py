"""Tasks that may not die unnoticed."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from stages.errors import EngineFailure

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
    """Return the first leaf of an exception group, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
