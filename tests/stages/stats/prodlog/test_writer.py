"""The thread and its queue: what is lost is counted and told, a bad disk is told once, and nobody waits."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve

from stages.messages import Load, Record
from stages.stats.prodlog.journal import LoadSeen, Run
from stages.stats.prodlog.lines import EndLine, GaugesLine, LostLine, RequestLine
from stages.stats.prodlog.writer import (
    BATCH_ITEMS,
    CLOSE_S,
    GAUGES_S,
    QUEUE_ITEMS,
    RETRY_S,
    SYNC_S,
    ProdLog,
    Writer,
    open_prodlog,
    run_gauges,
)
from tests.stages.stats.prodlog.kit import AT_S, LOAD, Disk, disk_of, journal, read, record


def writer(path: Path) -> Writer:
    return Writer(journal(path, max_bytes=1 << 26, file_bytes=1 << 22))


def offer(one: Writer, count: int, first: int = 0) -> None:
    for index in range(count):
        one.offer(record(first + index))


def seconds(path: Path) -> list[float]:
    return [line.at_s - AT_S for line in read(path).of(RequestLine)]


def test_what_is_offered_is_written_in_order(tmp_path: Path):
    one = writer(tmp_path)
    offer(one, 3)
    one.offer(LoadSeen(LOAD, AT_S))
    one.turn(0.0)
    offer(one, 2, 3)
    one.close(1.0)

    assert seconds(tmp_path) == [0, 1, 2, 3, 4]
    assert [type(line).__name__ for line in read(tmp_path).lines][4] == "GaugesLine"


def test_what_finds_the_queue_full_is_counted_and_told_after_what_was_in_it(tmp_path: Path):
    one = writer(tmp_path)
    offer(one, QUEUE_ITEMS + 5)

    one.turn(0.0)
    offer(one, 1, QUEUE_ITEMS + 5)
    one.turn(1.0)
    one.close(2.0)

    got = read(tmp_path)
    assert [line.count for line in got.of(LostLine)] == [5]
    assert len(got.of(RequestLine)) == QUEUE_ITEMS + 1
    assert sum(file.num_lost for file in got.log.files) == 5


def test_a_disk_that_fails_is_told_once_and_tried_again_later_with_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    one = writer(tmp_path)
    offer(one, 1)
    one.turn(0.0)
    disk = disk_of(monkeypatch, 0)
    offer(one, 2, 1)
    assert one.turn(10.0) == 10.0 + RETRY_S
    offer(one, 2, 3)
    assert one.turn(10.0 + RETRY_S / 2) == 10.0 + RETRY_S
    num_failures = disk.num_failures
    for attempt in range(1, 4):
        one.turn(10.0 + attempt * RETRY_S)

    assert num_failures == 1
    assert disk.num_failures == 4
    assert len(caplog.records) == 1
    assert f"cannot be written: {tmp_path}: No space left on device; serving goes on" in caplog.text

    disk.room_bytes = 1e9
    one.turn(60.0)
    one.close(61.0)

    assert seconds(tmp_path) == [0, 1, 2, 3, 4]
    assert read(tmp_path).num_bad == 0
    assert [one.message for one in caplog.records[1:]] == ["the production log is written again, after 50 s"]


def test_while_a_disk_fails_what_is_held_is_bounded_and_the_rest_told_when_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = writer(tmp_path)
    disk = disk_of(monkeypatch, 0)
    count = 0
    for attempt in range(20):
        offer(one, QUEUE_ITEMS // 3, count)
        count += QUEUE_ITEMS // 3
        one.turn(attempt * RETRY_S)
    assert len(one.queue) + len(one._taken) <= QUEUE_ITEMS + BATCH_ITEMS

    disk.room_bytes = 1e9
    one.turn(1000.0)
    one.close(1001.0)

    got = read(tmp_path)
    assert len(got.of(RequestLine)) + sum(line.count for line in got.of(LostLine)) == count
    assert got.num_bad == 0


@pytest.mark.parametrize("break_it", [lambda path: path.chmod(0o500), lambda path: path.rename(path.parent / "gone")])
def test_a_folder_that_cannot_be_written_or_was_moved_does_not_stop_the_log_for_good(
    tmp_path: Path, break_it: Callable[[Path], None]
):
    path = tmp_path / "log"
    one = writer(path)
    offer(one, 1)
    one.turn(0.0)
    break_it(path)
    offer(one, 1, 1)
    one.turn(10.0)
    path.chmod(0o700)
    offer(one, 1, 2)
    one.turn(20.0)
    one.close(21.0)

    assert seconds(path)[-2:] == [1, 2]


def test_a_file_in_place_of_the_folder_is_told_once_and_gets_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "log"
    path.write_text("mine")
    one = writer(path)
    offer(one, 2)
    one.turn(0.0)
    one.turn(RETRY_S)
    one.close(2 * RETRY_S)

    assert path.read_text() == "mine"
    assert [one.message.partition(":")[0] for one in caplog.records] == [
        "the production log cannot be written",
        "the production log ends without its last 2 lines",
    ]


def test_written_lines_last_through_a_power_loss_after_so_many_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[float] = []
    now_s = 100.0
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(now_s))
    one = writer(tmp_path)
    offer(one, 1)
    assert one.turn(now_s) is None  # the first at once
    for now_s in (101.0, 102.0):
        offer(one, 1)
        assert one.turn(now_s) == 100.0 + SYNC_S
    now_s = 105.0
    assert one.turn(now_s) is None  # nothing new came, and there is nothing more to do

    assert synced == [100.0, 105.0]


def test_a_sync_that_fails_is_told_and_the_next_line_goes_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    one = writer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _refuse)
        offer(one, 1)
        one.turn(100.0)
    offer(one, 1, 1)
    one.turn(100.0 + RETRY_S)
    one.close(200.0)

    assert seconds(tmp_path) == [0, 1]
    assert len(read(tmp_path).log.files) == 2
    assert "cannot be written" in caplog.text


def _refuse(descriptor: int) -> None:
    raise OSError(5, "Input/output error")


# --- the thread -------------------------------------------------------------------------------------------------------


def test_the_thread_writes_what_comes_and_at_the_end_all_there_is(tmp_path: Path):
    one = open_prodlog(tmp_path, 1 << 20, Run("serve"))
    one.start()
    for number in range(100):
        one.tap(record(number))
    one.tap(Record("prompt_tokens", 3))  # no call
    one.tap(LOAD)  # gauges have their own pace
    one.gauges(LOAD)
    one.close()

    got = read(tmp_path)
    assert seconds(tmp_path) == list(range(100))
    assert [line.running for line in got.of(GaugesLine)] == [1]
    assert [line.is_last for line in got.of(EndLine)] == [True]
    assert got.endings == ["closed"]


def test_lines_are_in_the_file_soon_without_an_end(tmp_path: Path):
    one = open_prodlog(tmp_path, 1 << 20, Run("serve"))
    one.start()
    for number in range(3):
        one.tap(record(number))
        for _ in range(2000):
            if tmp_path.exists() and any(tmp_path.glob("*.jsonl")) and len(seconds(tmp_path)) > number:
                break
            threading.Event().wait(0.005)
        assert seconds(tmp_path) == list(range(number + 1))
    assert read(tmp_path).endings == ["open"]
    one.close()


def test_a_disk_that_does_not_answer_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    hangs, answers = threading.Event(), threading.Event()
    write = os.write

    def hang(descriptor: int, data: bytes) -> int:
        hangs.set()
        answers.wait()
        return write(descriptor, data)

    monkeypatch.setattr("stages.stats.prodlog.writer.CLOSE_S", CLOSE_S / 30)
    monkeypatch.setattr(os, "write", hang)
    one = open_prodlog(tmp_path, 1 << 20, Run("serve"))
    one.start()
    one.tap(record(0))
    hangs.wait()
    for number in range(QUEUE_ITEMS + 10):
        one.tap(record(number))
    assert one.writer.num_lost > 0

    one.close()

    assert "the production log's disk does not answer" in caplog.text
    answers.set()
    assert one._thread is not None
    one._thread.join()


def test_a_fault_in_the_writer_is_logged_and_what_comes_after_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(Writer, "turn", _broken)
    one = open_prodlog(tmp_path, 1 << 20, Run("serve"))
    one.start()
    one.tap(record(0))
    assert one._thread is not None
    one._thread.join()
    for number in range(QUEUE_ITEMS):
        one.tap(record(number))
    one.close()

    assert one.writer.num_lost == 1
    assert "the production log failed; serving goes on without it" in caplog.text


def _broken(self: Writer, now_s: float) -> float | None:
    raise RuntimeError("broken by the test")


def test_files_are_a_sixteenth_of_the_bound_within_reason(tmp_path: Path):
    sizes = [
        open_prodlog(tmp_path, mebibytes << 20, Run("serve")).writer.journal.folder.file_bytes
        for mebibytes in (1, 160, 1 << 20)
    ]

    assert sizes == [1 << 16, 10 << 20, 64 << 20]


# --- gauges, in virtual time ------------------------------------------------------------------------------------------


async def test_gauges_are_logged_every_few_seconds_in_which_they_have_changed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
):
    began_s = trio.current_time()
    one = ProdLog(writer(tmp_path), lambda: AT_S + trio.current_time() - began_s)

    def load() -> Load:
        second = trio.current_time() - began_s
        return evolve(LOAD, running=0 if second < 2 * GAUGES_S else 5, waiting=int(second > 4 * GAUGES_S))

    with trio.move_on_after(4.5 * GAUGES_S):
        await run_gauges(load, lambda: 0, one)
    one.writer.close(0.0)

    lines = read(tmp_path).of(GaugesLine)
    told = [(line.at_s - AT_S, line.running, line.waiting) for line in lines]
    assert told == [(0, 0, 0), (2 * GAUGES_S, 5, 0), (4.5 * GAUGES_S, 5, 1)]


async def test_what_the_stats_stage_has_lost_is_told_once(tmp_path: Path, autojump_clock: trio.testing.MockClock):
    one = ProdLog(writer(tmp_path))
    counts = iter((0, 3, 3, 10, 10))

    with trio.move_on_after(3.5 * GAUGES_S):
        await run_gauges(lambda: None, lambda: next(counts), one)
    one.writer.close(0.0)

    got = read(tmp_path)
    assert [(line.count, line.reason) for line in got.of(LostLine)] == [(3, "stats"), (7, "stats")]
    assert got.of(GaugesLine) == []


def test_a_line_of_losses_that_was_not_written_is_told_by_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    one = writer(tmp_path)
    offer(one, 1)
    one.turn(0.0)
    disk: Disk = disk_of(monkeypatch, 1e9)
    one.num_lost = 7
    disk.room_bytes = 0
    one.turn(10.0)
    one.close(20.0)

    assert "the production log ends without its last 7 lines" in caplog.text
