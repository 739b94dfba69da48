"""The writer's thread: nobody waits for it, losses are bounded and counted, the end flushes."""

import gc
import json
import os
import threading
import time

import pytest

from stages.logs.lines import Entry
from stages.logs.writer import LineWriter, to_descriptor


def entry(message: str) -> Entry:
    return Entry(0.0, "INFO", "trnrt", message)


class Sink:
    """Keeps what is written; blocks while it is stalled, raises while it is broken."""

    def __init__(self) -> None:
        self.data = b""
        self.is_broken = False
        self.is_stalled = threading.Event()
        self.flows = threading.Event()
        self.flows.set()

    def write(self, data: bytes) -> None:
        if not self.flows.is_set():
            self.is_stalled.set()
        self.flows.wait()
        if self.is_broken:
            raise BrokenPipeError
        self.data += data

    @property
    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.data.splitlines()]


@pytest.fixture
def sink():
    return Sink()


def started(sink: Sink, **bounds) -> LineWriter:
    writer = LineWriter(sink.write, "json", **bounds)
    writer.start()
    return writer


def stalled(sink: Sink, **bounds) -> LineWriter:
    """A writer whose thread is stuck with one line in hand."""
    writer = started(sink, **bounds)
    sink.flows.clear()
    writer.put(entry("stuck"))
    assert sink.is_stalled.wait(10)
    return writer


def test_lines_come_in_the_order_they_were_said_and_all_of_them_before_the_end(sink):
    writer = started(sink)
    for number in range(1000):
        writer.put(entry(str(number)))
    assert writer.close()
    assert sink.messages == [str(number) for number in range(1000)]


def test_a_stalled_log_keeps_nobody_waiting_and_what_it_lost_is_counted_and_told(sink):
    writer = stalled(sink, max_entries=10)
    for number in range(25):
        writer.put(entry(str(number)))
    assert writer.num_lost == 15
    sink.flows.set()
    assert writer.close()
    assert sink.messages[:11] == ["stuck", *map(str, range(10))]
    assert sink.messages[11:] == ["15 log lines were lost: they came faster than the log could be written"]


def test_what_waits_is_bounded_in_bytes_too(sink):
    writer = stalled(sink, max_bytes=10_000)
    for _ in range(3):
        writer.put(entry("x" * 4000))
    assert writer.num_lost == 1
    sink.flows.set()
    assert writer.close()
    assert sum(message.startswith("xxx") for message in sink.messages) == 2


def test_room_comes_back_with_what_was_written(sink):
    writer = started(sink, max_bytes=10_000)
    for number in range(20):
        writer.put(entry("x" * 6000))
        deadline_s = time.monotonic() + 10
        while len(sink.messages) <= number and time.monotonic() < deadline_s:
            time.sleep(0.001)
    assert (writer.num_lost, len(sink.messages)) == (0, 20)
    writer.close()


def test_a_reader_that_has_gone_costs_lines_and_nothing_else(sink):
    writer = started(sink)
    sink.is_broken = True
    writer.put(entry("lost"))
    deadline_s = time.monotonic() + 10
    while not writer.num_lost and time.monotonic() < deadline_s:
        time.sleep(0.001)
    sink.is_broken = False
    writer.put(entry("kept"))
    assert writer.close()
    assert sink.messages == ["kept", "1 log lines were lost: they came faster than the log could be written"]


def test_the_end_does_not_wait_for_a_log_that_nobody_reads(sink):
    writer = stalled(sink)
    assert not writer.close(within_s=0.05)
    writer.put(entry("late"))  # nor does anybody else
    sink.flows.set()


def test_after_the_end_a_line_is_written_where_it_is_said(sink):
    writer = started(sink)
    assert writer.close()
    writer.put(entry("last words"))
    assert sink.messages == ["last words"]


def test_an_entry_that_cannot_be_spelled_is_lost_alone(sink):
    class Unspeakable:
        def __str__(self) -> str:
            raise RuntimeError

    writer = started(sink)
    writer.put(Entry(0.0, "INFO", "trnrt", "bad", fields={"value": Unspeakable()}))
    writer.put(entry("good"))
    assert writer.close()
    assert (sink.messages[0], writer.num_lost) == ("good", 1)


def test_a_destructor_may_log_while_its_thread_is_logging(sink):
    writer = started(sink)

    class Talker:
        def __del__(self) -> None:
            writer.put(entry("gone"))

    writer._saying.acquire()  # as in the middle of a put
    Talker()
    gc.collect()
    writer._saying.release()
    assert writer.close()
    assert sink.messages == ["gone"]


def test_a_pipe_that_takes_nothing_now_is_waited_for():
    reader, end = os.pipe()
    os.set_blocking(end, False)
    data = b"x" * 200_000  # more than a pipe holds
    thread = threading.Thread(target=to_descriptor(end), args=(data,))
    thread.start()
    got = b""
    while len(got) < len(data):
        got += os.read(reader, 65536)
    thread.join()
    os.close(reader)
    os.close(end)
    assert got == data


def test_lines_of_several_processes_do_not_mix_on_one_pipe():
    reader, end = os.pipe()
    writers = [LineWriter(to_descriptor(end), "json") for _ in range(3)]
    for number in range(700):
        for name, writer in zip("abc", writers, strict=True):
            writer.put(entry(name * (number % 1000)))
    got = []

    def read() -> None:
        while piece := os.read(reader, 65536):
            got.append(piece)

    thread = threading.Thread(target=read)
    thread.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        assert writer.close(within_s=30)
    os.close(end)
    thread.join()
    os.close(reader)
    messages = [json.loads(line)["message"] for line in b"".join(got).splitlines()]
    assert len(messages) == 2100
    assert all(len(set(message)) <= 1 for message in messages)
