"""Rows in, the arrays of one step out. Core."""

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from graphs.keys import Buckets, Family
from graphs.step import StepInput
from stages.scheduler.choice import Choice
from stages.scheduler.slots import SlotTable


@frozen(eq=False)
class Row:
    """One choice's share of a step: num_valid tokens from position `start`."""

    choice: Choice
    start: int
    num_valid: int

    @property
    def samples(self) -> bool:
        """Return whether the token sampled after this row is the choice's next one, not a chunk's by-product."""
        # Past the known tokens while the one this row reads is still in flight.
        return self.start + self.num_valid >= self.choice.num_tokens


def decode_row(choice: Choice) -> Row:
    """Return the row that reads the choice's newest token, which may still be in flight."""
    return Row(choice, choice.num_tokens - 1 + choice.num_flights, 1)


def prefill_row(choice: Choice, chunk_tokens: int) -> Row:
    """Return the row of the choice's next chunk; where chunks end depends on this choice alone."""
    return Row(choice, choice.num_computed, min(chunk_tokens, choice.num_tokens - choice.num_computed))


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
    return StepInput(key, tokens, start, num_valid, slots, table.page_table(slots, key.pages), table.sampling(slots))
