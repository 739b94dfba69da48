"""What a step copies between pages and between slots, and how a prefill block is captured in its middle.

A block is BLOCK_TOKENS tokens of every row. A capture at a block's end, or at its row's, is the row's slot as the
block left it: one copy. One inside a block is a run of the block's first tokens alone, on the slot that is to have
them: the row's slot is copied there, and the block runs on it with fewer valid tokens, before it runs for its rows.

# Invariant: a capture changes no bit of its row. What its run writes into pages the row's own run, over the same
# positions and more, writes again right after it; nothing in between reads them, and the row's slot is only read.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from graphs.catalog import BLOCK_TOKENS
from graphs.step import NULL_SLOT, Ints, StepInput

# Rows whose views are kept: making a view takes as long as copying a small row.
MAX_KEPT_ROWS = 1024
# Rows a transfer copies at once: between two such the step's thread has its turn.
CHUNK_ROWS = 32


@frozen(eq=False)
class Rows:
    """Row i of each of several tensors [N, ..] as one thing to copy: a page or a slot over all layers."""

    tensors: Sequence[Tensor]
    _kept: dict[int, list[Tensor]] = field(factory=dict, init=False)

    def copy(self, numbers: Iterable[Sequence[int]]) -> None:
        """Copy rows (from, to) in order."""
        for source, target in numbers:
            for tensor, value in zip(self._row(target), self._row(source), strict=True):
                tensor.copy_(value)

    def copy_to(self, other: "Rows", sources: Ints, targets: Ints) -> None:
        """Copy rows `sources` [N] to the rows `targets` [N] of other, none of them twice, a chunk at a time."""
        for first in range(0, len(sources), CHUNK_ROWS):
            source = torch.from_numpy(sources[first : first + CHUNK_ROWS])
            target = torch.from_numpy(targets[first : first + CHUNK_ROWS])
            for ours, theirs in zip(self.tensors, other.tensors, strict=True):
                theirs.index_copy_(0, target, ours.index_select(0, source))

    def _row(self, number: int) -> list[Tensor]:
        if (row := self._kept.get(number)) is None:
            row = [tensor[number] for tensor in self.tensors]
            if len(self._kept) < MAX_KEPT_ROWS:
                self._kept[number] = row
        return row


@frozen(eq=False)
class PartRun:
    """The first tokens of a block for captures inside it, one a row: num_valid [B], slots [B], slots to copy before."""

    num_valid: Ints
    slots: Ints
    copies: list[tuple[int, int]]


def part_runs(step: StepInput, first: int) -> Iterator[PartRun]:
    """Yield the runs that the captures inside the block from token `first` need, each row at its own place."""
    inside = [
        (row, num_tokens - first, target)
        for row, num_tokens, target in _captures(step, first)
        if not _is_at_end(step, row, num_tokens)
    ]
    while inside:
        run = PartRun(np.zeros_like(step.num_valid), np.full_like(step.slots, NULL_SLOT), [])
        later = []
        for capture in inside:
            row, num_tokens, target = capture
            if run.num_valid[row]:
                later.append(capture)
                continue
            run.num_valid[row], run.slots[row] = num_tokens, target
            run.copies.append((int(step.slots[row]), target))
        yield run
        inside = later


def end_copies(step: StepInput, first: int) -> list[tuple[int, int]]:
    """Return the slots (from, to) to copy for captures at the end of the block from token `first`."""
    found = _captures(step, first)
    return [(int(step.slots[row]), target) for row, count, target in found if _is_at_end(step, row, count)]


def _captures(step: StepInput, first: int) -> list[tuple[int, int, int]]:
    return [
        (row, num_tokens, target)
        for row, num_tokens, target in step.copies.captures.tolist()
        if first < num_tokens <= first + BLOCK_TOKENS
    ]


def _is_at_end(step: StepInput, row: int, num_tokens: int) -> bool:
    return num_tokens % BLOCK_TOKENS == 0 or num_tokens == step.num_valid[row]
