"""Runs an async function on a virtual clock with a seeded order of tasks: the same seed gives the same run."""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
import trio._core._run as trio_run
import trio.testing

T = TypeVar("T")


def run_virtually(main: Callable[[], Awaitable[T]], *, seed: int = 0, timeout_s: float = 3600.0) -> T:
    """Return what main() returns on a clock that jumps when all tasks are idle; a deadlock is a TooSlowError at once.

    Threads and sockets have no place inside: the clock does not wait for them.
    """
    # Private to trio, so trio is pinned; this says so on the day it changes.
    private = vars(trio_run)
    order, was_deterministic = private["_r"], private["_ALLOW_DETERMINISTIC_SCHEDULING"]
    assert isinstance(order, random.Random)
    state = order.getstate()
    private["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    order.seed(seed)

    async def bounded() -> T:
        with trio.fail_after(timeout_s):
            return await main()
        raise AssertionError("unreachable: fail_after raises")

    try:
        return trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0.0))
    finally:
        private["_ALLOW_DETERMINISTIC_SCHEDULING"] = was_deterministic
        order.setstate(state)
