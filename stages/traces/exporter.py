"""Sends the spans of calls that have ended, from a thread of its own: serving never waits for a collector.

Records wait in a bounded queue; what finds no room, or does not reach the collector, is lost and counted. The log says
once that traces do not arrive, and once that they do again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from attrs import define, field

from stages.messages import RequestRecord

MAX_WAITING: Final = 4096
# Calls that go out together, and how long the first of them waits for others.
BATCH: Final = 256
BATCH_WAIT_S: Final = 1.0
# How long the end of the process waits for a collector that does not answer.
CLOSE_WITHIN_S: Final = 3.0

# Sends what calls left behind, giving whether it arrived.
Send = Callable[[Sequence[RequestRecord]], bool]

log = logging.getLogger("trnrt.traces")


@define(eq=False)
class TraceExporter:
    """A bounded queue of records and its thread; `close` ends what `send` waits for, where that takes long."""

    send: Send
    stop_sending: Callable[[], None]
    where: str
    max_waiting: int = MAX_WAITING
    batch_wait_s: float = BATCH_WAIT_S
    num_sent: int = 0
    # There was no room; they did not arrive. Changed by the loop alone and by the thread alone.
    _num_dropped: int = 0
    _num_failed: int = 0
    _queue: "SimpleQueue[RequestRecord | None]" = field(factory=SimpleQueue)
    _thread: Thread | None = None
    _is_failing: bool = False

    @property
    def num_lost(self) -> int:
        """Return how many calls' spans were lost."""
        return self._num_dropped + self._num_failed

    def start(self) -> None:
        """Begin to send."""
        self._thread = Thread(target=self._run, name="trace exporter", daemon=True)
        self._thread.start()

    def offer(self, record: RequestRecord) -> None:
        """Have a call's spans sent, if its trace is recorded; neither waits nor raises."""
        if record.trace is None or not record.trace.is_sampled:
            return
        if self._queue.qsize() >= self.max_waiting:
            self._num_dropped += 1
        else:
            self._queue.put(record)

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Send what waits, giving up after within_s."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(within_s)
        self.stop_sending()
        if self.num_lost:
            log.warning("the traces of %d of %d requests were lost", self.num_lost, self.num_lost + self.num_sent)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            first = self._queue.get()
            records = [] if first is None else [first]
            is_over = first is None or self._collect(records)
            if records:
                self._send(records)

    def _collect(self, records: list[RequestRecord]) -> bool:
        """Add what comes soon, giving whether the end has come."""
        ends_s = time.monotonic() + self.batch_wait_s
        with suppress(Empty):
            while len(records) < BATCH:
                record = self._queue.get(timeout=max(0.0, ends_s - time.monotonic()))
                if record is None:
                    return True
                records.append(record)
        return False

    def _send(self, records: Sequence[RequestRecord]) -> None:
        try:
            is_sent = self.send(records)
        except Exception:  # a library's fault must not end the thread, and with it all later traces
            log.exception("traces could not be made")
            is_sent = False
        if is_sent:
            self.num_sent += len(records)
        else:
            self._num_failed += len(records)
        if is_sent == self._is_failing:
            self._is_failing = not is_sent
            if is_sent:
                log.info("traces arrive at %s again; those of %d requests were lost", self.where, self.num_lost)
            else:
                log.warning("traces do not arrive at %s; they are lost until they do", self.where)
