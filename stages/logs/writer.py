"""Writes lines from a thread of its own, so that whoever has something to say never waits for a disk or a pipe.

What cannot be written as fast as it comes is dropped beyond a bound of entries and bytes; how much was lost is a line
of its own as soon as one can be written again. After `close` lines are written where they are made: the process is
ending, and its last words count.
"""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import Any, Final

from attrs import define, field

from stages.logs.lines import Entry, LineFormat, line_of

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 16 << 20
# Lines that are taken from the queue at once.
BATCH: Final = 256
# How long the end of the process waits for a log that nobody reads.
CLOSE_WITHIN_S: Final = 2.0
LOST: Final = "%d log lines were lost: they came faster than the log could be written"

Write = Callable[[bytes], None]


@define(eq=False)
class LineWriter:
    """A bounded queue and its thread; `write` takes whole lines and may block, or raise OSError for a loss."""

    write: Write
    format: LineFormat = "text"
    max_entries: int = MAX_ENTRIES
    max_bytes: int = MAX_BYTES
    _queue: "SimpleQueue[Entry | None]" = field(factory=SimpleQueue)
    # Changed under _saying alone: what was put, and the lines there was no room for.
    _put_bytes: int = 0
    _num_dropped: int = 0
    # Changed by the thread alone: what it took, the lines it could not write, and the losses that the log knows of.
    _taken_bytes: int = 0
    _num_unwritten: int = 0
    _num_told: int = 0
    # Held for no longer than an entry takes to be put. Reentrant: a destructor may log in the middle of that.
    _saying: Any = field(factory=RLock)
    _thread: Thread | None = None
    _is_closed: bool = False

    @property
    def num_lost(self) -> int:
        """Return how many lines were dropped or could not be written."""
        return self._num_dropped + self._num_unwritten

    def start(self) -> None:
        """Begin to write."""
        self._thread = Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Have an entry written, or count it as lost where there is no room; after close write it at once."""
        if self._is_closed:
            self._write([entry])
            return
        num_bytes = entry.num_bytes
        with self._saying:
            waiting_bytes = self._put_bytes - self._taken_bytes
            if self._queue.qsize() >= self.max_entries or waiting_bytes + num_bytes > self.max_bytes:
                self._num_dropped += 1
                return
            self._put_bytes += num_bytes
            self._queue.put(entry)

    def close(self, within_s: float = CLOSE_WITHIN_S) -> bool:
        """Write what waits, giving up after within_s; returns whether all of it went out."""
        if self._is_closed or self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(within_s)
        if self._thread.is_alive():
            return False
        self._is_closed = True
        self._write(self._waiting(self.max_entries))  # said as the thread ended
        return True

    def _run(self) -> None:
        is_over = False
        while not is_over:
            first = self._queue.get()
            entries = [] if first is None else [first, *self._waiting(BATCH)]
            is_over = first is None
            self._taken_bytes += sum(entry.num_bytes for entry in entries)
            self._write(entries)

    def _waiting(self, at_most: int) -> list[Entry]:
        """Take what is there; the order to end stays for whoever waits next."""
        entries: list[Entry] = []
        with suppress(Empty):
            while len(entries) < at_most:
                entry = self._queue.get_nowait()
                if entry is None:
                    self._queue.put(None)
                    break
                entries.append(entry)
        return entries

    def _write(self, entries: list[Entry]) -> None:
        num_lost = self.num_lost
        for together in _grouped([self._line(entry) for entry in entries]):
            if not self._has_written(b"".join(together)):
                self._num_unwritten += len(together)
        if num_lost > self._num_told:
            told = Entry(time.time(), "warning", "trnrt", LOST % (num_lost - self._num_told))
            if self._has_written(self._line(told)):
                self._num_told = num_lost

    def _has_written(self, data: bytes) -> bool:
        try:
            self.write(data)
        except (OSError, ValueError):  # its reader has gone, the disk is full, the file is closed
            return False
        return True

    def _line(self, entry: Entry) -> bytes:
        try:
            return line_of(entry, self.format)
        except Exception:  # whatever a value does when it is spelled must not take the other lines along
            self._num_unwritten += 1
            return b""


def _grouped(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Give the lines in groups that a pipe takes whole: several processes may write to one."""
    together: list[bytes] = []
    num_bytes = 0
    for line in lines:
        if together and num_bytes + len(line) > select.PIPE_BUF:
            yield together
            together, num_bytes = [], 0
        together.append(line)
        num_bytes += len(line)
    if together:
        yield together


def to_descriptor(descriptor: int) -> Write:
    """Return what writes all of some bytes to an open file, waiting for one that takes nothing now."""

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # whoever gave us the pipe made it so
                select.select([], [descriptor], [])

    return write
