"""The engine that a renderer starts itself: before anything is read, watched while it serves, stopped with it.

Its output goes where this process's own goes, as it is. It ends with this process however that ends: see
`engine_guard.py`.
"""

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trio
from attrs import define

from stages.errors import ConfigError, EngineFailure, StartupError
from trnrt.children import exited, how_it_ended

GUARD = Path(__file__).with_name("engine_guard.py")
HEALTH_POLL_S = 0.25
# Beyond the limit of a stop, what it takes to notice and to end.
STOP_MARGIN_S = 5.0
HEALTHY = 200

log = logging.getLogger("trnrt")


@define(eq=False)
class LaunchedEngine:
    """An engine's process, under its guard."""

    process: "subprocess.Popen[bytes]"

    async def until_healthy(self, health: Callable[[], Awaitable[int]], limit_s: float) -> None:
        """Wait until the engine says that it is well; raises StartupError when it ends or takes too long."""
        code: int | None = None

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal code
            code = await exited(self.process)
            scope.cancel()

        with trio.move_on_after(limit_s) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope)
                await until_well(health)
                nursery.cancel_scope.cancel()
        if code is not None:
            raise StartupError(f"--launch-engine: the engine {how_it_ended(code)} before it was well.")
        if limit.cancelled_caught:
            raise StartupError(f"--launch-engine: the engine was not well within {limit_s:g} s.")
        log.info("the engine is well")

    async def watch(self, *, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Raise EngineFailure when the engine ends."""
        task_status.started()
        code = await exited(self.process)
        raise EngineFailure(f"the engine that --launch-engine has started {how_it_ended(code)}")


async def until_well(health: Callable[[], Awaitable[int]]) -> None:
    """Wait until an engine says that it is well."""
    while await health() != HEALTHY:  # noqa: ASYNC110  # nobody tells
        await trio.sleep(HEALTH_POLL_S)


@contextmanager
def launched(command: Sequence[str], stop_timeout_s: float) -> Iterator[LaunchedEngine]:
    """Start a command for the block and stop it after; raises ConfigError for a command that there is not."""
    if not command or shutil.which(command[0]) is None:
        raise ConfigError(f"--launch-engine: there is no command {command[0] if command else ''!r}")
    asked, asking = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), str(asked), f"{stop_timeout_s:g}", *command],
            stdin=subprocess.DEVNULL,
            pass_fds=(asked,),
            process_group=0,
        )
    except BaseException:
        os.close(asking)
        raise
    finally:
        os.close(asked)
    log.info("the engine starts: %s ... (process %d)", command[0], process.pid)
    try:
        yield LaunchedEngine(process)
    finally:
        os.close(asking)
        with suppress(subprocess.TimeoutExpired):
            process.wait(stop_timeout_s + STOP_MARGIN_S)


def split_command(argv: Sequence[str]) -> list[str]:
    """Return arguments with `--launch-engine ... -- COMMAND` as one flag; raises ConfigError for half of it."""
    args = list(argv)
    if "--" not in args:
        return args
    at = args.index("--")
    head, command = args[:at], args[at + 1 :]
    if "--launch-engine" not in head:
        raise ConfigError("--: a command behind it goes with --launch-engine")
    if not command:
        raise ConfigError("--launch-engine: there is no command behind --")
    head.remove("--launch-engine")
    return [*head, f"--launch-engine={shlex.join(command)}"]


def command_of(text: str) -> tuple[str, ...]:
    """Return a command as a shell would split it; raises ConfigError for an open quote."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--launch-engine: {error}") from None
