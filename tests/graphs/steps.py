"""Steps for a device under test, built the way a scheduler would."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from attrs import evolve, frozen

from graphs.keys import Buckets
from graphs.settings import GraphSettings
from graphs.step import (
    Adjust,
    Capacity,
    Device,
    Edits,
    Floats,
    Ints,
    SamplingRows,
    Scoring,
    StepInput,
    StepOutput,
    Words,
)

BUCKETS = Buckets(batch=(1, 2, 4, 8), prefill_batch=(1, 2, 4), tokens=(64, 128), pages=(2, 4))
SETTINGS = GraphSettings(BUCKETS, num_slots=9, num_pages=33, page_size_tokens=32, dtype="float32", max_top_logprobs=5)
VOCAB_SIZE = 256
EDITING = evolve(SETTINGS, takes_mask=True, adjust_tokens=(4, 16, VOCAB_SIZE))


@frozen
class Ask:
    """One row: its slot, its pages, its sampling."""

    slot: int
    pages: tuple[int, ...]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


def ask(slot: int, **sampling: float) -> Ask:
    """Return a row on `slot` with four pages of its own."""
    return Ask(slot, tuple(range(4 * slot - 3, 4 * slot + 1)), **sampling)  # type: ignore[arg-type]


def prefill(
    capacity: Capacity, rows: list[tuple[Ask, list[int], int]], variant: str = "sample", batch: int | None = None
) -> StepInput:
    """Return a prefill step of (row, tokens, start)."""
    longest = max(len(tokens) for _, tokens, _ in rows)
    width = max(-(-(start + len(tokens)) // capacity.page_size_tokens) for _, tokens, start in rows)
    key = capacity.buckets.pick("prefill", batch or len(rows), longest, width, variant)
    step = _empty(key.batch, key.tokens, key.pages, [row for row, _, _ in rows])
    for index, (_, tokens, start) in enumerate(rows):
        step["tokens"][index, : len(tokens)] = tokens
        step["start"][index], step["num_valid"][index] = start, len(tokens)
    return StepInput(key=key, **step)


def decode(
    capacity: Capacity,
    rows: list[tuple[Ask, int]],
    variant: str = "sample",
    batch: int | None = None,
    pages: int | None = None,
) -> StepInput:
    """Return a decode step of (row, position of its newest token)."""
    width = pages or max(-(-(start + 1) // capacity.page_size_tokens) for _, start in rows)
    key = capacity.buckets.pick("decode", batch or len(rows), 1, width, variant)
    step = _empty(key.batch, 1, key.pages, [row for row, _ in rows])
    for index, (_, start) in enumerate(rows):
        step["start"][index], step["num_valid"][index] = start, 1
    return StepInput(key=key, **step)


def _empty(batch: int, tokens: int, pages: int, rows: list[Ask]) -> dict:  # type: ignore[type-arg]
    ints = {name: np.zeros(batch, np.int64) for name in ("start", "num_valid", "slots", "top_k", "seed")}
    floats = {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0}
    columns = {name: np.full(batch, value, np.float32) for name, value in floats.items()}
    table = np.zeros((batch, pages), np.int64)
    for index, row in enumerate(rows):
        ints["slots"][index] = row.slot
        ints["top_k"][index], ints["seed"][index] = row.top_k, row.seed
        for name, column in columns.items():
            column[index] = getattr(row, name)
        table[index] = row.pages[:pages]
    return {
        "tokens": np.zeros((batch, tokens), np.int64),
        "start": ints["start"],
        "num_valid": ints["num_valid"],
        "slots": ints["slots"],
        "page_table": table,
        "sampling": SamplingRows(top_k=ints["top_k"], seed=ints["seed"], **columns),
    }


def allowing(vocab_size: int, *rows: Iterable[int] | None) -> Words:
    """Return a mask [B, W] that allows each row its tokens; None allows all."""
    bits = np.zeros((len(rows), -(-vocab_size // 32) * 32), np.uint8)
    for row, tokens in enumerate(rows):
        bits[row, list(range(bits.shape[1]) if tokens is None else tokens)] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


@frozen(kw_only=True)
class Change:
    """What is asked of one row's tokens: by token id a count, whether it was seen and a bias; by row the penalties."""

    tokens: Mapping[int, tuple[float, float, float]] = {}
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0


def adjusting(vocab_size: int, num_tokens: int, *rows: Change) -> Adjust:
    """Return an Adjust of num_tokens tokens a row."""
    shape = (len(rows), num_tokens)
    ids, asked = np.full(shape, vocab_size, np.int64), np.zeros((3, *shape), np.float32)
    for row, change in enumerate(rows):
        for place, (token_id, values) in enumerate(change.tokens.items()):
            ids[row, place], asked[:, row, place] = token_id, values
    columns: dict[str, Floats] = {
        name: np.array([getattr(change, name) for change in rows], np.float32)
        for name in ("repetition", "frequency", "presence")
    }
    return Adjust(ids, *asked, **columns)


def with_edits(step: StepInput, allowed: Words | None = None, adjust: Adjust | None = None) -> StepInput:
    """Return the step with what is done to its rows' logits."""
    kind = "_".join(name for name, part in (("masked", allowed), ("adjusted", adjust)) if part is not None)
    size = 0 if adjust is None else adjust.token_ids.shape[1]
    key = evolve(step.key, edits=kind, adjust_tokens=size)  # type: ignore[arg-type]
    return evolve(step, key=key, edits=Edits(allowed, adjust))


def scored(step: StepInput, targets: Sequence[tuple[int, int, int]], wanted_ids: Ints | None = None) -> StepInput:
    """Return the step with a target at each (row, offset, token id)."""
    wanted = np.full(step.tokens.shape, -1, np.int64)
    for row, offset, token_id in targets:
        wanted[row, offset] = token_id
    return evolve(step, key=evolve(step.key, is_scored=True), scoring=Scoring(wanted), wanted_ids=wanted_ids)


def generate(device: Device, row: Ask, prompt: list[int], num_tokens: int, **shape: int) -> list[int]:
    """Return what the device says after `prompt`, alone."""
    capacity = device.capacity
    out = [int(device.run(prefill(capacity, [(row, prompt, 0)], batch=shape.get("prefill_batch"))).token_ids[0])]
    for index in range(num_tokens - 1):
        position = len(prompt) + index
        out.append(int(device.run(decode(capacity, [(row, position)], batch=shape.get("batch"))).token_ids[0]))
    return out


def rows_of(output: StepOutput, count: int) -> list[int]:
    """Return the first `count` ids."""
    return [int(token) for token in output.token_ids[:count]]
