"""Steps for a device under test, built the way a scheduler would."""

import numpy as np
from attrs import frozen

from graphs.keys import Buckets
from graphs.settings import GraphSettings
from graphs.step import Capacity, Device, SamplingRows, StepInput, StepOutput

BUCKETS = Buckets(batch=(1, 2, 4, 8), prefill_batch=(1, 2, 4), tokens=(64, 128), pages=(2, 4))
SETTINGS = GraphSettings(BUCKETS, num_slots=9, num_pages=33, page_size_tokens=32, dtype="float32", max_top_logprobs=5)


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
