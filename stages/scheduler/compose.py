"""Rows in, the arrays of one step out. Core."""

from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np
from attrs import field, frozen

from graphs.keys import Buckets, Family, GraphKey
from graphs.step import NO_COPIES, Copies, Ints, StepInput, pairs
from stages.scheduler.choice import Capture, Choice
from stages.scheduler.progress import Flags
from stages.scheduler.slots import SlotTable, variant_name

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


@frozen(eq=False)
class DecodeRows:
    """A step's rows that each read one token: the choices, their slots[N], their start[N] and slot copies [M, 2]."""

    choices: Sequence[Choice]
    slots: Ints
    start: Ints = field(factory=lambda: np.empty(0, np.int64))
    slot_copies: Ints = field(factory=pairs)

    def __len__(self) -> int:
        return len(self.choices)

    def __iter__(self) -> Iterator[Row]:
        return (Row(choice, position, 1) for choice, position in zip(self.choices, self.start.tolist(), strict=True))

    def where(self, mask: Flags) -> "DecodeRows":
        """Return the rows that mask[N] names, without starts or copies."""
        return self if mask.all() else DecodeRows(tuple(compress(self.choices, mask.tolist())), self.slots[mask])


def variant_of(rows: Sequence[Row]) -> str:
    """Return the variant that serves every row that samples: greedy or sample, _logprobs when one wants them."""
    submits = [row.choice.submit for row in rows if row.samples]
    return variant_name(
        any(submit.sampling.temperature > 0 for submit in submits),
        any(submit.num_top_logprobs > 0 for submit in submits),
    )


def compose(
    family: Family, rows: Sequence[Row] | DecodeRows, table: SlotTable, buckets: Buckets, page_size_tokens: int
) -> StepInput:
    """Return the step of `rows`, padded to its bucket with rows on slot 0 and page 0."""
    if isinstance(rows, DecodeRows):
        return _compose_decode(rows, table, buckets, page_size_tokens)
    slots = np.array([row.choice.slot for row in rows], np.int64)
    start = np.array([row.start for row in rows], np.int64)
    num_valid = np.array([row.num_valid for row in rows], np.int64)
    ends = start + num_valid
    num_pages = -(-int(ends.max()) // page_size_tokens)
    key = buckets.pick(family, len(rows), int(num_valid.max()), num_pages, variant_of(rows))
    tokens = np.zeros((key.batch, key.tokens), np.int64)
    if family == "prefill":
        for index, row in enumerate(rows):
            tokens[index, : row.num_valid] = row.choice.token_ids(row.start, row.start + row.num_valid)
    return _padded(key, tokens, start, num_valid, slots, table, _copies(rows, page_size_tokens))


def _compose_decode(rows: DecodeRows, table: SlotTable, buckets: Buckets, page_size_tokens: int) -> StepInput:
    num_pages = -(-(int(rows.start.max()) + 1) // page_size_tokens)
    key = buckets.pick("decode", len(rows), 1, num_pages, table.variant(rows.slots))
    copies = Copies(slots=rows.slot_copies) if len(rows.slot_copies) else NO_COPIES
    return _padded(key, np.zeros((key.batch, 1), np.int64), rows.start, 1, rows.slots, table, copies)


def _padded(
    key: GraphKey, tokens: Ints, start: Ints, num_valid: Ints | int, slots: Ints, table: SlotTable, copies: Copies
) -> StepInput:
    padded = np.zeros((3, key.batch), np.int64)
    padded[0, : len(slots)], padded[1, : len(slots)], padded[2, : len(slots)] = start, num_valid, slots
    start, num_valid, slots = padded
    return StepInput(
        key, tokens, start, num_valid, slots, table.page_table(slots, key.pages), table.sampling(slots), copies
    )


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
