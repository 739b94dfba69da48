"""Processes that this one has started, awaited on trio."""

import os
import signal
import subprocess

import trio

# Where there is nothing better to wait on.
POLL_S = 0.1


async def exited(process: "subprocess.Popen[bytes]") -> int:
    """Wait until a process has ended and return its exit code, the negative signal if one ended it."""
    while process.poll() is None:
        try:
            number = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # no Linux, or an old one
            await trio.sleep(POLL_S)
            continue
        try:
            await trio.lowlevel.wait_readable(number)
        finally:
            os.close(number)
    return process.returncode


def how_it_ended(code: int) -> str:
    """Return what an exit code says."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
