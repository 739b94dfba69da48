"""A device without arithmetic whose next token depends on every token it ever stored for a row.

Masks, penalties, biases and scores go into what it answers too: `effects` and `draw` say how, `continuation` and
`scores_of` say what a whole answer and a prompt's scores must then be.

It keeps what a real one keeps: tokens in pages, a running state and the newest token in slots. A lost, repeated or
stale token, a page that two rows write, a slot mixed up, a copy of nothing or in the way of a row gives another
continuation or trips an assertion. With a clock it also sees a transfer and a step that get in each other's way.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain

import numpy as np
from attrs import define, field

from graphs.step import (
    NULL_PAGE,
    NULL_SLOT,
    Adjust,
    Capacity,
    Copies,
    DeviceLost,
    Floats,
    Ints,
    Scores,
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


def answer_of(order: Submit, num_new: int, vocab_size: int, mask_of: "MaskOf | None" = None) -> tuple[int, ...]:
    """Return the num_new tokens that `order` gets; mask_of(order, generated) gives the mask of each, None for any."""
    seed = order.seed if order.sampling.temperature else 0
    state, generated = _fold(0, order.prompt_ids), ()
    for _ in range(num_new):
        allowed = mask_of(order, generated) if mask_of is not None and order.rules is not None else None
        position = len(order.prompt_ids) + len(generated)
        changed = effects(order.prompt_ids, generated, order.penalties, order.logit_bias)
        token_id = draw(state, position, vocab_size, seed, changed, allowed)
        state, generated = _fold(state, (token_id,)), (*generated, token_id)
    return generated


MaskOf = Callable[[Submit, tuple[int, ...]], "Words | None"]
# What becomes of some tokens' logits: what is taken away, by what it is divided, what is added; in thousandths.
Effects = Mapping[int, tuple[int, int, int]]


def effects(
    prompt_ids: tuple[int, ...],
    generated: tuple[int, ...],
    penalties: Penalties,
    logit_bias: tuple[tuple[int, float], ...],
) -> Effects:
    """Return what penalties and biases change of the next token's logits, told from all tokens anew."""
    counts, bias = Counter(generated), dict(logit_bias)
    seen = {*prompt_ids, *generated}
    return {
        token_id: effect
        for token_id in {*seen, *bias}
        if (effect := _effect(counts[token_id], token_id in seen, bias.get(token_id, 0.0), penalties)) != (0, 1000, 0)
    }


def _effect(count: float, is_seen: bool, bias: float, penalties: Penalties) -> tuple[int, int, int]:
    lost = penalties.frequency * count + penalties.presence * (count > 0)
    return round(lost * 1000), round((penalties.repetition if is_seen else 1.0) * 1000), round(bias * 1000)


def _effects_of(adjust: Adjust, row: int, vocab_size: int) -> Effects:
    penalties = Penalties(float(adjust.frequency[row]), float(adjust.presence[row]), float(adjust.repetition[row]))
    columns = (adjust.token_ids, adjust.counts, adjust.seen, adjust.bias)
    places = list(zip(*(column[row].tolist() for column in columns), strict=True))
    token_ids = [token_id for token_id, *_ in places if token_id < vocab_size]
    assert len(set(token_ids)) == len(token_ids), "a token in two places"
    changed = {
        token_id: _effect(count, bool(seen), bias, penalties)
        for token_id, count, seen, bias in places
        if token_id < vocab_size
    }
    return {token_id: effect for token_id, effect in changed.items() if effect != (0, 1000, 0)}


def allowed_ids(allowed: Words, vocab_size: int) -> Ints:
    """Return the ids that a mask [W] lets come."""
    return np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little")[:vocab_size])


def draw(
    state: int, position: int, vocab_size: int, seed: int, changed: Effects | None = None, allowed: Words | None = None
) -> int:
    """Return the token at `position` after `state`: another one wherever anything else is asked."""
    drawn = _draw(state, position, vocab_size, seed)
    if changed:
        drawn = _fold(drawn, tuple(number for item in sorted(changed.items()) for number in (item[0], *item[1])))
    if allowed is None:
        return drawn % vocab_size
    candidates = allowed_ids(allowed, vocab_size)
    assert len(candidates), "a mask that lets nothing come"
    return int(candidates[drawn % len(candidates)]) if len(candidates) < vocab_size else drawn % vocab_size


def score(state: int, token_id: int) -> float:
    """Return the logprob of a token after `state`."""
    return -(_fold(state, (token_id, 1)) % 4096) / 64


def best(state: int, num: int, vocab_size: int) -> list[tuple[int, float]]:
    """Return the best `num` ids after `state` with their logprobs."""
    first = _fold(state, (2,))
    return [((first + rank) % vocab_size, -float(rank)) for rank in range(num)]


def scores_of(order: Submit, vocab_size: int) -> PromptScores:
    """Return what a prompt scores that is read at one go."""
    assert order.prompt_logprobs_from is not None
    prompt, wanted_ids = order.prompt_ids, order.logprob_token_ids
    numbers = range(min(order.prompt_logprobs_from, len(prompt) - 1) + 1, len(prompt))
    states = [_fold(0, prompt[:number]) for number in numbers]
    tops = [best(state, order.num_top_logprobs, vocab_size) for state in states]
    shape = (len(states), order.num_top_logprobs)
    wanted = [[score(state, token_id) for token_id in wanted_ids] for state in states]
    return PromptScores(
        np.array([score(state, prompt[number]) for state, number in zip(states, numbers, strict=True)], np.float32),
        np.array([[token_id for token_id, _ in top] for top in tops], np.int32).reshape(shape),
        np.array([[value for _, value in top] for top in tops], np.float32).reshape(shape),
        np.array(wanted, np.float32).reshape(len(states), len(wanted_ids)) if wanted_ids else None,
    )


def wanted_of(order: Submit, token_ids: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Return the logprobs of the ids that `order` names, beside each of its tokens; nothing where it names none."""
    if not order.logprob_token_ids:
        return ()
    states = [_fold(0, order.prompt_ids + token_ids[:number]) for number in range(len(token_ids))]
    return tuple(tuple(score(state, token_id) for token_id in order.logprob_token_ids) for state in states)


def _fold(state: int, token_ids: tuple[int, ...]) -> int:
    for token_id in token_ids:
        state = ((state ^ token_id) * _PRIME + 1) & _MASK
    return state


def _draw(state: int, position: int, vocab_size: int, seed: int) -> int:
    return _fold(state, (position, seed)) % vocab_size


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
        if self.clock is not None:
            self._traffic.begin_step(step, self.capacity.page_size_tokens, self.clock(), self.time_s(step))
        store = self._store
        for source, target in step.copies.pages.tolist():
            store.copy_page(source, store, target)
        for source, target in step.copies.slots.tolist():
            store.copy_slot(source, store, target)
        num_rows = step.key.batch
        token_ids = np.zeros(num_rows, np.int64)
        scores = self._no_scores(step) if step.key.is_scored else None
        wanted = _nothing(*step.wanted_ids.shape) if step.wanted_ids is not None else None
        for row in range(num_rows):
            if step.num_valid[row]:
                token_ids[row] = self._run_row(step, row, scores, wanted)
        for source, target in step.copies.saves.tolist():
            store.copy_page(source, store, target)
        wants_best = step.key.variant.endswith("_logprobs")
        best = self.capacity.max_top_logprobs
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

    def _no_scores(self, step: StepInput) -> Scores:
        batch, tokens, num_best = step.key.batch, step.key.tokens, self.capacity.max_top_logprobs
        return Scores(
            _nothing(batch, tokens),
            np.full((batch, tokens, num_best), -1, np.int64),
            _nothing(batch, tokens, num_best),
            _nothing(batch, tokens, step.wanted_ids.shape[1]) if step.wanted_ids is not None else None,
        )

    def _score_row(self, step: StepInput, row: int, state: int, fresh: tuple[int, ...], scores: Scores) -> None:
        assert step.scoring is not None
        num_best = self.capacity.max_top_logprobs
        for offset, token_id in enumerate(fresh):
            state = _fold(state, (token_id,))
            target = int(step.scoring.targets[row, offset])
            if target < 0:
                continue
            scores.logprobs[row, offset] = score(state, target)
            top = best(state, num_best, self.capacity.vocab_size)
            scores.top_ids[row, offset] = [other for other, _ in top]
            scores.top_logprobs[row, offset] = [value for _, value in top]
            if scores.wanted is not None:
                self._want(step, row, state, scores.wanted[row, offset])

    def _want(self, step: StepInput, row: int, state: int, wanted: Floats) -> None:
        assert step.wanted_ids is not None
        for place, token_id in enumerate(step.wanted_ids[row].tolist()):
            if token_id >= 0:
                wanted[place] = score(state, token_id)

    def _run_row(self, step: StepInput, row: int, scores: Scores | None, wanted: Floats | None) -> int:
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
        end = start + num_valid
        if scores is not None:
            self._score_row(step, row, state, fresh, scores)
        state = _fold(state, fresh)
        if wanted is not None:
            self._want(step, row, state, wanted[row])
        history = tuple(int(store.pages[pages[position // size], position % size]) for position in range(end))
        assert _fold(0, history) == state, f"slot {slot}: what the pages hold is not what the state has read"
        # A greedy graph draws greedily whatever the row wants: sound only where the token is not used.
        is_greedy = step.key.variant.startswith("greedy") or step.sampling.temperature[row] == 0
        vocab_size, edits = self.capacity.vocab_size, step.edits
        changed = _effects_of(edits.adjust, row, vocab_size) if edits is not None and edits.adjust is not None else None
        allowed = edits.allowed[row] if edits is not None and edits.allowed is not None else None
        newest = draw(state, end, vocab_size, 0 if is_greedy else int(step.sampling.seed[row]), changed, allowed)
        store.keep(slot, (state, end), newest)
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
        self._check_edits(step)
        padding = step.num_valid == 0
        assert (step.slots[padding] == NULL_SLOT).all()
        assert (step.page_table[padding] == NULL_PAGE).all()
        slots = step.slots[~padding].tolist()
        assert NULL_SLOT not in slots
        assert len(set(slots)) == len(slots), "a slot with two rows"

    def _check_edits(self, step: StepInput) -> None:
        key, capacity, edits = step.key, self.capacity, step.edits
        allowed, adjust = (edits.allowed, edits.adjust) if edits is not None else (None, None)
        names = ["masked"] * (allowed is not None) + ["adjusted"] * (adjust is not None)
        assert key.edits == "_".join(names), f"{key.edits or 'no edits'}, but {names}"
        assert (allowed is None) or capacity.takes_mask
        if allowed is not None:
            assert (allowed.shape, allowed.dtype) == ((key.batch, -(-capacity.vocab_size // 32)), np.int32)
        if adjust is not None:
            assert key.adjust_tokens in capacity.adjust_tokens
            for array in (adjust.token_ids, adjust.counts, adjust.seen, adjust.bias):
                assert array.shape == (key.batch, key.adjust_tokens)
            for array in (adjust.repetition, adjust.frequency, adjust.presence):
                assert (array.shape, array.dtype) == ((key.batch,), np.float32)
        assert key.is_scored == (step.scoring is not None)
        if step.scoring is not None:
            assert key.family == "prefill"
            assert step.scoring.targets.shape == (key.batch, key.tokens)
            is_padding = np.arange(key.tokens) >= step.num_valid[:, None]
            assert (step.scoring.targets[is_padding] == -1).all(), "a token that is not there is scored"
        assert step.wanted_ids is None or step.wanted_ids.shape[0] == key.batch

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


def _nothing(*shape: int) -> Floats:
    return np.full(shape, np.nan, np.float32)


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


def _check_numbers(numbers: Ints, size: int) -> None:
    assert numbers.dtype == np.int64
    assert ((numbers > 0) & (numbers < size)).all(), f"{numbers.tolist()}: numbers are from 1 to {size - 1}"
