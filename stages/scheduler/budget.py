"""How many pages a choice needs and how many to keep for what it will still write. Core.

A choice is let in only when, besides its own tokens, a share of what it and every running choice may still generate
fits. A small share lets more in and retracts more often; 1 never retracts. The estimate looks at most
MAX_FUTURE_TOKENS ahead: a max_new_tokens of a whole context says nothing about the answer's length. The share begins
high, falls with every decode step that went well, and rises to what the running choices really used when one had to
be retracted (Pressure).
"""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from graphs.step import Capacity, Ints
from stages.messages import Submit
from stages.scheduler.choice import Choice
from stages.settings import SchedulerSettings

MAX_FUTURE_TOKENS = 4096
# A prefill row begins at a multiple of the indexer's pooling group (graphs.step).
CHUNK_ALIGN_TOKENS = 4
FIRST_SHARE, LAST_SHARE, DECAY_STEPS = 0.7, 0.14, 600
# How many more decode steps a retraction makes room for.
RETRACT_STEPS = 20


@frozen
class Budget:
    """The limits of one engine, from its settings and what its device holds."""

    page_size_tokens: int
    max_row_pages: int
    max_rows: int
    max_prefill_rows: int
    max_decode_rows: int
    chunk_tokens: int
    max_snapshots: int

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages num_tokens fill."""
        return -(-num_tokens // self.page_size_tokens)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Return whether one row of num_tokens fits when nothing else runs."""
        return self.pages_for(num_tokens) <= self.max_row_pages

    def foreseen_pages(self, num_tokens: int, num_remaining: int, share: float) -> int:
        """Return the pages a row of num_tokens needs now and, when it writes `share` of what remains, later."""
        future_tokens = math.ceil(share * min(num_remaining, MAX_FUTURE_TOKENS))
        return min(self.pages_for(num_tokens + future_tokens), self.max_row_pages)

    def foreseen_pages_of(self, num_tokens: Ints, num_remaining: Ints, share: "npt.NDArray[np.float64]") -> Ints:
        """Return foreseen_pages of each of N rows."""
        future_tokens = np.ceil(share * np.minimum(num_remaining, MAX_FUTURE_TOKENS)).astype(np.int64)
        num_pages: Ints = np.minimum(-(-(num_tokens + future_tokens) // self.page_size_tokens), self.max_row_pages)
        return num_pages


def budget_of(settings: SchedulerSettings, capacity: Capacity) -> Budget:
    """Return the limits that both `settings` and the device's `capacity` allow."""
    buckets = capacity.buckets
    chunk_tokens = min(settings.chunked_prefill_size_tokens, buckets.tokens[-1])
    max_rows = min(settings.max_running_requests, capacity.num_slots - 1)
    room = capacity.num_slots - 1 - max_rows
    return Budget(
        page_size_tokens=capacity.page_size_tokens,
        max_row_pages=min(capacity.num_pages - 1, buckets.pages[-1]),
        max_rows=max_rows,
        max_prefill_rows=min(settings.max_prefill_rows, buckets.prefill_batch[-1]),
        max_decode_rows=buckets.batch[-1],
        chunk_tokens=max(CHUNK_ALIGN_TOKENS, chunk_tokens - chunk_tokens % CHUNK_ALIGN_TOKENS),
        max_snapshots=min(settings.cache.max_snapshots, room) if settings.cache is not None else 0,
    )


@define(eq=False)
class Pressure:
    """The share of future tokens to keep room for, between its floor and 1."""

    conservativeness: float
    share: float = field(init=False)
    _floor: float = field(init=False)
    _decay: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.share = min(1.0, FIRST_SHARE * self.conservativeness)
        self._floor = LAST_SHARE * self.share
        self._decay = (self.share - self._floor) / DECAY_STEPS

    def decoded(self) -> None:
        """Note a decode step for which there was memory."""
        self.share = max(self._floor, self.share - self._decay)

    def retracted(self, running: Iterable[Choice]) -> None:
        """Take the share that the choices which still run have used, and some steps more."""
        rows = list(running)
        num_decoded = sum(len(choice.generated) for choice in rows)
        num_allowed = sum(choice.submit.max_new_tokens for choice in rows)
        self.share = min(1.0, (num_decoded + RETRACT_STEPS * len(rows)) / (num_allowed + 1))

    def share_of(self, choice: Choice) -> float:
        """Return the share for `choice`: 1 where nothing but its limit can end it."""
        return 1.0 if fills_limit(choice.submit) else self.share


def fills_limit(submit: Submit) -> bool:
    """Return whether nothing but its limit can end a choice."""
    return not (submit.stop_token_ids or submit.has_text_stops)
