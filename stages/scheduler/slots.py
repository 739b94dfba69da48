"""What a step needs of each slot, kept as arrays so that a step of any rows is one gather. Core."""

import numpy as np
from attrs import define, field

from graphs.step import Floats, Ints, SamplingRows
from stages.messages import Submit
from stages.scheduler.progress import Flags

_SEED_BITS = (1 << 63) - 1


@define(eq=False)
class SlotTable:
    """Page table [S, P] and sampling parameters [S] by slot.

    # Invariant: slot 0 and every free slot read as padding: pages 0, greedy, filters off.
    """

    num_slots: int
    max_pages: int
    _pages: Ints = field(init=False)
    _temperature: Floats = field(init=False)
    _top_k: Ints = field(init=False)
    _top_p: Floats = field(init=False)
    _min_p: Floats = field(init=False)
    _seed: Ints = field(init=False)
    # What a row asks of a graph's last part.
    _is_drawn: Flags = field(init=False)
    _wants_best: Flags = field(init=False)
    _wants_ids: Flags = field(init=False)
    # How many slots want the logprobs of ids that they name.
    num_wanting: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self._pages = np.zeros((self.num_slots, self.max_pages), np.int64)
        self._temperature = np.zeros(self.num_slots, np.float32)
        self._top_k = np.zeros(self.num_slots, np.int64)
        self._top_p = np.ones(self.num_slots, np.float32)
        self._min_p = np.zeros(self.num_slots, np.float32)
        self._seed = np.zeros(self.num_slots, np.int64)
        self._is_drawn = np.zeros(self.num_slots, np.bool_)
        self._wants_best = np.zeros(self.num_slots, np.bool_)
        self._wants_ids = np.zeros(self.num_slots, np.bool_)

    def fill(self, slot: int, submit: Submit, pages: list[int]) -> None:
        """Give `slot` the sampling of `submit` and its first pages."""
        sampling = submit.sampling
        self._pages[slot, : len(pages)] = pages
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._seed[slot] = submit.seed & _SEED_BITS
        self._is_drawn[slot] = sampling.temperature > 0
        self._wants_best[slot] = submit.num_top_logprobs > 0
        self._wants_ids[slot] = bool(submit.logprob_token_ids)
        self.num_wanting += bool(submit.logprob_token_ids)

    def add_page(self, slot: int, index: int, page: int) -> None:
        """Make `page` the slot's page number `index`."""
        self._pages[slot, index] = page

    def clear(self, slot: int) -> None:
        """Make `slot` read as padding again."""
        self._pages[slot] = 0
        self._temperature[slot] = 0
        self._top_k[slot] = 0
        self._top_p[slot] = 1
        self._min_p[slot] = 0
        self._seed[slot] = 0
        self.num_wanting -= bool(self._wants_ids[slot])
        self._is_drawn[slot] = self._wants_best[slot] = self._wants_ids[slot] = False

    def page_table(self, slots: Ints, num_pages: int) -> Ints:
        """Return the first num_pages pages of slots[B], giving a copy [B, P]."""
        return self._pages[slots, :num_pages]

    def variant(self, slots: Ints) -> str:
        """Return the variant that serves slots[B], all of which sample."""
        return variant_name(bool(self._is_drawn[slots].any()), bool(self._wants_best[slots].any()))

    def sampling(self, slots: Ints) -> SamplingRows:
        """Return the sampling parameters of slots[B], each a copy [B]."""
        return SamplingRows(
            self._temperature[slots], self._top_k[slots], self._top_p[slots], self._min_p[slots], self._seed[slots]
        )


def variant_name(is_drawn: bool, wants_best: bool) -> str:
    """Return the variant for rows that are drawn or greedy, with their best alternatives or without."""
    base = "sample" if is_drawn else "greedy"
    return f"{base}_logprobs" if wants_best else base
