"""/v1/stats, once or as a stream of one snapshot a second, and /metrics."""

import math
import re
from functools import partial
from typing import TYPE_CHECKING

import attrs
import orjson
import trio
from attrs import define, field

from stages.errors import InvalidRequest
from stages.ingress.aside import Aside
from stages.ingress.wire import SSE_HEADERS, Wire
from stages.stats.exposition import is_openmetrics, scrape
from stages.stats.stage import Stats
from stages.stats.statistics import Statistics

if TYPE_CHECKING:
    from stages.ingress.respond import Serving

PERIOD_S = 1.0
# Scrapes within this time get one text: it takes some 10 ms to write, and there are gateways that ask 20 times a
# second.
SHARED_S = 0.25
# What a browser waits before it connects again, where the server ends the stream.
RETRY = b"retry: 2000\n\n"
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


def encoded(statistics: Statistics) -> bytes:
    """Return the statistics as JSON."""
    return orjson.dumps(statistics, default=_fields)


@define(eq=False)
class StatsFeed:
    """Snapshots of whole periods of trio's clock, made once for whoever listens."""

    stats: Stats
    _number: float = -math.inf
    _frame: bytes = b""

    def frame(self, now_s: float) -> bytes:
        """Return the event of the period that now_s is in."""
        number = now_s // PERIOD_S
        if number != self._number:
            self._number = number
            self._frame = b"data: " + encoded(self.stats.statistics(now_s)) + b"\n\n"
        return self._frame

    async def answer(self, serving: "Serving", limit: float, wire: Wire) -> None:
        """Send a snapshot at once and one a period, `limit` in all, or until the server stops or the client leaves.

        A client that reads too slowly misses some.
        """
        await wire.start(200, SSE_HEADERS, RETRY + self.frame(trio.current_time()))
        while (limit := limit - 1) > 0 and not serving.stopping.is_set():
            next_s = (trio.current_time() // PERIOD_S + 1) * PERIOD_S
            with trio.move_on_at(next_s):
                await serving.stopping.wait()
            await wire.write(self.frame(max(trio.current_time(), next_s)))
        await wire.end()


@define(eq=False)
class MetricsFeed:
    """Texts of /metrics, made once for all who ask within SHARED_S."""

    stats: Stats
    aside: Aside
    _lock: trio.Lock = field(factory=trio.Lock)
    _made_s: float = -math.inf
    # By whether it is OpenMetrics' format: the text and its content type.
    _texts: dict[bool, tuple[bytes, str]] = field(factory=dict)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the text in a format that is accepted, and its content type."""
        is_open = is_openmetrics(accept)
        async with self._lock:
            now_s = trio.current_time()
            if now_s - self._made_s >= SHARED_S:
                self._texts.clear()
                self._made_s = now_s
            if is_open not in self._texts:
                # To write it takes ten times as long as to read it off, which would keep tokens waiting.
                self._texts[is_open] = await self.aside.write(partial(scrape(self.stats, now_s).text, is_open))
            return self._texts[is_open]


def read_limit(raw: str | None) -> float:
    """Return how many snapshots a stream has at most, all there are when nothing is said; raises InvalidRequest."""
    if raw is None:
        return math.inf
    if not _NUMBER.fullmatch(raw):
        raise InvalidRequest(f"limit must be a whole number above 0, not {raw!r:.80}", "limit")
    return int(raw)


def _fields(value: object) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}  # type: ignore[arg-type]
