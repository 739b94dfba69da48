"""Which choices run in the next step, and the memory their next tokens need. Core.

Prefill and decode are different graphs and take turns whenever both have rows, so neither waits for more than one
step of the other; how long a prefill step may be beside decoding choices is pace.py's.

A row whose next token needs a mask that has not come, or the token in flight before it, is *held*: it has no place in
the step, and whoever else has rows goes on as if it were not there. Only sampling is held, so a prompt is computed
up to its last chunk meanwhile. A step waits for masks that are expected to come soon (guides.py), and one of rows that
will all be held after it does not go out behind the step that the others are in: they had better run together.
"""

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter

import numpy as np
from attrs import define

from graphs.keys import Family
from graphs.step import Capacity
from stages.messages import Finish
from stages.scheduler.budget import Budget, Pressure
from stages.scheduler.choice import Choice
from stages.scheduler.compose import DecodeRows, Row
from stages.scheduler.lifecycle import Phase
from stages.scheduler.memory import Memory
from stages.scheduler.pace import Pace
from stages.scheduler.progress import Flags
from stages.scheduler.roster import Roster

OUT_OF_MEMORY = "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."


@define(eq=False)
class Rows:
    """Composes a step's rows from the roster."""

    capacity: Capacity
    budget: Budget
    memory: Memory
    pressure: Pressure
    roster: Roster
    pace: Pace | None = None

    def next_family(self, last: Family) -> Family | None:
        """Return the family whose turn it is after `last`, None when nothing runs or that had better wait for masks."""
        can_prefill, can_decode = bool(self.roster.prefilling), bool(self.roster.decoding)
        awaited: set[Family] = set()
        if self.memory.progress.num_edited:
            awaited = self._awaited()
            can_prefill = "prefill" in awaited or (can_prefill and self._can_prefill())
            can_decode = "decode" in awaited or (can_decode and not self._held_decoding().all())
        if can_prefill and can_decode:
            family: Family = "decode" if last == "prefill" else "prefill"
        elif can_prefill or can_decode:
            family = "prefill" if can_prefill else "decode"
        else:
            return None
        return None if family in awaited else family

    def _awaited(self) -> set[Family]:
        """Return the families whose next step had better wait for masks that come soon."""
        expected = self.roster.guides.expected
        if not expected:
            return set()
        chunk_tokens, _ = self._prefill_limits()
        held = self.memory.progress.held(np.fromiter(map(attrgetter("slot"), expected), np.int64, len(expected)))
        sampling = (choice for choice in compress(expected, held.tolist()) if _samples(choice, chunk_tokens))
        return {"decode" if choice.phase is Phase.DECODING else "prefill" for choice in sampling}

    def _held_decoding(self) -> Flags:
        return self.memory.progress.held(self.roster.decoding.rows().slots)

    def of(self, family: Family, is_ahead: bool) -> Sequence[Row] | DecodeRows:
        """Return the rows of a step; none when finding memory ended them, or while it must wait for a flight.

        is_ahead says that a step is in flight: then nothing is retracted and nothing ended.
        """
        return self._prefill_rows() if family == "prefill" else self._decode_rows(is_ahead)

    # --- prefill ------------------------------------------------------------------------------------------------------

    def _prefill_rows(self) -> list[Row]:
        """Return the oldest prompt's next chunk, and others' that need no longer a step than it does.

        None while the oldest has a chunk in flight: nobody overtakes it.
        """
        rows: list[Row] = []
        chunk_tokens, max_rows = self._prefill_limits()
        for choice in self.roster.prefilling:
            if choice.num_flights:
                if not rows:
                    return []
                continue
            num_valid = min(chunk_tokens, choice.num_tokens - choice.num_computed)
            if self._is_held(choice, num_valid):
                continue
            if not rows:
                bucket_tokens = next(size for size in self.capacity.buckets.tokens if size >= num_valid)
            if num_valid <= bucket_tokens:
                rows.append(self._prefill_row(choice, num_valid))
            if len(rows) == max_rows:
                break
        return rows

    def _can_prefill(self) -> bool:
        chunk_tokens, _ = self._prefill_limits()
        return any(choice.num_flights or not self._is_held(choice, chunk_tokens) for choice in self.roster.prefilling)

    def _is_held(self, choice: Choice, num_valid: int) -> bool:
        """Return whether the next row of a choice, num_valid tokens of its prompt at most, may not be sampled yet."""
        progress = self.memory.progress
        if not progress.is_edited[choice.slot]:
            return False
        return _samples(choice, num_valid) and bool(progress.held(np.array([choice.slot]))[0])

    def _prefill_limits(self) -> tuple[int, int]:
        chunk_tokens, max_rows = self.budget.chunk_tokens, self.budget.max_prefill_rows
        if self.pace is None or not self.roster.decoding:
            return chunk_tokens, max_rows
        paced_tokens, paced_rows = self.pace.limits()
        return min(chunk_tokens, paced_tokens), min(max_rows, paced_rows)

    def _prefill_row(self, choice: Choice, num_valid: int) -> Row:
        pages, slots = self.memory.first_copies(choice)
        captures = self.memory.take_captures(choice, choice.num_computed + num_valid)
        if captures:
            self.roster.sharing.capturing(choice, tuple(capture.position for capture in captures))
        return Row(choice, choice.num_computed, num_valid, pages, slots, captures)

    # --- decode -------------------------------------------------------------------------------------------------------

    def _decode_rows(self, is_ahead: bool) -> DecodeRows:
        """Return a row for each decoding choice, by turns when they are more than a step holds; none without memory."""
        decoding, progress = self.roster.decoding, self.memory.progress
        chosen = decoding.rows()
        goes_on = progress.goes_on(chosen.slots)
        if progress.num_edited:
            held = progress.held(chosen.slots)
            goes_on &= ~held
            if is_ahead and (held & (progress.num_flights[chosen.slots] > 0)).any():
                # Those in flight and these would never meet again.
                goes_on &= not progress.is_led(chosen.slots[goes_on]).all()
        if len(chosen) > self.budget.max_decode_rows:
            goes_on[np.flatnonzero(goes_on)[self.budget.max_decode_rows :]] = False
        chosen = chosen.where(goes_on)
        lacking = list(compress(chosen.choices, self.memory.lacks_pages(chosen.slots).tolist()))
        if lacking and is_ahead and not self._grow_ahead(lacking):
            return DecodeRows((), chosen.slots[:0])
        if lacking and not is_ahead:
            for choice in sorted(lacking, key=lambda choice: (-choice.rank, choice.number)):
                if choice.phase is Phase.DECODING:
                    self._grow(choice)
            chosen = chosen.where(np.array([choice.phase is Phase.DECODING for choice in chosen.choices], np.bool_))
        if len(chosen) < len(decoding):
            decoding.to_back(chosen.choices)
        # Each reads its newest token, which may still be in flight.
        start = progress.num_ahead(chosen.slots) - 1
        return DecodeRows(chosen.choices, chosen.slots, start, self.memory.shadow(chosen.slots, start))

    def _grow(self, choice: Choice) -> None:
        """Give a decoding choice the page of its newest token, retracting others until there is one."""
        while self.memory.lacks_page(choice):
            if not self.budget.can_ever_fit(choice.num_tokens):
                self.roster.end(choice, Finish("abort", message=OUT_OF_MEMORY, status=500, cause="out_of_memory"))
                return
            if self.memory.num_room_pages:
                self.memory.add_page(choice)
                continue
            if self.roster.num_running == 1 and self.roster.sessions.unpin_oldest():
                continue
            victim = max(self.roster.running(), key=_retraction_order)
            self.roster.retract(victim)
            self.pressure.retracted(self.roster.running())
            self.roster.outbox.counts["retractions"] += 1
            if victim is choice:
                return

    def _grow_ahead(self, lacking: Sequence[Choice]) -> bool:
        """Give each choice the page it lacks; returns False, giving none, where it takes a retraction or an end."""
        if len(lacking) > self.memory.num_room_pages:
            return False
        if not all(self.budget.can_ever_fit(choice.num_tokens + choice.num_flights) for choice in lacking):
            return False
        for choice in lacking:
            self.memory.add_page(choice)
        return True


def _samples(choice: Choice, num_valid: int) -> bool:
    """Return whether the next row of a running choice, num_valid tokens of its prompt at most, is sampled from."""
    return choice.phase is Phase.DECODING or choice.num_computed + num_valid >= choice.num_tokens


def _retraction_order(choice: Choice) -> tuple[int, int, int, int]:
    """Return a key whose greatest is retracted first: worst priority, fewest generated, longest prompt, newest."""
    return -choice.rank, -len(choice.generated), len(choice.submit.prompt_ids), choice.number
