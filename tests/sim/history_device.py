"""A device without arithmetic whose next token depends on every token it ever stored for a row.

Where logits are edited the token depends besides on what becomes of whose, so a count that is off by one is seen.

It keeps what a real one keeps: tokens in pages, a running state and the newest token in slots. A lost, repeated or
stale token, a page that two rows write, a slot mixed up, a copy of nothing or in the way of a row gives another
continuation or trips an assertion. With a clock it also sees a transfer and a step that get in each other's way.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain

import numpy as np
from attrs import define, field

from graphs.devices.sim import edited_row
from graphs.step import (
    NULL_PAGE,
    NULL_SLOT,
    Adjust,
    Capacity,
    Copies,
    DeviceLost,
    Edits,
    Floats,
    Ints,
    Scores,
    Scoring,
    StepInput,
    StepOutput,
    Transfer,
    Words,
)
from stages.messages import Penalties, PromptScores, Submit
from tests.sim.traffic import Traffic, written_pages

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


def next_logits(token_ids: tuple[int, ...], vocab_size: int, seed: int = 0) -> Floats:
    """Return logits[V] after token_ids[T], for rows whose logits are edited; the greatest is next_token's."""
    return _logits(_fold(0, token_ids), len(token_ids), vocab_size, seed)


def edited_token(token_ids: tuple[int, ...], vocab_size: int, edits: Edits, row: int = 0, seed: int = 0) -> int:
    """Return the token that follows token_ids[T] under what `edits` says of `row`."""
    state = _edited_state(_fold(0, token_ids), edits, row, vocab_size)
    return int(edited_row(_logits(state, len(token_ids), vocab_size, seed), edits, row).argmax())


# What is taken from tokens' logits, by what they are divided, what is added; in thousandths.
Effects = Mapping[int, tuple[int, int, int]]


def _edited_state(state: int, edits: Edits, row: int, vocab_size: int) -> int:
    if edits.adjust is None:
        return state
    changed = _effects_of(edits.adjust, row, vocab_size)
    return _fold(state, tuple(number for item in sorted(changed.items()) for number in (item[0], *item[1])))


def _effects_of(adjust: Adjust, row: int, vocab_size: int) -> Effects:
    frequency, presence = adjust.frequency[row], adjust.presence[row]
    columns = (adjust.token_ids[row], adjust.counts[row], adjust.seen[row], adjust.bias[row])
    changed = {
        int(token_id): (
            round(float(frequency * count + presence * (count > 0)) * 1000),
            round(float(adjust.repetition[row] if seen else 1) * 1000),
            round(float(bias) * 1000),
        )
        for token_id, count, seen, bias in zip(*columns, strict=True)
        if token_id < vocab_size
    }
    return {token_id: effect for token_id, effect in changed.items() if effect != (0, 1000, 0)}


MaskOf = Callable[[Submit, tuple[int, ...]], "Words | None"]


def no_mask(_: Submit, __: tuple[int, ...]) -> None:
    return None


def answer_of(order: Submit, num_new: int, vocab_size: int, mask_of: MaskOf = no_mask) -> tuple[int, ...]:
    """Return the num_new tokens that `order` gets, told from all tokens before each; mask_of gives the mask of each."""
    seed = order.seed if order.sampling.temperature else 0
    generated: tuple[int, ...] = ()
    for _ in range(num_new):
        allowed = mask_of(order, generated) if order.rules is not None else None
        adjust = _adjust_of(order, generated, vocab_size)
        token_ids = order.prompt_ids + generated
        if allowed is None and adjust is None:
            generated += (next_token(token_ids, vocab_size, seed),)
        else:
            edits = Edits(None if allowed is None else allowed[None], adjust)
            generated += (edited_token(token_ids, vocab_size, edits, seed=seed),)
    return generated


def _adjust_of(order: Submit, generated: tuple[int, ...], vocab_size: int) -> Adjust | None:
    penalties, bias = order.penalties, dict(order.logit_bias)
    if penalties == Penalties() and not bias:
        return None
    counts = Counter(generated)
    seen = {*order.prompt_ids, *generated}
    ids = list(range(vocab_size))
    return Adjust(
        np.array([ids], np.int64),
        np.array([[counts[token_id] for token_id in ids]], np.float32),
        np.array([[token_id in seen for token_id in ids]], np.float32),
        np.array([[bias.get(token_id, 0.0) for token_id in ids]], np.float32),
        np.array([penalties.repetition], np.float32),
        np.array([penalties.frequency], np.float32),
        np.array([penalties.presence], np.float32),
    )


def scores_of(order: Submit, vocab_size: int, num_best: int) -> PromptScores:
    """Return what a prompt scores that is read at one go."""
    assert order.prompt_logprobs_from is not None
    prompt, wanted_ids = order.prompt_ids, order.logprob_token_ids
    numbers = range(min(order.prompt_logprobs_from, len(prompt) - 1) + 1, len(prompt))
    best = [(next_token(prompt[:number], vocab_size) + np.arange(num_best)) % vocab_size for number in numbers]
    num_top = order.num_top_logprobs
    wanted = [[prompt_logprob(prompt[:number], token_id) for token_id in wanted_ids] for number in numbers]
    return PromptScores(
        np.array([prompt_logprob(prompt[:number], prompt[number]) for number in numbers], np.float32),
        np.array(best, np.int32).reshape(len(numbers), num_best)[:, :num_top],
        np.tile(-np.arange(num_top, dtype=np.float32), (len(numbers), 1)),
        np.array(wanted, np.float32).reshape(len(numbers), len(wanted_ids)) if wanted_ids else None,
    )


def wanted_of(order: Submit, token_ids: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Return the logprobs of the ids that `order` names, beside each of its tokens; nothing where it names none."""
    if not order.logprob_token_ids:
        return ()
    befores = [order.prompt_ids + token_ids[:number] for number in range(len(token_ids))]
    return tuple(tuple(prompt_logprob(before, token_id) for token_id in order.logprob_token_ids) for before in befores)


def prompt_logprob(token_ids: tuple[int, ...], token_id: int) -> float:
    """Return the logprob of token_id after token_ids[T]."""
    return _prompt_logprob(_fold(0, token_ids), token_id)


def _prompt_logprob(state: int, token_id: int) -> float:
    return -(_fold(state, (token_id,)) % 4096) / 64


def _logits(state: int, position: int, vocab_size: int, seed: int) -> Floats:
    spread = _fold(state, (position, seed)) % (1 << 31) + np.arange(vocab_size, dtype=np.int64) * _PRIME
    logits = (spread % 9973 / 9973).astype(np.float32)
    logits[_draw(state, position, vocab_size, seed)] = 1.0
    return logits


def one_second(_: StepInput) -> float:
    return 1.0


def no_time(_: Transfer) -> float:
    return 0.0


@define(eq=False)
class Store:
    """Pages of tokens, -1 where none was written, and slots: what each has read and, after a step, its newest token."""

    pages: Ints
    states: dict[int, tuple[int, int]] = field(factory=dict)
    newest: dict[int, int] = field(factory=dict)

    @classmethod
    def of(cls, num_pages: int, page_size_tokens: int) -> "Store":
        return cls(np.full((num_pages, page_size_tokens), -1, np.int64))

    def copy_page(self, page: int, into: "Store", to: int) -> None:
        assert page != NULL_PAGE, "a copy from the null page"
        assert to != NULL_PAGE, "a copy to the null page"
        assert (self.pages[page] >= 0).any(), f"page {page} holds nothing to copy"
        into.pages[to] = self.pages[page]

    def copy_slot(self, slot: int, into: "Store", to: int) -> None:
        assert slot in self.states, f"slot {slot} holds nothing to copy"
        into.keep(to, self.states[slot], self.newest.get(slot))

    def keep(self, slot: int, state: tuple[int, int], newest: int | None) -> None:
        assert slot != NULL_SLOT, "the null slot keeps nothing"
        self.states[slot] = state
        self.newest.pop(slot, None)
        if newest is not None:
            self.newest[slot] = newest


@define(eq=False)
class HistoryDevice:
    """Implements graphs.step.Device; device_s of a step comes from `time_s`, step number lose_at_step loses it.

    A transfer takes `transfer_s`, number lose_at_transfer loses the device. `clock` (trio.current_time, under a
    SimRunner) lets it check which steps a transfer runs beside.
    """

    capacity: Capacity
    time_s: Callable[[StepInput], float] = one_second
    lose_at_step: int | None = None
    transfer_s: Callable[[Transfer], float] = no_time
    lose_at_transfer: int | None = None
    clock: Callable[[], float] | None = None
    steps: list[StepInput] = field(factory=list)
    transfers: list[Transfer] = field(factory=list)
    _store: Store = field(init=False)
    _host: Store = field(init=False)
    _traffic: Traffic = field(factory=Traffic)

    def __attrs_post_init__(self) -> None:
        size = self.capacity.page_size_tokens
        self._store = Store.of(self.capacity.num_pages, size)
        self._host = Store.of(self.capacity.num_host_pages, size)

    def run(self, step: StepInput) -> StepOutput:
        self.steps.append(step)
        if len(self.steps) == self.lose_at_step:
            raise DeviceLost("unplugged")
        self._check_shapes(step)
        self._check_pages(step)
        self._check_copies(step)
        self._check_edits(step)
        if self.clock is not None:
            self._traffic.begin_step(step, self.capacity.page_size_tokens, self.clock(), self.time_s(step))
        store = self._store
        for source, target in step.copies.pages.tolist():
            store.copy_page(source, store, target)
        for source, target in step.copies.slots.tolist():
            store.copy_slot(source, store, target)
        num_rows = step.key.batch
        token_ids = np.zeros(num_rows, np.int64)
        best = self.capacity.max_top_logprobs
        scores = None if step.scoring is None else _no_scores(step, step.scoring, best)
        wanted = None if step.wanted_ids is None else np.full(step.wanted_ids.shape, np.nan, np.float32)
        for row in range(num_rows):
            if step.num_valid[row]:
                token_ids[row] = self._run_row(step, row, scores)
                if wanted is not None:
                    wanted[row] = self._wanted(step, row, store.states[int(step.slots[row])][0])
        for source, target in step.copies.saves.tolist():
            store.copy_page(source, store, target)
        wants_best = step.key.variant.endswith("_logprobs")
        ranks = np.arange(best)
        top_ids = (token_ids[:, None] + ranks) % self.capacity.vocab_size
        return StepOutput(
            token_ids=token_ids,
            logprobs=-token_ids.astype(np.float32),
            top_ids=top_ids if wants_best else None,
            top_logprobs=-(token_ids[:, None] + ranks).astype(np.float32) if wants_best else None,
            device_s=self.time_s(step),
            wanted=wanted,
            scores=scores,
        )

    def transfer(self, transfer: Transfer) -> float:
        self.transfers.append(transfer)
        if len(self.transfers) == self.lose_at_transfer:
            raise DeviceLost("host memory unplugged")
        seconds = self.transfer_s(transfer)
        self._check_transfer(transfer)
        if self.clock is not None:
            self._traffic.begin_transfer(transfer, self.clock(), seconds)
        for device, host in transfer.pages.tolist():
            if transfer.to_host:
                self._store.copy_page(device, self._host, host)
            else:
                self._host.copy_page(host, self._store, device)
        for device, host in transfer.slots.tolist():
            if transfer.to_host:
                self._store.copy_slot(device, self._host, host)
            else:
                self._host.copy_slot(host, self._store, device)
        return seconds

    def describe(self) -> dict[str, object]:
        return {"device": "history", "graphs_ready": 0, "graphs_total": 0}

    def close(self) -> None:
        pass

    def _run_row(self, step: StepInput, row: int, scores: Scores | None) -> int:
        slot, start, num_valid = int(step.slots[row]), int(step.start[row]), int(step.num_valid[row])
        pages = step.page_table[row]
        size = self.capacity.page_size_tokens
        store = self._store
        state, num_read = store.states.get(slot, (0, 0)) if start else (0, 0)
        assert num_read == start, f"slot {slot} has read {num_read} tokens, the step begins at {start}"
        if step.key.family == "prefill":
            assert start % 4 == 0
            fresh = tuple(step.tokens[row, :num_valid].tolist())
        else:
            assert num_valid == 1
            fresh = (store.newest[slot],)
        for offset, token_id in enumerate(fresh):
            position = start + offset
            assert pages[position // size] != NULL_PAGE, f"position {position} has no page"
            store.pages[pages[position // size], position % size] = token_id
        for _, num_tokens, target in (capture for capture in step.copies.captures.tolist() if capture[0] == row):
            # It has no newest token: what goes on from it has a next token of its own, and so begins with a prefill.
            store.keep(target, (_fold(state, fresh[:num_tokens]), start + num_tokens), None)
        if scores is not None:
            self._score_row(step, row, state, scores)
        end = start + num_valid
        state = _fold(state, fresh)
        history = tuple(int(store.pages[pages[position // size], position % size]) for position in range(end))
        assert _fold(0, history) == state, f"slot {slot}: what the pages hold is not what the state has read"
        # A greedy graph draws greedily whatever the row wants: sound only where the token is not used.
        is_greedy = step.key.variant.startswith("greedy") or step.sampling.temperature[row] == 0
        seed = 0 if is_greedy else int(step.sampling.seed[row])
        newest = _draw(state, end, self.capacity.vocab_size, seed)
        if step.edits is not None:
            if step.edits.adjust is not None:
                _check_adjust(step.edits.adjust, row, history, self.capacity.vocab_size)
            edited_state = _edited_state(state, step.edits, row, self.capacity.vocab_size)
            logits = _logits(edited_state, end, self.capacity.vocab_size, seed)
            newest = int(edited_row(logits, step.edits, row).argmax())
        store.keep(slot, (state, end), newest)
        return newest

    def _wanted(self, step: StepInput, row: int, state: int) -> list[float]:
        assert step.wanted_ids is not None
        ids = step.wanted_ids[row].tolist()
        return [_prompt_logprob(state, token_id) if token_id >= 0 else math.nan for token_id in ids]

    def _score_row(self, step: StepInput, row: int, state: int, scores: Scores) -> None:
        """Say what each target is worth after all the row has read; where nobody asks, nothing stands."""
        assert step.scoring is not None
        targets, start, vocab_size = step.scoring.targets[row].tolist(), int(step.start[row]), self.capacity.vocab_size
        for offset, token_id in enumerate(step.tokens[row, : step.num_valid[row]].tolist()):
            state = _fold(state, (token_id,))
            if (target := targets[offset]) < 0:
                continue
            scores.logprobs[row, offset] = _prompt_logprob(state, target)
            drawn = _draw(state, start + offset + 1, vocab_size, 0)
            ids = (drawn + np.arange(scores.top_ids.shape[-1])) % vocab_size
            scores.top_ids[row, offset] = ids
            scores.top_logprobs[row, offset] = -np.arange(len(ids), dtype=np.float32)
            if scores.wanted is not None:
                scores.wanted[row, offset] = self._wanted(step, row, state)

    def _check_edits(self, step: StepInput) -> None:
        """What the key names is there, of the key's sizes, and nothing else."""
        key, edits, capacity = step.key, step.edits, self.capacity
        allowed, adjust = (None, None) if edits is None else (edits.allowed, edits.adjust)
        assert ("masked" in key.edits.split("_"), "adjusted" in key.edits) == (allowed is not None, adjust is not None)
        if allowed is not None:
            assert capacity.takes_mask
            assert (allowed.dtype, allowed.shape) == (np.int32, (key.batch, -(-capacity.vocab_size // 32)))
            bits = np.unpackbits(allowed.view(np.uint8), axis=1, bitorder="little")[:, : capacity.vocab_size]
            assert bits.any(axis=1).all(), "a row whose mask allows nothing"
        if adjust is not None:
            assert key.adjust_tokens in capacity.adjust_tokens
            assert adjust.token_ids.dtype == np.int64
            wide = (adjust.token_ids, adjust.counts, adjust.seen, adjust.bias)
            assert {column.shape for column in wide} == {(key.batch, key.adjust_tokens)}
            rows = (adjust.repetition, adjust.frequency, adjust.presence)
            assert {column.shape for column in rows} == {(key.batch,)}
            assert {column.dtype for column in (*wide[1:], *rows)} == {np.dtype(np.float32)}
        assert key.is_scored == (step.scoring is not None)
        if step.scoring is not None:
            assert key.family == "prefill", "a scored decode step"
            assert step.scoring.targets.shape == step.tokens.shape
            assert step.scoring.targets.dtype == np.int64
            asked = step.scoring.targets >= 0
            assert not asked[np.arange(key.tokens) >= step.num_valid[:, None]].any(), "a target past a row's tokens"
            assert (step.scoring.targets < capacity.vocab_size).all()
        if step.wanted_ids is not None:
            assert step.wanted_ids.dtype == np.int64
            assert step.wanted_ids.shape[0] == key.batch
            assert ((step.wanted_ids >= -1) & (step.wanted_ids < capacity.vocab_size)).all()

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

    def _check_pages(self, step: StepInput) -> None:
        """A page in two rows' tables lies whole below both rows' starts: a shared prefix, which no row writes."""
        size = self.capacity.page_size_tokens
        rows = [[page for page in table if page != NULL_PAGE] for table in step.page_table.tolist()]
        for pages in rows:
            assert len(set(pages)) == len(pages), "a page twice in one row"
        shared = {page for page, count in Counter(chain(*rows)).items() if count > 1}
        for row, table in enumerate(step.page_table.tolist()):
            for index, page in enumerate(table):
                assert page not in shared or (index + 1) * size <= step.start[row], f"page {page} with two rows"

    def _check_copies(self, step: StepInput) -> None:
        copies, capacity = step.copies, self.capacity
        _check_pairs(copies, capacity)
        written = written_pages(step, capacity.page_size_tokens)
        tables = set(step.page_table.ravel().tolist())
        assert written.isdisjoint(copies.pages[:, 0].tolist()), "a copy from a page that a row of the step writes"
        assert tables >= set(copies.saves[:, 0].tolist()), "a save from a page of no row"
        assert tables.isdisjoint(copies.saves[:, 1].tolist()), "a save to a page of a row"
        targets = copies.captures[:, 2].tolist()
        assert len(set(targets)) == len(targets), "a slot with two captures"
        assert set(targets).isdisjoint(step.slots.tolist()), "a capture to the slot of a row"
        assert not targets or step.key.family == "prefill", "a capture while decoding"
        for row, num_tokens, _ in copies.captures.tolist():
            assert 0 <= row < step.key.batch
            assert 1 <= num_tokens <= step.num_valid[row], f"a capture after {num_tokens} of {step.num_valid[row]}"
            assert num_tokens % 4 == 0, f"a capture after {num_tokens} tokens, inside a pooling group"

    def _check_transfer(self, transfer: Transfer) -> None:
        capacity = self.capacity
        for numbers, num_device, num_host in (
            (transfer.pages, capacity.num_pages, capacity.num_host_pages),
            (transfer.slots, capacity.num_slots, capacity.num_host_slots),
        ):
            _check_numbers(numbers[:, 0], num_device)
            _check_numbers(numbers[:, 1], num_host)
            targets = numbers[:, 1 if transfer.to_host else 0].tolist()
            assert len(set(targets)) == len(targets), "a target of two copies in one transfer"


def _check_pairs(copies: Copies, capacity: Capacity) -> None:
    for numbers, size in (
        (copies.pages, capacity.num_pages),
        (copies.saves, capacity.num_pages),
        (copies.slots, capacity.num_slots),
    ):
        assert numbers.shape == (len(numbers), 2)
        _check_numbers(numbers, size)
    assert copies.captures.shape == (len(copies.captures), 3)
    _check_numbers(copies.captures[:, 2], capacity.num_slots)


def _no_scores(step: StepInput, scoring: Scoring, num_best: int) -> Scores:
    """Return scores that say nothing of any token yet."""
    shape, ids = scoring.targets.shape, step.wanted_ids
    return Scores(
        logprobs=np.full(shape, np.nan, np.float32),
        top_ids=np.full((*shape, num_best), -1, np.int64),
        top_logprobs=np.full((*shape, num_best), np.nan, np.float32),
        wanted=None if ids is None else np.full((*shape, ids.shape[1]), np.nan, np.float32),
    )


def _check_adjust(adjust: Adjust, row: int, history: tuple[int, ...], vocab_size: int) -> None:
    """Every token is named once, and counts and marks are no more than the row's own tokens bear out."""
    ids = adjust.token_ids[row]
    named = ids < vocab_size
    assert (ids[~named] == vocab_size).all()
    assert (ids >= 0).all()
    assert len(set(ids[named].tolist())) == named.sum(), "a token named twice"
    for column in (adjust.counts, adjust.seen, adjust.bias):
        assert (column[row][~named] == 0).all(), "something asked of no token"
    came = Counter(history)
    for token_id, count, seen in zip(ids[named], adjust.counts[row][named], adjust.seen[row][named], strict=True):
        assert count <= came[int(token_id)], f"token {token_id} came {came[int(token_id)]} times, counted {count}"
        assert not seen or token_id in came, f"token {token_id} has not been seen"
    if adjust.repetition[row] != 1:
        marked = set(ids[named & (adjust.seen[row] > 0)].tolist())
        assert marked == came.keys(), f"tokens that came and are not marked: {sorted(came.keys() - marked)}"


def _check_numbers(numbers: Ints, size: int) -> None:
    assert numbers.dtype == np.int64
    assert ((numbers > 0) & (numbers < size)).all(), f"{numbers.tolist()}: numbers are from 1 to {size - 1}"
