"""How many pages a choice needs and how many to keep for what it will still write. Core.

A choice is let in only when, besides its own tokens, a share (`new_token_reserve`) of what it and every running
choice may still generate fits. A small share lets more in and retracts more often; 1 never retracts. The estimate
looks at most MAX_FUTURE_TOKENS ahead: a max_new_tokens of a whole context says nothing about the answer's length.
"""

import math

from attrs import frozen

from graphs.step import Capacity
from stages.settings import SchedulerSettings

MAX_FUTURE_TOKENS = 4096
# A prefill row begins at a multiple of the indexer's pooling group (graphs.step).
CHUNK_ALIGN_TOKENS = 4


@frozen
class Budget:
    """The limits of one engine, from its settings and what its device holds."""

    page_size_tokens: int
    max_row_pages: int
    max_rows: int
    max_prefill_rows: int
    max_decode_rows: int
    chunk_tokens: int
    reserve: float

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages num_tokens fill."""
        return -(-num_tokens // self.page_size_tokens)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Return whether one row of num_tokens fits when nothing else runs."""
        return self.pages_for(num_tokens) <= self.max_row_pages

    def foreseen_pages(self, num_tokens: int, num_remaining: int) -> int:
        """Return the pages a row of num_tokens needs now and, by the reserve, later."""
        future_tokens = math.ceil(self.reserve * min(num_remaining, MAX_FUTURE_TOKENS))
        return min(self.pages_for(num_tokens + future_tokens), self.max_row_pages)


def budget_of(settings: SchedulerSettings, capacity: Capacity) -> Budget:
    """Return the limits that both `settings` and the device's `capacity` allow."""
    buckets = capacity.buckets
    chunk_tokens = min(settings.chunked_prefill_size_tokens, buckets.tokens[-1])
    return Budget(
        page_size_tokens=capacity.page_size_tokens,
        max_row_pages=min(capacity.num_pages - 1, buckets.pages[-1]),
        max_rows=min(settings.max_running_requests, capacity.num_slots - 1),
        max_prefill_rows=min(settings.max_prefill_rows, buckets.prefill_batch[-1]),
        max_decode_rows=buckets.batch[-1],
        chunk_tokens=max(CHUNK_ALIGN_TOKENS, chunk_tokens - chunk_tokens % CHUNK_ALIGN_TOKENS),
        reserve=settings.new_token_reserve,
    )
