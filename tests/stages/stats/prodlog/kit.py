"""Records with round numbers, journals on a clock of the test, and disks that fill up."""

import errno
import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from stages.messages import Load, RequestRecord
from stages.stats.prodlog.folder import Folder
from stages.stats.prodlog.journal import Item, Journal, Run
from stages.stats.prodlog.lines import Line
from stages.stats.prodlog.reader import LogRead, read_log

AT_S = 1_700_000_000.0
LOAD = Load(1, 2, 30, 4, 50, 6, 70, 64)
RECORD = RequestRecord(
    request_id="from-a-client",
    route="/v1/chat/completions",
    dialect="openai_chat",
    model="what the client called it",
    is_streamed=True,
    is_constrained=False,
    num_choices=1,
    arrived_unix_s=AT_S,
    arrived_s=100.0,
    parsed_s=100.125,
    prompt_ready_s=100.25,
    submitted_s=100.25,
    admitted_s=100.5,
    first_token_s=101.0,
    last_token_s=103.0,
    ended_s=103.125,
    prompt_tokens=1000,
    cached_device_tokens=600,
    cached_host_tokens=200,
    completion_tokens=21,
    reasoning_tokens=7,
    retractions=1,
    outcome="stop",
    status=200,
    cause=None,
)


def record(number: float = 0, **changes: Any) -> RequestRecord:
    """A call that arrived `number` seconds after AT_S."""
    return evolve(RECORD, request_id=f"request-{number}", arrived_unix_s=AT_S + number, **changes)


def records(count: int, first: int = 0) -> "deque[Item]":
    return deque(record(first + index) for index in range(count))


@define(eq=False)
class Clock:
    """Unix seconds that stand still."""

    now_s: float = AT_S

    def __call__(self) -> float:
        return self.now_s


def journal(path: Path, *, max_bytes: int = 1 << 20, file_bytes: int = 1 << 16, run: str = "0000000a") -> Journal:
    return Journal(Folder(path, max_bytes, file_bytes), Run("serve", model="demo", version="1", id=run, pid=7), Clock())


@define(eq=False)
class Disk:
    """Room for so many more bytes, of all files together; a write that does not fit goes in part, as on a real one."""

    room_bytes: float
    error: int = errno.ENOSPC
    num_failures: int = 0
    _write: Any = field(factory=lambda: os.write)

    def write(self, descriptor: int, data: Any) -> int:
        fits = int(min(len(data), self.room_bytes))
        if not fits:
            self.num_failures += 1
            raise OSError(self.error, os.strerror(self.error))
        self.room_bytes -= fits
        return int(self._write(descriptor, data[:fits]))


def disk_of(monkeypatch: pytest.MonkeyPatch, room_bytes: float) -> Disk:
    """Let os.write have so much room from now on."""
    disk = Disk(room_bytes)
    monkeypatch.setattr(os, "write", disk.write)
    return disk


@define(eq=False)
class Read:
    """A log as it was read."""

    log: LogRead
    lines: list[Line]

    def of(self, kind: type) -> list[Any]:
        return [line for line in self.lines if isinstance(line, kind)]

    @property
    def endings(self) -> list[str]:
        return [file.ending for file in self.log.files]

    @property
    def num_bad(self) -> int:
        """What is not as it should be, of any kind."""
        files = self.log.files
        bad = sum(bool(one.torn_bytes) + one.num_unreadable + one.num_wrong_fields + one.num_missing for one in files)
        return bad + self.log.num_missing_between


def read(path: Path) -> Read:
    lines: list[Line] = []
    return Read(read_log(path, lambda line, file: lines.append(line)), lines)
