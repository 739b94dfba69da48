"""How far the choice of each slot has come, kept as arrays so that a step of any rows is a few vector operations. Core.

What a step changes for all its rows alike lives here and nowhere else: the counts of tokens, of steps in flight, of
pages, and the shadows. `Choice` reads its own entries from here for as long as it has a slot.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import define, field

from graphs.step import Ints

Flags = npt.NDArray[np.bool_]

MAX_SHADOWS: Final = 2
_NEVER = np.iinfo(np.int64).max


@define(eq=False)
class Progress:
    """Counts [S] by slot, and shadows [S, MAX_SHADOWS].

    # Invariant: slot 0 and every free slot read as nothing: zero everywhere.
    """

    num_slots: int
    # Tokens known, prompt and generated; those known at its end.
    num_tokens: Ints = field(init=False)
    end_tokens: Ints = field(init=False)
    # Steps given to the device and not done yet that read or write the slot or its pages. Each brings one token at
    # most; of a decoding choice each brings one.
    num_flights: Ints = field(init=False)
    # How many tokens the slot's state has read once every step in flight is done.
    num_written: Ints = field(init=False)
    num_pages: Ints = field(init=False)
    # Whether its choice has not ended.
    is_running: Flags = field(init=False)
    # Whether nothing but its limit can end it (budget.py).
    fills_limit: Flags = field(init=False)
    # Whether its tokens need masks. Tokens before number free_until need none; mask_for is the number of the one whose
    # mask is known, 0 for none; both count from the prompt's first.
    is_ruled: Flags = field(init=False)
    free_until: Ints = field(init=False)
    mask_for: Ints = field(init=False)
    # Whether its next token depends on which its newest was, besides what the device knows of that: penalties.
    needs_newest: Flags = field(init=False)
    # Whether its logits are edited in any way, and how many slots' are.
    is_edited: Flags = field(init=False)
    num_edited: int = field(init=False, default=0)
    # A second slot of a decoding choice, 0 for none: the state as it was after so many tokens, flights landed.
    shadow_slots: Ints = field(init=False)
    shadow_at: Ints = field(init=False)
    max_shadows: Ints = field(init=False)

    def __attrs_post_init__(self) -> None:
        for name in ("num_tokens", "end_tokens", "num_flights", "num_written", "num_pages", "max_shadows"):
            setattr(self, name, np.zeros(self.num_slots, np.int64))
        for name in ("free_until", "mask_for"):
            setattr(self, name, np.zeros(self.num_slots, np.int64))
        for name in ("is_running", "fills_limit", "is_ruled", "needs_newest", "is_edited"):
            setattr(self, name, np.zeros(self.num_slots, np.bool_))
        self.shadow_slots = np.zeros((self.num_slots, MAX_SHADOWS), np.int64)
        self.shadow_at = np.zeros((self.num_slots, MAX_SHADOWS), np.int64)

    def clear(self, slot: int) -> None:
        """Make `slot` read as nothing again."""
        for column in (self.num_tokens, self.end_tokens, self.num_flights, self.num_written, self.num_pages):
            column[slot] = 0
        self.is_running[slot] = self.fills_limit[slot] = False
        if self.is_edited[slot]:
            self.num_edited -= 1
            self.is_edited[slot] = self.is_ruled[slot] = self.needs_newest[slot] = False
            self.free_until[slot] = self.mask_for[slot] = 0
        self.shadow_slots[slot] = self.shadow_at[slot] = self.max_shadows[slot] = 0

    # --- steps --------------------------------------------------------------------------------------------------------

    def launched(self, slots: Ints, ends: Ints) -> None:
        """Note a step that reads the tokens of slots[N] up to ends[N]."""
        self.num_flights[slots] += 1
        self.num_written[slots] = ends

    def landed(self, slots: Ints) -> None:
        """Note that a step of slots[N] is done."""
        self.num_flights[slots] -= 1

    def goes_on(self, slots: Ints) -> Flags:
        """Return which of the decoding slots[N] have more to run: not those whose token in flight is their last."""
        is_short: Flags = self.num_ahead(slots) < self.end_tokens[slots]
        return is_short

    def num_ahead(self, slots: Ints) -> Ints:
        """Return how many tokens of slots[N] are known or in flight."""
        num_ahead: Ints = self.num_tokens[slots] + self.num_flights[slots]
        return num_ahead

    # --- edits --------------------------------------------------------------------------------------------------------

    def edit(self, slot: int, *, is_ruled: bool, needs_newest: bool) -> None:
        """Note that the logits of `slot` are edited."""
        self.num_edited += 1
        self.is_edited[slot] = True
        self.is_ruled[slot], self.needs_newest[slot] = is_ruled, needs_newest

    def held(self, slots: Ints) -> Flags:
        """Return which of slots[N] wait, to have a token sampled, for its mask or for the tokens before it."""
        number = self.num_ahead(slots)
        lacks_mask = self.is_ruled[slots] & (number >= self.free_until[slots]) & (number != self.mask_for[slots])
        held: Flags = lacks_mask | self.needs_newest[slots] & (self.num_flights[slots] > 0)
        return held

    def is_led(self, slots: Ints) -> Flags:
        """Return which of slots[N] wait after every token, to have the next one sampled."""
        needs_mask = self.is_ruled[slots] & (self.num_ahead(slots) >= self.free_until[slots])
        is_led: Flags = needs_mask | self.needs_newest[slots]
        return is_led

    # --- shadows ------------------------------------------------------------------------------------------------------

    def lacking_shadows(self, slots: Ints) -> Ints:
        """Return those of slots[N] that have fewer shadows than they are to have."""
        lacking: Ints = slots[(self.shadow_slots[slots] > 0).sum(axis=1) < self.max_shadows[slots]]
        return lacking

    def add_shadow(self, slot: int, shadow: int) -> None:
        """Give `slot` one more shadow, which holds nothing yet."""
        self.shadow_slots[slot, int(np.flatnonzero(self.shadow_slots[slot] == 0)[0])] = shadow

    def take_shadows(self, slots: Ints, positions: Ints) -> Ints:
        """Return the copies [N, 2] that keep slots[N] in their oldest shadow before they read token positions[N]."""
        shadows = self.shadow_slots[slots]
        oldest = np.where(shadows > 0, self.shadow_at[slots], _NEVER).argmin(axis=1)
        chosen = shadows[np.arange(len(slots)), oldest]
        has_one = chosen > 0
        slots, oldest = slots[has_one], oldest[has_one]
        self.shadow_at[slots, oldest] = positions[has_one]
        return np.stack((slots, chosen[has_one]), axis=1)


# Of a choice that has no slot.
NOTHING: Final = Progress(1)
