"""What a step is given besides its rows: masks, changed logits, tokens to score, ids whose logprobs are wanted. Core.

Each is there only where a row asks for it, and then says of every other row that nothing is.
"""

from collections.abc import Sequence

import numpy as np
from attrs import evolve

from graphs.keys import EditKind
from graphs.step import Adjust, Capacity, Edits, Ints, Scoring, StepInput, Words
from stages.scheduler.adjusting import Adjusting
from stages.scheduler.choice import Choice
from stages.scheduler.compose import DecodeRows, Row
from stages.scheduler.memory import Memory

_ANY_TOKEN = -1
_WORD_BITS = 32
# Logits are divided by it; one that rounds to zero would leave none of them a number.
_LEAST_REPETITION = 1e-6

Sampling = Sequence[tuple[int, Choice]]


def with_asks(step: StepInput, rows: Sequence[Row] | DecodeRows, memory: Memory, capacity: Capacity) -> StepInput:
    """Return `step` with what some of its rows ask besides their sampling."""
    is_edited, is_wanting = memory.progress.num_edited > 0, memory.table.num_wanting > 0
    if isinstance(rows, DecodeRows):
        choices = rows.choices
        sampling = list(enumerate(choices)) if is_edited else []
    else:
        step = scored(step, rows)
        choices = [row.choice for row in rows]
        sampling = [(index, row.choice) for index, row in enumerate(rows) if row.samples] if is_edited else []
    if is_edited:
        step = edited(step, sampling, capacity)
    return wanting(step, choices) if is_wanting else step


def edited(step: StepInput, sampling: Sampling, capacity: Capacity) -> StepInput:
    """Return `step` with the masks and adjusts of the rows that sample, given as (row, choice)."""
    numbers = (step.start + step.num_valid).tolist()
    masks = [(row, mask) for row, choice in sampling if (mask := _mask(choice, numbers[row])) is not None]
    adjustings = [(row, choice.adjusting) for row, choice in sampling if choice.adjusting is not None]
    if not (masks or adjustings):
        return step
    batch = step.key.batch
    adjust = _adjust(adjustings, batch, capacity) if adjustings else None
    allowed = _allowed(masks, batch, capacity.vocab_size) if masks else None
    kind: EditKind = "masked_adjusted" if masks and adjustings else "masked" if masks else "adjusted"
    key = evolve(step.key, edits=kind, adjust_tokens=adjust.token_ids.shape[1] if adjust is not None else 0)
    return evolve(step, key=key, edits=Edits(allowed, adjust))


def _mask(choice: Choice, number: int) -> Words | None:
    """Return the mask for a choice's token of that number, None where it needs none."""
    guide = choice.guide
    if guide is None or number < guide.free_until:
        return None
    # Invariant: rows.py plans nobody whose mask is missing.
    assert guide.mask_for == number, f"a mask for token {guide.mask_for}, the step samples token {number}"
    return guide.allowed


def _allowed(masks: Sequence[tuple[int, Words]], batch: int, vocab_size: int) -> Words:
    allowed = np.full((batch, -(-vocab_size // _WORD_BITS)), _ANY_TOKEN, np.int32)
    for row, mask in masks:
        allowed[row] = mask
    return allowed


def _adjust(adjustings: Sequence[tuple[int, Adjusting]], batch: int, capacity: Capacity) -> Adjust:
    most = max(adjusting.size for _, adjusting in adjustings)
    shape = (batch, next(size for size in capacity.adjust_tokens if size >= most))
    adjust = Adjust(
        token_ids=np.full(shape, capacity.vocab_size, np.int64),
        counts=np.zeros(shape, np.float32),
        seen=np.zeros(shape, np.float32),
        bias=np.zeros(shape, np.float32),
        repetition=np.ones(batch, np.float32),
        frequency=np.zeros(batch, np.float32),
        presence=np.zeros(batch, np.float32),
    )
    for row, adjusting in adjustings:
        size, penalties = adjusting.size, adjusting.penalties
        adjust.token_ids[row, :size] = adjusting.token_ids[:size]
        adjust.counts[row, :size] = adjusting.counts[:size]
        adjust.seen[row, :size] = adjusting.seen[:size]
        adjust.bias[row, :size] = adjusting.bias[:size]
        adjust.repetition[row] = max(penalties.repetition, _LEAST_REPETITION)
        adjust.frequency[row] = penalties.frequency
        adjust.presence[row] = penalties.presence
    return adjust


def scored(step: StepInput, rows: Sequence[Row]) -> StepInput:
    """Return a prefill `step` with the tokens that its rows score; the others' are not scored beside them."""
    targets: Ints | None = None
    for index, row in enumerate(rows):
        scoring = row.choice.scoring
        span = scoring.span(row.start, row.num_valid) if scoring is not None else slice(0, 0)
        if span.stop > span.start:
            if targets is None:
                targets = np.full((step.key.batch, step.key.tokens), -1, np.int64)
            first = row.start + span.start + 1
            targets[index, span] = row.choice.submit.prompt_ids[first : first + span.stop - span.start]
    if targets is None:
        return step
    return evolve(step, key=evolve(step.key, is_scored=True), scoring=Scoring(targets))


def wanting(step: StepInput, choices: Sequence[Choice]) -> StepInput:
    """Return `step` with the ids whose logprobs its rows want, where one wants any."""
    most = max(len(choice.submit.logprob_token_ids) for choice in choices)
    if not most:
        return step
    wanted_ids = np.full((step.key.batch, most), -1, np.int64)
    for row, choice in enumerate(choices):
        token_ids = choice.submit.logprob_token_ids
        wanted_ids[row, : len(token_ids)] = token_ids
    return evolve(step, wanted_ids=wanted_ids)
