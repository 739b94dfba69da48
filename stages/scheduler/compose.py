"""Rows in, the arrays of one step out. Core."""

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from graphs.keys import Buckets, Family
from graphs.step import NO_COPIES, Copies, StepInput, pairs
from stages.scheduler.choice import Capture, Choice
from stages.scheduler.slots import SlotTable

Pair = tuple[int, int]


@frozen(eq=False)
class Row:
    """One choice's share of a step: num_valid tokens from position `start`, and what is copied for it.

    page_copies and slot_copies are made before the row runs, captures while it runs.
    """

    choice: Choice
    start: int
    num_valid: int
    page_copies: tuple[Pair, ...] = ()
    slot_copies: tuple[Pair, ...] = ()
    captures: tuple[Capture, ...] = ()

    @property
    def samples(self) -> bool:
        """Return whether the token sampled after this row is the choice's next one, not a chunk's by-product."""
        # Past the known tokens while the one this row reads is still in flight.
        return self.start + self.num_valid >= self.choice.num_tokens


def variant_of(rows: Sequence[Row]) -> str:
    """Return the variant that serves every row that samples: greedy or sample, _logprobs when one wants them."""
    submits = [row.choice.submit for row in rows if row.samples]
    base = "sample" if any(submit.sampling.temperature > 0 for submit in submits) else "greedy"
    return f"{base}_logprobs" if any(submit.num_top_logprobs > 0 for submit in submits) else base


def compose(
    family: Family, rows: Sequence[Row], table: SlotTable, buckets: Buckets, page_size_tokens: int
) -> StepInput:
    """Return the step of `rows`, padded to its bucket with rows on slot 0 and page 0."""
    ends = [row.start + row.num_valid for row in rows]
    key = buckets.pick(
        family, len(rows), max(row.num_valid for row in rows), -(-max(ends) // page_size_tokens), variant_of(rows)
    )
    slots = np.zeros(key.batch, np.int64)
    start = np.zeros(key.batch, np.int64)
    num_valid = np.zeros(key.batch, np.int64)
    tokens = np.zeros((key.batch, key.tokens), np.int64)
    slots[: len(rows)] = [row.choice.slot for row in rows]
    start[: len(rows)] = [row.start for row in rows]
    num_valid[: len(rows)] = [row.num_valid for row in rows]
    if family == "prefill":
        for index, row in enumerate(rows):
            tokens[index, : row.num_valid] = row.choice.token_ids(row.start, ends[index])
    table_rows = table.page_table(slots, key.pages)
    copies = _copies(rows, page_size_tokens)
    return StepInput(key, tokens, start, num_valid, slots, table_rows, table.sampling(slots), copies)


def _copies(rows: Sequence[Row], page_size_tokens: int) -> Copies:
    page_copies = [pair for row in rows for pair in row.page_copies]
    slot_copies = [pair for row in rows for pair in row.slot_copies]
    captures = [
        (index, capture.position - row.start, capture.slot)
        for index, row in enumerate(rows)
        for capture in row.captures
    ]
    saves = [
        (row.choice.pages[capture.position // page_size_tokens], capture.tail_page)
        for row in rows
        for capture in row.captures
        if capture.tail_page is not None
    ]
    if not (page_copies or slot_copies or captures):
        return NO_COPIES
    return Copies(pairs(page_copies), pairs(slot_copies), pairs(captures, 3), pairs(saves))
