"""Wakes a trio task from another thread without taking that thread's core.

trio.lowlevel.TrioToken writes to a socket pair. Linux takes such a write for a hint that the writer is about to sleep
and may run the woken thread on the writer's core at once, while the engine thread has its next step to begin.
An event fd gives no such hint and is cheaper: with an idle second core a step follows the last in 0.04 ms, not 0.07 ms.
"""

import os
import sys

import trio


class Bell:
    """Rung by one thread, heard by one task; rings before the task listens are not lost, several are heard as one."""

    def __init__(self) -> None:
        """Open the bell's file descriptors."""
        if sys.platform == "linux":
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
        self._is_open = True

    def ring(self) -> None:
        """Wake the task; called on any thread."""
        os.write(self._write_fd, (1).to_bytes(8, sys.byteorder))

    async def heard(self) -> None:
        """Wait for a ring."""
        await trio.lowlevel.wait_readable(self._read_fd)
        os.read(self._read_fd, 8 if self._read_fd == self._write_fd else 4096)

    def close(self) -> None:
        """Close the file descriptors; idempotent."""
        if self._is_open:
            self._is_open = False
            for fd in {self._read_fd, self._write_fd}:
                os.close(fd)
