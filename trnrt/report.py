"""`python -m trnrt report DIR`: what a production log says, as tables, as JSON and as a picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from stages.errors import ConfigError
from stages.stats.prodlog.folder import read_key
from stages.stats.prodlog.journal import hashed_id
from stages.stats.prodlog.lines import Line, RequestLine, encode
from stages.stats.prodlog.reader import FileRead, read_log
from trnrt.flags import FlagParser
from trnrt.reporting.columns import Columns
from trnrt.reporting.pictures import to_svg
from trnrt.reporting.summary import summarize
from trnrt.reporting.text import to_json, to_text

DEFAULT_SLOWEST = 10


@frozen(kw_only=True)
class ReportFlags:
    """What report takes."""

    DIR: str
    out: str | None = None
    json: bool = False
    slowest: int = DEFAULT_SLOWEST
    id: str | None = None


def run_report(argv: Sequence[str]) -> int:
    """Print the log's numbers as argv says and write the files asked for; raises ConfigError naming a flag or file."""
    flags = ReportFlags(**vars(report_parser().parse_args(argv)))
    if flags.id is not None:
        return _print_calls(Path(flags.DIR), flags.id)
    columns = Columns(flags.slowest)
    summary = summarize(read_log(Path(flags.DIR), columns.take), columns)
    texts = {"txt": to_text(summary), "json": to_json(summary)}
    if flags.out is not None:
        _write(Path(flags.out), texts | {"svg": to_svg(summary, columns)})
    print(texts["json" if flags.json else "txt"], end="")
    return 0


def report_parser() -> FlagParser:
    """Return the parser of report's flags."""
    result = FlagParser("python -m trnrt report", "Sum up a production log.")
    result.add_argument("DIR", help="folder of --prod-dir, or one of its files")
    result.add_argument("--out", help="folder for report.txt, .json and .svg", metavar="FOLDER")
    result.add_argument("--json", action="store_true", help="print JSON instead of tables")
    result.add_argument(
        "--slowest", type=_count, help=f"how many of the slowest calls to list [{DEFAULT_SLOWEST}]", metavar="INT"
    )
    result.add_argument("--id", help="print the lines of the calls with this x-request-id instead", metavar="ID")
    return result


def _print_calls(path: Path, request_id: str) -> int:
    """Print a request's lines and return 0, or 1 for none; raises ConfigError where the log or its key is not there."""
    wanted = hashed_id(request_id, read_key(path if path.is_dir() else path.parent))
    lines: list[RequestLine] = []

    def take(line: Line, file: FileRead) -> None:
        if isinstance(line, RequestLine) and line.id == wanted:
            lines.append(line)

    read_log(path, take)
    for line in lines:
        print(encode(line).decode(), end="")
    return 0 if lines else 1


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 999999, got {text!r}")
    return int(text)


def _write(folder: Path, texts: dict[str, str]) -> None:
    for end, text in texts.items():
        path = folder / f"report.{end}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out: cannot write {path}: {error.strerror}") from None
