"""The picture of a log, and the command that makes all of it."""

import json
import xml.etree.ElementTree as ElementTree
from collections import deque
from pathlib import Path

import attrs
import pytest

from stages.errors import ConfigError
from stages.stats.prodlog.journal import Item, LoadSeen
from stages.stats.prodlog.reader import read_log
from tests.stages.stats.prodlog.kit import AT_S, LOAD, journal, record
from trnrt.__main__ import main
from trnrt.report import run_report
from trnrt.reporting.columns import Columns
from trnrt.reporting.pictures import MAX_MARKS, MAX_STRETCHES, Times, to_svg
from trnrt.reporting.summary import summarize

SVG = "{http://www.w3.org/2000/svg}"


def log_of(path: Path, *items: Item) -> Path:
    one = journal(path)
    one.write(deque(items))
    one.close()
    return path


def picture_of(path: Path) -> ElementTree.Element:
    columns = Columns(0)
    return ElementTree.fromstring(to_svg(summarize(read_log(path, columns.take), columns), columns))


def lines_of(picture: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]  # type: ignore[misc]
        for line in picture.iter(f"{SVG}polyline")
    ]


def texts_of(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def test_a_picture_has_its_panels_and_stays_inside(tmp_path: Path):
    loads = [LoadSeen(attrs.evolve(LOAD, running=n % 7), AT_S + 10 * n) for n in range(100)]
    calls = [record(n, outcome=("stop", "error", "refused", "disconnected")[n % 4]) for n in range(1000)]

    picture = picture_of(log_of(tmp_path, *calls, *loads))

    for title in ("calls a second", "tokens a second", "time to first token, s", "whole call, s", "running", "pages"):
        assert title in texts_of(picture)
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    lines = lines_of(picture)
    assert len(lines) == 4 + 3 + 2 + 2 + 3 + 2 + 2 + 2
    assert all(0 <= x <= width and 0 <= y <= height for line in lines for x, y in line)


def test_a_level_holds_until_its_process_tells_another(tmp_path: Path):
    loads = [LoadSeen(attrs.evolve(LOAD, running=running), AT_S + at_s) for at_s, running in ((0, 8), (50, 0), (99, 0))]

    *_, running, _, _, _ = lines_of(picture_of(log_of(tmp_path, *loads)))

    heights = sorted({y for _, y in running})
    assert len(running) == 99
    assert len(heights) == 2
    # 8 until 50 s, in the stretch of its end too, then 0.
    assert [y for _, y in running] == [heights[0]] * 51 + [heights[1]] * 48


@pytest.mark.parametrize("length_s", [0, 0.5, 7, 60, 3000, 86_400, 7 * 86_400, 400 * 86_400, 40 * 365 * 86_400])
def test_times_are_cut_and_marked_at_round_ones(length_s: float):
    times = Times(AT_S, AT_S + length_s)

    assert times.begin_s <= AT_S
    assert times.end_s >= AT_S + length_s
    assert times.num <= MAX_STRETCHES + 2
    marks = times.axis().marks
    assert len(marks) <= MAX_MARKS + 1
    assert len({text for _, text in marks}) == len(marks)
    assert all(times.begin_s <= at_s <= times.end_s for at_s, _ in marks)


def test_a_log_without_a_call_has_a_picture_of_nothing(tmp_path: Path):
    (tmp_path / "prod-20231114T221500-0000000b-000001.jsonl").write_bytes(b"torn")

    assert all(len(line) == 1 for line in lines_of(picture_of(tmp_path)))


def test_the_command_prints_and_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = log_of(tmp_path / "log", *(record(n) for n in range(5)))

    assert main(["report", str(log), "--out", str(tmp_path / "out"), "--slowest", "2"]) == 0
    text = capsys.readouterr().out
    assert main(["report", str(log), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)

    assert text == (tmp_path / "out" / "report.txt").read_text()
    assert text.count("/v1/chat/completions") == 1 + 2
    assert len(json.loads((tmp_path / "out" / "report.json").read_text())["slowest"]) == 2
    assert len(table["slowest"]) == 5
    assert (tmp_path / "out" / "report.svg").read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["/none/such"], "cannot read /none/such"),
        ([], "DIR"),
        (["x", "--slowest", "-1"], "--slowest"),
        (["x", "--colour"], "--colour"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_names_it(argv: list[str], told: str):
    with pytest.raises(ConfigError, match=told):
        run_report(argv)


def test_an_out_folder_that_cannot_be_made_is_told(tmp_path: Path):
    log = log_of(tmp_path / "log", record(0))
    (tmp_path / "file").write_text("mine")

    with pytest.raises(ConfigError, match="--out: cannot write"):
        run_report([str(log), "--out", str(tmp_path / "file")])


def test_a_call_is_found_by_its_id_with_the_folders_key_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = log_of(tmp_path / "log", *(record(n) for n in range(5)))

    assert run_report([str(log), "--id", "request-3"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["at_s"] == AT_S + 3
    assert run_report([str(next(log.glob("*.jsonl"))), "--id", "request-4"]) == 0
    assert run_report([str(log), "--id", "request-9"]) == 1
    (log / ".prodlog-key").write_bytes(b"short")
    with pytest.raises(ConfigError, match="is no key of 32 bytes"):
        run_report([str(log), "--id", "request-3"])
    (log / ".prodlog-key").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*prodlog-key"):
        run_report([str(log), "--id", "request-3"])
