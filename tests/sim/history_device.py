"""A device without arithmetic whose next token depends on every token it ever stored for a row.

It keeps what a real one keeps: tokens in pages, a running state and the newest token in slots. A lost, repeated or
stale token, a page with two owners or a slot mixed up gives another continuation or trips an assertion.
"""

from collections.abc import Callable

import numpy as np
from attrs import define, field

from graphs.step import NULL_PAGE, NULL_SLOT, Capacity, DeviceLost, StepInput, StepOutput

_PRIME = 1_000_003
_MASK = (1 << 61) - 1


def next_token(token_ids: tuple[int, ...], vocab_size: int, seed: int = 0) -> int:
    """Return the token that follows token_ids[T]; the seed is 0 for a greedy row."""
    return _draw(_fold(0, token_ids), len(token_ids), vocab_size, seed)


def continuation(prompt_ids: tuple[int, ...], num_new: int, vocab_size: int, seed: int = 0) -> tuple[int, ...]:
    """Return the num_new tokens that follow prompt_ids."""
    token_ids = prompt_ids
    for _ in range(num_new):
        token_ids += (next_token(token_ids, vocab_size, seed),)
    return token_ids[len(prompt_ids) :]


def _fold(state: int, token_ids: tuple[int, ...]) -> int:
    for token_id in token_ids:
        state = ((state ^ token_id) * _PRIME + 1) & _MASK
    return state


def _draw(state: int, position: int, vocab_size: int, seed: int) -> int:
    return _fold(state, (position, seed)) % vocab_size


def one_second(_: StepInput) -> float:
    return 1.0


@define(eq=False)
class HistoryDevice:
    """Implements graphs.step.Device; device_s of a step comes from `time_s`, step number lose_at_step loses it."""

    capacity: Capacity
    time_s: Callable[[StepInput], float] = one_second
    lose_at_step: int | None = None
    steps: list[StepInput] = field(factory=list)
    _pages: np.ndarray = field(init=False)
    _states: dict[int, tuple[int, int]] = field(factory=dict)
    _newest: dict[int, int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._pages = np.full((self.capacity.num_pages, self.capacity.page_size_tokens), -1, np.int64)

    def run(self, step: StepInput) -> StepOutput:
        self.steps.append(step)
        if len(self.steps) == self.lose_at_step:
            raise DeviceLost("unplugged")
        self._check_shapes(step)
        num_rows = step.key.batch
        token_ids = np.zeros(num_rows, np.int64)
        for row in range(num_rows):
            if step.num_valid[row]:
                token_ids[row] = self._run_row(step, row)
        wants_best = step.key.variant.endswith("_logprobs")
        best = self.capacity.max_top_logprobs
        top_ids = (token_ids[:, None] + np.arange(best)) % self.capacity.vocab_size
        return StepOutput(
            token_ids=token_ids,
            logprobs=-token_ids.astype(np.float32),
            top_ids=top_ids if wants_best else None,
            top_logprobs=-top_ids.astype(np.float32) if wants_best else None,
            device_s=self.time_s(step),
        )

    def describe(self) -> dict[str, object]:
        return {"device": "history"}

    def close(self) -> None:
        pass

    def _run_row(self, step: StepInput, row: int) -> int:
        slot, start, num_valid = int(step.slots[row]), int(step.start[row]), int(step.num_valid[row])
        pages = step.page_table[row]
        size = self.capacity.page_size_tokens
        state, num_read = self._states.get(slot, (0, 0)) if start else (0, 0)
        assert num_read == start, f"slot {slot} has read {num_read} tokens, the step begins at {start}"
        if step.key.family == "prefill":
            assert start % 4 == 0
            fresh = tuple(step.tokens[row, :num_valid].tolist())
        else:
            assert num_valid == 1
            fresh = (self._newest[slot],)
        for offset, token_id in enumerate(fresh):
            position = start + offset
            assert pages[position // size] != NULL_PAGE, f"position {position} has no page"
            self._pages[pages[position // size], position % size] = token_id
        end = start + num_valid
        state = _fold(state, fresh)
        history = tuple(int(self._pages[pages[position // size], position % size]) for position in range(end))
        assert _fold(0, history) == state, f"slot {slot}: what the pages hold is not what the state has read"
        self._states[slot] = (state, end)
        # A greedy graph draws greedily whatever the row wants: sound only where the token is not used.
        is_greedy = step.key.variant.startswith("greedy") or step.sampling.temperature[row] == 0
        newest = _draw(state, end, self.capacity.vocab_size, 0 if is_greedy else int(step.sampling.seed[row]))
        self._newest[slot] = newest
        return newest

    def _check_shapes(self, step: StepInput) -> None:
        key, buckets = step.key, self.capacity.buckets
        is_prefill = key.family == "prefill"
        assert key.batch in (buckets.prefill_batch if is_prefill else buckets.batch)
        assert key.tokens in (buckets.tokens if is_prefill else (1,))
        assert key.pages in buckets.pages
        assert step.tokens.shape == (key.batch, key.tokens)
        assert step.page_table.shape == (key.batch, key.pages)
        sampling = step.sampling
        for array in (step.start, step.num_valid, step.slots, sampling.seed, sampling.top_k):
            assert array.shape == (key.batch,)
            assert array.dtype == np.int64
        for array in (sampling.temperature, sampling.top_p, sampling.min_p):
            assert array.shape == (key.batch,)
            assert array.dtype == np.float32
        padding = step.num_valid == 0
        assert (step.slots[padding] == NULL_SLOT).all()
        assert (step.page_table[padding] == NULL_PAGE).all()
        slots = step.slots[~padding].tolist()
        assert NULL_SLOT not in slots
        assert len(set(slots)) == len(slots), "a slot with two rows"
        owned = [page for page in step.page_table.ravel().tolist() if page != NULL_PAGE]
        assert len(set(owned)) == len(owned), "a page with two rows"
