"""Files: whole lines only, no file over its size, all files under their bound, whatever the disk does meanwhile."""

import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.stats.prodlog.folder import Folder, NoRoom, is_being_written, log_files
from stages.stats.prodlog.journal import Item, Journal, Run
from stages.stats.prodlog.lines import EndLine, Header, RequestLine
from stages.stats.prodlog.reader import read_log
from tests.stages.stats.prodlog.kit import AT_S, Clock, disk_of, journal, read, records


def total_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def test_a_file_begins_with_its_header_and_ends_with_its_end(tmp_path: Path):
    one = journal(tmp_path / "log")
    one.write(records(3))
    one.close()

    got = read(tmp_path / "log")

    assert got.lines[0] == Header(
        schema=1, at_s=AT_S, run="0000000a", file=1, role="serve", model="demo", version="1", pid=7
    )
    assert [line.at_s for line in got.of(RequestLine)] == [AT_S, AT_S + 1, AT_S + 2]
    assert got.lines[-1] == EndLine(at_s=AT_S, is_last=True)
    assert got.endings == ["closed"]
    assert got.num_bad == 0
    assert [file.name for file in got.log.files] == ["prod-20231114T221320-0000000a-000001.jsonl"]


def test_files_follow_each_other_without_a_gap_and_none_is_over_its_size(tmp_path: Path):
    one = journal(tmp_path)
    one.write(records(1000))
    one.close()

    got = read(tmp_path)

    assert len(got.log.files) > 5
    assert [line.at_s - AT_S for line in got.of(RequestLine)] == list(range(1000))
    assert got.num_bad == 0
    assert set(got.endings) == {"closed"}
    assert [end.is_last for end in got.of(EndLine)] == [False] * (len(got.log.files) - 1) + [True]
    assert max(log_files(tmp_path).values()) <= 1 << 16


@pytest.mark.parametrize("file_bytes", range(5000, 5600, 20))
def test_a_files_end_has_room_in_it_wherever_its_lines_stop(tmp_path: Path, file_bytes: int):
    one = journal(tmp_path, file_bytes=file_bytes)
    one.write(records(30))

    assert max(log_files(tmp_path).values()) <= file_bytes


def test_all_files_stay_under_their_bound_and_the_oldest_go_first(tmp_path: Path):
    bound = 300_000
    one = journal(tmp_path, max_bytes=bound)
    for batch in range(60):
        one.write(records(50, 50 * batch))
        assert total_bytes(tmp_path) <= bound

    got = read(tmp_path)

    seconds = [line.at_s - AT_S for line in got.of(RequestLine)]
    assert seconds == list(range(int(seconds[0]), 3000))
    assert seconds[0] > 0
    assert got.num_bad == 0
    assert total_bytes(tmp_path) > bound - 2 * (1 << 16) - 1000


def test_the_oldest_go_first_though_the_clock_was_set_back(tmp_path: Path):
    one, now_s = journal(tmp_path, max_bytes=300_000), [AT_S]
    one.clock = lambda: now_s[0]
    one.write(records(500))
    now_s[0] -= 86_400
    one.write(records(1500, first=500))
    one.close()

    numbers = [line.at_s - AT_S for line in read(tmp_path).of(RequestLine)]
    assert numbers == [float(number) for number in range(int(numbers[0]), 2000)]
    assert 0 < numbers[0] < 2000


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120)), max_size=25))
@settings(max_examples=20)
def test_three_processes_in_one_folder_stay_under_its_bound_together(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int]]
):
    path = tmp_path_factory.mktemp("log")
    bound = 5 * (1 << 16)
    journals = [journal(path, max_bytes=bound, run=f"0000000{index}") for index in range(3)]
    written = [0, 0, 0]
    for index, count in turns:
        journals[index].write(records(count, written[index]))
        written[index] += count
        assert total_bytes(path) <= bound
    for one in journals:
        one.close()

    if turns:
        assert read(path).num_bad == 0


def test_what_another_process_writes_is_not_removed_however_old_it_is(tmp_path: Path):
    old, new = (journal(tmp_path, max_bytes=200_000, run=run) for run in ("0000000a", "0000000b"))
    old.write(records(1))
    new.write(records(2000))

    old.write(records(1, 1))
    new.close()
    old.close()

    mine = [file for file in read(tmp_path).log.files if file.run == "0000000a"]
    assert [(file.ending, file.num_lines) for file in mine] == [("closed", 4)]


def test_a_folder_that_others_fill_takes_no_more(tmp_path: Path):
    first = journal(tmp_path, max_bytes=100_000)
    first.write(records(1))
    second = journal(tmp_path, max_bytes=100_000, run="0000000b")

    with pytest.raises(NoRoom, match="bound of 100,000 bytes is too small"):
        second.write(records(1))
    first.close()
    second.write(records(1))

    assert total_bytes(tmp_path) <= 100_000


def test_a_file_that_a_process_has_left_behind_counts_as_nobodys(tmp_path: Path):
    one = journal(tmp_path)
    one.write(records(1))
    (file,) = log_files(tmp_path)
    assert is_being_written(file)

    one.close()

    assert not is_being_written(file)


@given(rooms=st.lists(st.integers(0, 6000), max_size=12), count=st.integers(1, 40))
def test_a_full_disk_leaves_whole_lines_only_and_loses_none_once_there_is_room(
    tmp_path_factory: pytest.TempPathFactory, rooms: list[int], count: int
):
    path = tmp_path_factory.mktemp("log")
    one = journal(path)
    items = records(count)
    with pytest.MonkeyPatch.context() as patch:
        for room in rooms:
            disk_of(patch, room)
            try:
                one.write(items)
            except OSError:
                for file in log_files(path):
                    assert file.read_bytes().endswith((b"\n", b"}"))
                    assert file.read_bytes().count(b"\n{") == max(0, file.read_bytes().count(b"\n") - 1)
            patch.undo()
        one.write(items)
        one.close()

    got = read(path)

    assert [line.at_s - AT_S for line in got.of(RequestLine)] == list(range(count))
    assert got.num_bad == 0


def test_after_half_a_line_that_cannot_be_taken_back_the_next_goes_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = journal(tmp_path)
    one.write(records(1))
    items = records(3, 1)
    with monkeypatch.context() as patch:
        disk_of(patch, 500)
        patch.setattr(os, "ftruncate", _refuse)
        with pytest.raises(OSError):
            one.write(items)

    one.write(items)
    one.close()

    got = read(tmp_path)
    assert [line.at_s - AT_S for line in got.of(RequestLine)] == [0, 1, 1, 2, 3]
    assert [bool(file.torn_bytes) for file in got.log.files] == [True, False]
    assert got.endings == ["cut short", "closed"]


def _refuse(*args: object) -> None:
    raise OSError(5, "Input/output error")


def test_after_a_failed_sync_nothing_more_goes_to_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = journal(tmp_path)
    one.write(records(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _refuse)
        with pytest.raises(OSError):
            one.sync()

    one.write(records(1, 1))

    assert len(log_files(tmp_path)) == 2


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path):
    path = tmp_path / "a" / "log"
    one = journal(path)
    one.write(records(2))
    for file in path.iterdir():
        file.unlink()
    path.rmdir()

    one.write(records(1, 2))
    one.close()

    got = read(path)
    assert [line.at_s - AT_S for line in got.of(RequestLine)] == [2]
    assert got.log.files[0].first_n == 3


def test_a_file_that_was_replaced_is_not_written_through_its_old_name(tmp_path: Path):
    one = journal(tmp_path)
    one.write(records(1))
    (file,) = log_files(tmp_path)
    file.unlink()
    file.write_text("another's")

    one.write(records(1, 1))

    assert file.read_text() == "another's"
    assert len(log_files(tmp_path)) == 2


def test_ids_are_hashed_with_a_key_that_stays_in_the_folder(tmp_path: Path):
    for run in ("0000000a", "0000000b"):
        one = journal(tmp_path, run=run)
        one.write(records(2))
        one.close()
    other = journal(tmp_path / "other")
    other.write(records(1))
    other.close()

    a0, a1, b0, b1 = (line.id for line in read(tmp_path).of(RequestLine))
    (c0,) = (line.id for line in read(tmp_path / "other").of(RequestLine))

    assert (a0, a1) == (b0, b1)
    assert len({a0, a1, c0}) == 3
    assert len(a0) == 16
    assert (tmp_path / ".prodlog-key").stat().st_mode & 0o777 == 0o600


def test_a_key_that_a_power_loss_left_empty_is_made_anew(tmp_path: Path):
    (tmp_path / ".prodlog-key").write_bytes(b"")
    one = journal(tmp_path)
    one.write(records(1))

    assert len((tmp_path / ".prodlog-key").read_bytes()) == 32


def test_a_path_that_is_a_file_is_an_error_and_what_was_to_be_written_is_kept(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("mine")
    items = records(2)

    with pytest.raises(OSError):
        journal(path).write(items)

    assert len(items) == 2
    assert path.read_text() == "mine"


def test_strange_things_in_the_folder_are_left_alone(tmp_path: Path):
    strange = tmp_path / "prod-20000101T000000-0000000a-000001.jsonl"
    strange.mkdir()
    (tmp_path / "notes.jsonl").write_text("x" * 500_000)
    one = journal(tmp_path, max_bytes=200_000)

    one.write(records(2000))

    assert strange.is_dir()
    assert (tmp_path / "notes.jsonl").stat().st_size == 500_000


ON_A_SMALL_DISK = """
import sys
from collections import deque
from pathlib import Path
from tests.stages.stats.prodlog.kit import journal, read, records
from stages.stats.prodlog.lines import RequestLine
path = Path(sys.argv[1])
one = journal(path / "log", max_bytes=1 << 23, file_bytes=1 << 22)
items = records(2000)
(path / "other").write_bytes(bytes(100_000))
try:
    one.write(items)
except OSError as error:
    print(error.errno)
(path / "other").unlink()
print(len(items) == 2000, read(path / "log").num_bad)
try:
    one.write(items)
except OSError as error:
    print(error.errno)
print(0 < len(items) < 2000, read(path / "log").num_bad)
"""


def test_a_real_disk_that_fills_up_is_the_same(tmp_path: Path):
    mount = f'mount -t tmpfs -o size=512k tmpfs "$1" && exec "{sys.executable}" -c "$2" "$1"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", str(tmp_path), ON_A_SMALL_DISK]
    if subprocess.run([*command[:3], "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of its own for a test here")

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout.split("\n") == ["28", "False 0", "28", "True 0", ""], done.stderr


def test_the_names_of_files_sort_by_their_age(tmp_path: Path):
    clock = Clock()
    for second, run in ((0, "0000000b"), (1, "0000000a"), (100_000, "00000001")):
        clock.now_s = AT_S + second
        one = Journal(Folder(tmp_path, 1 << 20, 1 << 16), Run("serve", id=run), clock)
        one.write(records(1))
        one.close()

    assert [file.run for file in read_log(tmp_path, lambda line, file: None).files] == [
        "0000000b",
        "0000000a",
        "00000001",
    ]


def test_nothing_to_write_makes_no_file(tmp_path: Path):
    nothing: deque[Item] = deque()
    one = journal(tmp_path / "log")
    one.write(nothing)
    one.close()

    assert not (tmp_path / "log").exists()
