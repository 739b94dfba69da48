"""The folder of a production log: names, the bound over all files, and the key that ids are hashed with.

A file is locked by the process that writes it for as long as it does, so that nobody else's bound removes it; the lock
goes with the process, however that ends. Where locks do not work, the oldest file goes first all the same.
"""

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from stages.errors import ConfigError

KEY_BYTES = 32
_NAME = re.compile(r"prod-\d{8}T\d{6}-[0-9a-f]{8}-\d{6,}\.jsonl")
_KEY, _LOCK = ".prodlog-key", ".prodlog-lock"
# How long others may take to open a file; one that was stopped while it did is not waited for.
_LOCK_S, _LOCK_POLL_S = 1.0, 0.01


class NoRoom(OSError):
    """The files that others are writing leave no room under the bound."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            errno.ENOSPC, f"other processes write to it, and its bound of {max_bytes:,} bytes is too small"
        )


@frozen
class Folder:
    """A folder with the files of one or several processes, each file at most file_bytes, all at most max_bytes."""

    path: Path
    max_bytes: int
    file_bytes: int

    def create(self, at_s: float, run: str, number: int) -> tuple[Path, int]:
        """Make room and the next file of a run, giving its path and its open descriptor; raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        name = f"prod-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(at_s))}-{run}-{number:06d}.jsonl"
        path = self.path / name
        with self._locked():
            self._make_room()
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        return path, descriptor

    def sync(self) -> None:
        """Make the names of new files last through a power loss; raises OSError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # what a file system says that knows no such thing
                raise
        finally:
            os.close(descriptor)

    def key(self) -> bytes:
        """Return the folder's key, made when there is none; raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / _KEY
        with self._locked():
            with suppress(FileNotFoundError):
                key = path.read_bytes()
                if len(key) == KEY_BYTES:
                    return key
            key = secrets.token_bytes(KEY_BYTES)
            part = self.path / f"{_KEY}-{os.getpid()}"
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                if os.write(descriptor, key) < KEY_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
                part.rename(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            return key

    def _make_room(self) -> None:
        """Remove the oldest files that nobody writes until one more fits; raises NoRoom, OSError."""
        files = log_files(self.path)
        closed = {file: size for file, size in files.items() if not is_being_written(file)}
        # What is being written may still grow.
        num_open = len(files) - len(closed)
        excess = sum(closed.values()) + (num_open + 1) * self.file_bytes + KEY_BYTES - self.max_bytes
        for file, size in closed.items():
            if excess <= 0:
                return
            file.unlink(missing_ok=True)
            excess -= size
        if excess > 0:
            raise NoRoom(self.max_bytes)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from making files meanwhile, as far as locks work here and nobody was stopped in it."""
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            until_s = time.monotonic() + _LOCK_S
            while not _try_lock(descriptor) and time.monotonic() < until_s:
                time.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)


def read_key(folder: Path) -> bytes:
    """Return the key that ids of a folder's log are hashed with; raises ConfigError naming it."""
    path = folder / _KEY
    try:
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} is no key of {KEY_BYTES} bytes")
    return key


def log_files(folder: Path) -> dict[Path, int]:
    """Return the log's files and their bytes, the oldest first; raises OSError."""
    files: dict[Path, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    if entry.is_file():
                        files[Path(entry.path)] = entry.stat().st_size
    return dict(sorted(files.items()))


def is_being_written(path: Path) -> bool:
    """Return whether some process has the file open for writing, as far as locks can tell."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Without locks there is nothing to wait for.
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
