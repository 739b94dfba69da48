"""Lines into files: whole ones only, one file after the other, no file over its size.

A line that could not be written whole is taken back; where even that fails, the file is left with the torn line at its
end and the next line goes to a new file. So in every file all lines are whole but perhaps the last.
"""

import hashlib
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from attrs import define, field, frozen

from stages.messages import Load, RequestRecord
from stages.stats.prodlog.folder import KEY_BYTES, Folder
from stages.stats.prodlog.lines import (
    MAX_LINE_BYTES,
    SCHEMA,
    EndLine,
    Header,
    LostLine,
    Written,
    encode,
    gauges_line,
    request_line,
)

# Written at once: enough to make the call cheap, little enough to encode without holding up the event loop.
CHUNK_BYTES = 1 << 16
ID_BYTES = 8


def hashed_id(request_id: str, key: bytes) -> str:
    """Return a request's id as it stands in the log of a folder with that key."""
    return hashlib.blake2b(request_id.encode(errors="replace"), digest_size=ID_BYTES, key=key).hexdigest()


@frozen
class LoadSeen:
    """A load and the Unix second in which it was looked at."""

    load: Load
    at_s: float


# What is queued, to become a line off the loop.
Item = RequestRecord | LoadSeen | LostLine


@frozen
class Run:
    """One process's stay: what every header of its files says."""

    role: str
    model: str | None = None
    version: str | None = None
    id: str = field(factory=lambda: secrets.token_hex(4))
    pid: int = field(factory=os.getpid)


@define(eq=False)
class LogFile:
    """One file that this process alone writes."""

    path: Path
    descriptor: int
    size_bytes: int = 0
    # Whether its end may be half a line: nothing may follow.
    is_torn: bool = False
    is_synced: bool = True

    def append(self, data: bytes) -> None:
        """Write whole lines, all of them or none; raises OSError."""
        self.is_synced = False
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            self._take_back()
            raise
        self.size_bytes += len(data)

    def is_there(self) -> bool:
        """Return whether the path still leads to this file."""
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.descriptor))

    def sync(self) -> None:
        """Make what was written last through a power loss; raises OSError, after which nobody knows what lasts."""
        try:
            os.fdatasync(self.descriptor)
        except OSError:
            self.is_torn = True
            raise
        self.is_synced = True

    def _take_back(self) -> None:
        try:
            os.ftruncate(self.descriptor, self.size_bytes)
        except OSError:
            self.is_torn = True


@define(eq=False)
class Journal:
    """The files of one run, the newest open; `clock` gives Unix seconds."""

    folder: Folder
    run: Run
    clock: Callable[[], float] = time.time
    num_lines: int = 0
    num_files: int = 0
    file: LogFile | None = None
    _key: bytes = bytes(KEY_BYTES)
    # What the newest file is named by: it rises though the clock be set back, since by name the oldest file goes first.
    _named_s: float = 0.0

    def write(self, items: deque[Item]) -> None:
        """Write and remove items, the first first; raises OSError with what was not written still in `items`."""
        while items:
            file = self._open()
            room = self.folder.file_bytes - file.size_bytes - MAX_LINE_BYTES
            lines = self._fitting(items, min(room, CHUNK_BYTES))
            if not lines:
                self._finish(file, is_last=False)
                continue
            file.append(b"".join(lines))
            self.num_lines += len(lines)
            for _ in lines:
                items.popleft()

    def sync(self) -> None:
        """Make all that was written last; raises OSError."""
        if self.file is not None and not self.file.is_synced:
            self.file.sync()

    def close(self) -> None:
        """End the run's last file; raises OSError when its last lines may not last."""
        if self.file is not None:
            self._finish(self.file, is_last=True)

    def _open(self) -> LogFile:
        """Return the open file, a new one where there is none, it is gone or its end is torn; raises OSError."""
        if self.file is not None and (self.file.is_torn or not self.file.is_there()):
            self._drop(self.file)
        if self.file is None:
            self.file = self._created()
        return self.file

    def _created(self) -> LogFile:
        at_s = self.clock()
        # Anew each time: a folder that was removed comes back with another key.
        self._key = self.folder.key()
        self._named_s = max(at_s, self._named_s)
        path, descriptor = self.folder.create(self._named_s, self.run.id, self.num_files + 1)
        self.num_files += 1
        file = LogFile(path, descriptor)
        header = Header(
            schema=SCHEMA,
            at_s=round(at_s, 6),
            run=self.run.id,
            file=self.num_files,
            role=self.run.role,
            model=self.run.model,
            version=self.run.version,
            pid=self.run.pid,
        )
        try:
            file.append(encode(header))
            self.folder.sync()
        except OSError:
            os.close(descriptor)
            with suppress(OSError):
                path.unlink()
            raise
        return file

    def _fitting(self, items: deque[Item], room_bytes: int) -> list[bytes]:
        """Return the lines of the first items that have room."""
        lines: list[bytes] = []
        for item in items:
            line = encode(self._line(item), self.num_lines + len(lines) + 1)
            room_bytes -= len(line)
            if room_bytes < 0:
                break
            lines.append(line)
        return lines

    def _line(self, item: Item) -> Written:
        match item:
            case RequestRecord():
                return request_line(item, self._hashed)
            case LoadSeen():
                return gauges_line(item.load, item.at_s)
            case LostLine():
                return item
            case _:
                assert_never(item)

    def _hashed(self, request_id: str) -> str:
        """Return the keyed hash of an id, which may be its client's words."""
        return hashed_id(request_id, self._key)

    def _finish(self, file: LogFile, *, is_last: bool) -> None:
        """Write the end line, make the file last and close it; raises OSError when one of these failed."""
        self.file = None
        try:
            if not file.is_torn:
                file.append(encode(EndLine(at_s=round(self.clock(), 6), is_last=is_last), self.num_lines + 1))
                self.num_lines += 1
            file.sync()
        finally:
            os.close(file.descriptor)

    def _drop(self, file: LogFile) -> None:
        self.file = None
        os.close(file.descriptor)
