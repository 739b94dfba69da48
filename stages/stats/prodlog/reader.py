"""Reads a production log back, whatever became of its files, and says what is not there.

A line that does not end is the last of its file: a crash or a power loss came between. It is passed over and its bytes
are told. Any other line that is no JSON is passed over too and counted. What was lost between lines shows in their
numbers, which rise by one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from attrs import define, field

from stages.errors import ConfigError
from stages.stats.prodlog.folder import is_being_written, log_files
from stages.stats.prodlog.lines import SCHEMA, EndLine, Header, Line, LostLine, RequestLine, Unknown, decode

# How the file ends: by its end line; by no end line as it is being written; by a crash.
Ending = Literal["closed", "open", "cut short"]


@define(eq=False)
class FileRead:
    """What one file held. first_n and last_n are of its numbered lines; num_missing is what was jumped over between."""

    name: str
    size_bytes: int
    header: Header | None = None
    ending: Ending = "cut short"
    is_last: bool = False
    num_lines: int = 0
    torn_bytes: int = 0
    num_unreadable: int = 0
    num_wrong_fields: int = 0
    num_unknown: int = 0
    num_lost: int = 0
    first_n: int | None = None
    last_n: int | None = None
    num_missing: int = 0
    first_at_s: float | None = None
    last_at_s: float | None = None

    @property
    def run(self) -> str:
        """Return the run that wrote it, by its name where its header is gone."""
        return self.header.run if self.header is not None and self.header.run else self.name.rpartition("-")[0]

    @property
    def is_newer(self) -> bool:
        """Return whether a newer version wrote it, some of whose fields may mean something else."""
        return self.header is not None and self.header.schema > SCHEMA


# Gets a line and its file as far as that was read.
Take = Callable[[Line, FileRead], None]


@define(eq=False)
class LogRead:
    """What a whole log held."""

    files: list[FileRead] = field(factory=list)
    # Between files of one run; inside of them the files count.
    num_missing_between: int = 0


def read_log(path: Path, take: Take) -> LogRead:
    """Read a folder's files, the oldest first, or one file, giving each line to `take`; raises ConfigError."""
    try:
        files = log_files(path) if path.is_dir() else {path: path.stat().st_size}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if not files:
        raise ConfigError(f"{path} has no files of a production log")
    result = LogRead()
    for file, size in files.items():
        try:
            result.files.append(read_file(file, size, take))
        except FileNotFoundError:
            continue  # the bound of a process that writes has just removed it
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    result.num_missing_between = sum(_missing_between(result.files))
    return result


def read_file(path: Path, size_bytes: int, take: Take) -> FileRead:
    """Read one file, giving each line to `take`; raises OSError."""
    file = FileRead(path.name, size_bytes)
    # Looked at first: a file closed in between has its end line.
    is_open = is_being_written(path)
    with path.open("rb") as lines:
        for raw in lines:
            _read_line(raw, file, take)
    if file.ending != "closed" and is_open:
        file.ending = "open"
    return file


def _read_line(raw: bytes, file: FileRead, take: Take) -> None:
    try:
        line, n, num_wrong = decode(raw)
    except ValueError:
        # An object without its end is no JSON, so that a line whole but for its newline is a line.
        if raw.endswith(b"\n"):
            file.num_unreadable += 1
        else:
            file.torn_bytes = len(raw)
        return
    file.num_lines += 1
    file.num_wrong_fields += num_wrong
    if n is not None:
        _count(n, file)
    if isinstance(line, Unknown):
        file.num_unknown += 1
    elif isinstance(line, Header):
        file.header = file.header or line
    else:
        # A call is logged when it ended.
        at_s = line.at_s + line.ended_s if isinstance(line, RequestLine) else line.at_s
        file.last_at_s = max(at_s, file.last_at_s or at_s)
    if file.first_at_s is None and not isinstance(line, Unknown):
        file.first_at_s = line.at_s
    if isinstance(line, LostLine):
        file.num_lost += line.count
    if isinstance(line, EndLine):
        file.ending, file.is_last = "closed", line.is_last
    take(line, file)


def _count(n: int, file: FileRead) -> None:
    if file.first_n is None or file.last_n is None:
        file.first_n = n
    else:
        file.num_missing += max(0, n - file.last_n - 1)
    file.last_n = max(n, file.last_n or 0)


def _missing_between(files: list[FileRead]) -> Iterator[int]:
    """Yield how many numbers are missing from each file of a run to its next; what came before the first is too old."""
    last: dict[str, int] = {}
    for file in files:
        if file.first_n is None or file.last_n is None:
            continue
        yield max(0, file.first_n - last.get(file.run, file.first_n - 1) - 1)
        last[file.run] = max(file.last_n, last.get(file.run, 0))
