"""Runs a command in a process group of its own and ends the whole group when the one that asked for it has gone.

A file to be run by itself, with nothing but the standard library: `engine_guard.py FD STOP_S COMMAND...`. FD is a pipe
whose other end only the asking process holds, so that it ends with that process however that ends, SIGKILL included;
and it is closed to ask for a stop. A death signal of the kernel's would reach the command alone, not its children, and
is tied to the thread that started it. It is set as well, for the case that this process is killed.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127


def main(argv: Sequence[str]) -> int:
    """Run the command to its end or ours, and return its exit code."""
    asking, stop_s, command = int(argv[0]), float(argv[1]), list(argv[2:])
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    # A key pressed at the terminal is for the asking process to act on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        engine = subprocess.Popen(command, process_group=0, preexec_fn=_prepared())
    except OSError as error:
        print(f"trnrt: --launch-engine: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    while (code := engine.poll()) is None:
        ready, _, _ = select.select([asking, woken], [], [])
        if asking in ready or signal.SIGTERM in os.read(woken, 64):
            code = _stop(engine, stop_s)
            break
    _signal_group(engine, signal.SIGKILL)  # what it left behind
    return code


def _prepared() -> Callable[[], None]:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return prepare


def _stop(engine: "subprocess.Popen[bytes]", stop_s: float) -> int:
    """Ask the group to end, make it once stop_s have passed, and return the command's exit code."""
    _signal_group(engine, signal.SIGTERM)
    deadline_s = time.monotonic() + stop_s
    while engine.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.02)
    if engine.poll() is None:
        _signal_group(engine, signal.SIGKILL)
    return engine.wait()


def _signal_group(engine: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(engine.pid, number)


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    if ended < 0:  # by a signal, and so shall this
        if -ended != signal.SIGKILL:
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
