"""The exporter's thread: nobody waits for a collector, what is lost is counted, and said once."""

import logging
import threading
import time
from collections.abc import Callable

import pytest
from attrs import evolve

from stages.traces.exporter import TraceExporter
from tests.records import TRACE, record_of


class Collector:
    """Keeps what arrives; away while `is_up` is not set, slow while `answers` is not."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.is_up = True
        self.answers = threading.Event()
        self.answers.set()
        self.is_asked = threading.Event()

    def send(self, records) -> bool:
        self.is_asked.set()
        self.answers.wait()
        if self.is_up:
            self.batches.append([record.request_id for record in records])
        return self.is_up

    @property
    def ids(self) -> list[str]:
        return [name for batch in self.batches for name in batch]


def started(collector: Collector, **bounds) -> TraceExporter:
    exporter = TraceExporter(collector.send, collector.answers.set, "http://collector", **bounds)
    exporter.start()
    return exporter


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_calls_go_out_together_and_at_the_end_at_once():
    collector = Collector()
    exporter = started(collector, batch_wait_s=600)
    for number in range(300):
        exporter.offer(record_of(request_id=str(number)))
    eventually(lambda: bool(collector.batches))
    assert [len(batch) for batch in collector.batches] == [256]
    exporter.close(within_s=30)
    assert (collector.ids, exporter.num_sent, exporter.num_lost) == ([str(n) for n in range(300)], 300, 0)
    assert "trace exporter" not in {thread.name for thread in threading.enumerate()}


def test_a_call_waits_for_others_no_longer_than_it_may():
    collector = Collector()
    exporter = started(collector, batch_wait_s=0.01)
    exporter.offer(record_of(request_id="a"))
    eventually(lambda: collector.ids == ["a"])
    exporter.close()


@pytest.mark.parametrize("trace", [None, evolve(TRACE, is_sampled=False)])
def test_what_is_not_recorded_is_not_sent(trace):
    collector = Collector()
    exporter = started(collector)
    exporter.offer(record_of(trace=trace))
    exporter.close()
    assert (collector.batches, exporter.num_sent, exporter.num_lost) == ([], 0, 0)


def test_a_collector_that_does_not_answer_keeps_nobody_waiting_and_its_losses_are_counted(caplog):
    collector = Collector()
    collector.answers.clear()
    exporter = started(collector, max_waiting=10, batch_wait_s=0.0)
    exporter.offer(record_of(request_id="stuck"))
    assert collector.is_asked.wait(10)
    for _ in range(25):
        exporter.offer(record_of())
    assert exporter.num_lost == 15
    collector.answers.set()
    exporter.close()
    assert (exporter.num_sent, exporter.num_lost) == (11, 15)
    assert caplog.messages[-1] == "the traces of 15 of 26 requests were lost"


def test_the_end_waits_no_longer_than_it_may():
    collector = Collector()
    collector.answers.clear()
    exporter = started(collector, batch_wait_s=0.0)
    exporter.offer(record_of())
    assert collector.is_asked.wait(10)
    exporter.close(within_s=0.05)
    assert collector.answers.is_set(), "what it waits for is ended"


def test_that_traces_do_not_arrive_is_said_once_and_so_is_that_they_do_again(caplog):
    caplog.set_level(logging.INFO)
    collector = Collector()
    exporter = started(collector, batch_wait_s=0.0)
    collector.is_up = False
    for number in range(1, 4):
        exporter.offer(record_of())
        eventually(lambda: exporter.num_lost == number)  # noqa: B023
    collector.is_up = True
    for number in range(1, 4):
        exporter.offer(record_of())
        eventually(lambda: exporter.num_sent == number)  # noqa: B023
    exporter.close()
    assert caplog.messages == [
        "traces do not arrive at http://collector; they are lost until they do",
        "traces arrive at http://collector again; those of 3 requests were lost",
        "the traces of 3 of 6 requests were lost",
    ]


def test_a_fault_of_the_library_costs_its_batch_alone(caplog):
    sent = []

    def send(records) -> bool:
        if records[0].request_id == "bad":
            raise RuntimeError("inside the library")
        sent.append(records[0].request_id)
        return True

    exporter = TraceExporter(send, lambda: None, "http://collector", batch_wait_s=0.0)
    exporter.start()
    exporter.offer(record_of(request_id="bad"))
    eventually(lambda: exporter.num_lost == 1)
    exporter.offer(record_of(request_id="good"))
    exporter.close()
    assert sent == ["good"]
    assert "inside the library" in caplog.text
