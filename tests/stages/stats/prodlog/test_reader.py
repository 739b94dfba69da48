"""Reading: whatever became of a file, no more than its torn last line is missing, and what is missing is told."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import ConfigError
from stages.stats.prodlog.folder import log_files
from stages.stats.prodlog.lines import Header, LostLine, RequestLine, encode
from tests.stages.stats.prodlog.kit import AT_S, journal, read, records

WHOLE = 10


def log_of(path: Path, count: int = WHOLE) -> Path:
    """One closed file of so many requests; its path."""
    one = journal(path)
    one.write(records(count))
    one.close()
    (file,) = log_files(path)
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return log_of(tmp_path_factory.mktemp("whole")).read_bytes()


def is_no_end(garbage: bytes) -> bool:
    """What no torn line would be whole with."""
    return not garbage or (not set(b"\n}") & set(garbage) and bool(garbage.strip()))


@given(share=st.floats(0, 1), garbage=st.binary(max_size=40).filter(is_no_end))
def test_a_file_cut_anywhere_has_every_line_before_the_cut_and_says_what_was_torn(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, share: float, garbage: bytes
):
    path = tmp_path_factory.mktemp("log")
    cut = int(share * len(whole))
    data = whole[:cut] + garbage
    (path / "prod-20231114T221320-0000000a-000001.jsonl").write_bytes(data)

    got = read(path)

    lines, last = whole[:cut].count(b"\n"), data.rpartition(b"\n")[2]
    (file,) = got.log.files
    is_whole = last.rstrip(b" \t\r") in {line for line in whole.split(b"\n") if line}
    assert file.num_lines == lines + is_whole
    assert file.torn_bytes == (0 if is_whole else len(last))
    assert [line.at_s - AT_S for line in got.of(RequestLine)] == list(range(max(0, min(WHOLE, file.num_lines - 1))))
    assert file.ending == ("closed" if file.num_lines == WHOLE + 2 else "cut short")
    assert (file.num_unreadable, file.num_missing) == (0, 0)


@given(data=st.data())
def test_bytes_spoiled_in_the_middle_cost_the_lines_they_are_in_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
):
    path = tmp_path_factory.mktemp("log")
    lines = whole.split(b"\n")[:-1]
    spoiled = data.draw(st.sets(st.integers(1, len(lines) - 2)))
    for index in spoiled:
        lines[index] = b"\0" * len(lines[index])
    (path / "prod-20231114T221320-0000000a-000001.jsonl").write_bytes(b"\n".join([*lines, b""]))

    got = read(path)

    (file,) = got.log.files
    assert file.num_unreadable == len(spoiled)
    assert len(got.of(RequestLine)) == WHOLE - len(spoiled)
    # Numbers show the gap too, but for spoiled lines at the beginning, whose numbers nobody has seen.
    first = next(index for index in range(1, len(lines)) if index not in spoiled)
    assert file.num_missing == len([index for index in spoiled if index > first])


def test_a_file_that_is_gone_leaves_a_gap_unless_it_was_the_oldest(tmp_path: Path):
    one = journal(tmp_path)
    one.write(records(600))
    one.close()
    files = list(log_files(tmp_path))
    assert len(files) >= 4

    files[0].unlink()
    assert read(tmp_path).log.num_missing_between == 0
    gone = read(files[2]).log.files[0]
    files[2].unlink()

    assert gone.last_n is not None
    assert gone.first_n is not None
    assert read(tmp_path).log.num_missing_between == gone.last_n - gone.first_n + 1


def test_two_runs_that_write_side_by_side_have_no_gaps_between_them(tmp_path: Path):
    one, two = journal(tmp_path), journal(tmp_path, run="0000000b")
    for batch in range(6):
        one.write(records(100, 100 * batch))
        two.write(records(100, 100 * batch))
    one.close()
    two.close()

    got = read(tmp_path)

    assert got.num_bad == 0
    assert sorted(line.at_s - AT_S for line in got.of(RequestLine)) == sorted([*range(600), *range(600)])


def test_a_newer_version_is_read_as_far_as_it_is_known(tmp_path: Path):
    header = encode(Header(schema=9, run="0000000c")).replace(b'"schema"', b'"colour":"blue","schema"')
    lines = [header, encode(RequestLine(status=200), 1).replace(b"{", b'{"hue":[1],', 1), b'{"kind":"spans","n":2}\n']
    (tmp_path / "prod-20231114T221320-0000000c-000001.jsonl").write_bytes(b"".join(lines))

    got = read(tmp_path)

    (file,) = got.log.files
    assert file.is_newer
    assert file.num_unknown == 1
    assert got.num_bad == 0
    assert got.of(RequestLine) == [RequestLine(status=200)]


def test_what_was_lost_is_added_up(tmp_path: Path):
    one = journal(tmp_path)
    items = records(2)
    items.insert(1, LostLine(at_s=AT_S, count=3))
    items.append(LostLine(at_s=AT_S, count=4))
    one.write(items)
    one.close()

    assert [file.num_lost for file in read(tmp_path).log.files] == [7]


def test_an_empty_file_and_one_without_its_header_are_told(tmp_path: Path):
    (tmp_path / "prod-20231114T221320-0000000a-000001.jsonl").write_bytes(b"")
    (tmp_path / "prod-20231114T221320-0000000b-000001.jsonl").write_bytes(encode(RequestLine(status=200), 5))

    got = read(tmp_path)

    assert [(file.header, file.num_lines, file.run) for file in got.log.files] == [
        (None, 0, "prod-20231114T221320-0000000a"),
        (None, 1, "prod-20231114T221320-0000000b"),
    ]
    assert len(got.of(RequestLine)) == 1


def test_one_file_can_be_read_alone(tmp_path: Path):
    file = log_of(tmp_path)

    assert read(file).lines == read(tmp_path).lines


def test_what_is_no_log_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(ConfigError, match=f"{tmp_path} has no files of a production log"):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read .*nothing: No such file"):
        read(tmp_path / "nothing")


def test_a_pipe_with_a_files_name_is_not_waited_for(tmp_path: Path):
    log_of(tmp_path)
    os.mkfifo(tmp_path / "prod-20231114T221321-0000000a-000002.jsonl")

    assert len(read(tmp_path).log.files) == 1
