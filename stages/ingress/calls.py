"""The generation calls under way, where the record of each goes when it ends, and counts of all HTTP requests."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

from stages.logs.requests import log_request
from stages.logs.switches import LogSwitches
from stages.logs.transcript import Transcript
from stages.messages import RequestRecord
from stages.trail import Trail


def _nowhere(record: RequestRecord) -> None:
    """Drop a record nobody wants."""


@define(eq=False)
class Calls:
    """Every call from its first byte's arrival to its end; `send` must neither wait nor fail."""

    send: Callable[[RequestRecord], None] = _nowhere
    logs: LogSwitches = field(factory=LogSwitches)
    # In order of arrival.
    live: dict[Trail, None] = field(factory=dict)
    # The most there ever were at once.
    high_water: int = 0

    @contextmanager
    def recorded(self, trail: Trail, transcript: Transcript | None = None) -> Iterator[None]:
        """Keep the trail among the live ones for the block and send its record at the end, however that comes.

        A block that is left by anything but its end was cut off: its client has gone.
        """
        self.live[trail] = None
        self.high_water = max(self.high_water, len(self.live))
        is_complete = False
        try:
            yield
            is_complete = True
        finally:
            del self.live[trail]
            self._end(trail.record(trio.current_time(), is_complete), transcript)

    def refused(self, trail: Trail, error: Exception, status: int) -> None:
        """Send the record of a call that was refused before it ran."""
        trail.status = status
        trail.failed(error)
        self._end(trail.record(trio.current_time(), is_complete=True), None)

    def _end(self, record: RequestRecord, transcript: Transcript | None) -> None:
        self.send(record)
        log_request(self.logs, record, transcript)


@define(eq=False)
class HttpCounts:
    """HTTP requests since the start, and those under way, by endpoint and method; of answers also by status.

    # Invariant: an endpoint is one of the server's own paths or "other", so what clients send cannot make it grow.
    """

    requests: Counter[tuple[str, str]] = field(factory=Counter)
    active: Counter[tuple[str, str]] = field(factory=Counter)
    responses: Counter[tuple[str, str, int]] = field(factory=Counter)

    @contextmanager
    def counted(self, endpoint: str, method: str) -> Iterator[Callable[[int | None], None]]:
        """Count a request for the block, which is given what to tell the answer's status; None where none went out."""

        def answered(status: int | None) -> None:
            if status is not None:
                self.responses[endpoint, method, status] += 1

        self.requests[endpoint, method] += 1
        self.active[endpoint, method] += 1
        try:
            yield answered
        finally:
            self.active[endpoint, method] -= 1
