"""`python -m trnrt report DIR`: what a production log says, as tables, as JSON and as a picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from stages.errors import ConfigError
from stages.stats.prodlog.reader import read_log
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


def run_report(argv: Sequence[str]) -> int:
    """Print the log's numbers as argv says and write the files asked for; raises ConfigError naming a flag or file."""
    flags = ReportFlags(**vars(report_parser().parse_args(argv)))
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
    return result


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
