"""Pages and slots of one device: who holds what, what fits, and what is kept for later requests. Core.

Every number has one owner: a choice, the prefix tree, a flight (the destination of a capture) or a transfer. A choice
reads the pages of the tree's node it resumed from and owns the ones it writes; what it computed goes to the tree with a
snapshot, in flight (`land`) or when it leaves (`release`), and then it goes on reading them there.

Turn end. A decoding choice has a second slot, its shadow: whenever its next token begins a pooling group of the
indexer, the step first copies its state there. A choice that leaves donates its own slot if its state ends a group and
else its shadow, so that the next turn of a conversation computes its new tokens and at most one open group. With stop
strings it has two shadows: what was sampled behind the stop is no part of the next turn. An answer that ends no group,
three tokens at most, leaves nothing of its own; then the next turn resumes at the prompt's last grid point.

A choice whose tokens end in mid-page shares that page with nobody: who resumes there copies it first, a capture there
copies it last.

# Invariant: tree's snapshots and captures in flight are max_snapshots at most, so a running row always finds a slot.
"""

from collections.abc import Callable, Iterable

import numpy as np
from attrs import define, field

from graphs.step import Capacity, Ints, pairs
from stages.scheduler.budget import CHUNK_ALIGN_TOKENS, Budget, Pressure, fills_limit
from stages.scheduler.choice import Capture, Choice, Shadow
from stages.scheduler.compose import Pair
from stages.scheduler.nodes import Node
from stages.scheduler.pages import Pool
from stages.scheduler.prefix_tree import PrefixTree
from stages.scheduler.progress import Flags, Progress
from stages.scheduler.slots import SlotTable
from stages.scheduler.tiers import Freed

_NO_PAIRS = pairs()


@define(eq=False)
class Memory:
    """Gives choices their slot and pages and takes them back; the slot table always says the same as the choices."""

    capacity: Capacity
    budget: Budget
    pressure: Pressure
    tree: PrefixTree | None = None
    # A turn's end is kept at a multiple of this.
    turn_end_tokens: int = CHUNK_ALIGN_TOKENS
    # Whether what a conversation has outgrown goes first; else only the eviction policy decides.
    knows_turns: bool = True
    pages: Pool = field(init=False)
    slots: Pool = field(init=False)
    table: SlotTable = field(init=False)
    progress: Progress = field(init=False)
    num_live_slots: int = 0
    num_coming_snapshots: int = 0
    # The host tier's numbers come back with the device's.
    on_freed: Callable[[Freed], None] | None = None

    def __attrs_post_init__(self) -> None:
        self.pages = Pool(self.capacity.num_pages)
        self.slots = Pool(self.capacity.num_slots)
        self.table = SlotTable(self.capacity.num_slots, self.capacity.buckets.pages[-1])
        self.progress = Progress(self.capacity.num_slots)

    # --- what fits ----------------------------------------------------------------------------------------------------

    @property
    def num_room_pages(self) -> int:
        """Return how many pages are free or would be given by the tree."""
        return self.pages.num_free + (self.tree.num_evictable_pages if self.tree is not None else 0)

    @property
    def has_slot(self) -> bool:
        """Return whether a slot is free or would be given by the tree."""
        return bool(self.slots.num_free or (self.tree is not None and self.tree.num_evictable_snapshots))

    def foreseen_pages(self, choice: Choice) -> int:
        """Return the pages `choice` needs now and later, tokens in flight counted."""
        ahead, share = choice.num_flights, self.pressure.share_of(choice)
        return self.budget.foreseen_pages(choice.num_tokens + ahead, choice.num_remaining - ahead, share)

    def reserved_pages(self) -> int:
        """Return the pages to keep free for what the running choices will still write: foreseen_pages of them all."""
        progress = self.progress
        slots = np.flatnonzero(progress.is_running)
        num_ahead = progress.num_ahead(slots)
        share = np.where(progress.fills_limit[slots], 1.0, self.pressure.share)
        foreseen = self.budget.foreseen_pages_of(num_ahead, progress.end_tokens[slots] - num_ahead, share)
        return int(np.maximum(0, foreseen - progress.num_pages[slots]).sum())

    def lacks_pages(self, slots: Ints) -> Flags:
        """Return of which of slots[N] the newest token, in flight or known, has no page yet."""
        return self.progress.num_pages[slots] * self.budget.page_size_tokens < self.progress.num_ahead(slots)

    def lacks_page(self, choice: Choice) -> bool:
        """Return whether the choice's newest token, in flight or known, has no page yet."""
        return len(choice.pages) < self.budget.pages_for(choice.num_tokens + choice.num_flights)

    # --- giving -------------------------------------------------------------------------------------------------------

    def hold(self, choice: Choice, resume: Node | None) -> None:
        """Give `choice` a slot and the pages of all its tokens, those up to `resume` from the tree.

        Raises IndexError when they are not there: has_slot and num_room_pages tell, with `resume` locked.
        """
        start = 0
        if resume is not None and self.tree is not None:
            self.tree.touch(resume)
            self.tree.lock(resume)
            self.tree.lock_snapshot(resume)
            choice.node = choice.source = choice.origin = resume
            choice.pages = self.tree.path_pages(resume)
            choice.borrowed = set(choice.pages)
            start = resume.end
        choice.num_computed = start
        choice.pages += self.take_pages(self.budget.pages_for(choice.num_tokens) - len(choice.pages))
        choice.slot, choice.progress = self._take_slot(), self.progress
        self.num_live_slots += 1
        self.table.fill(choice.slot, choice.submit, choice.pages)
        self._begin_progress(choice, start)

    def _begin_progress(self, choice: Choice, start: int) -> None:
        progress, slot = self.progress, choice.slot
        progress.num_tokens[slot] = choice.num_tokens
        progress.end_tokens[slot] = len(choice.submit.prompt_ids) + choice.submit.max_new_tokens
        progress.num_written[slot] = start
        progress.num_pages[slot] = len(choice.pages)
        progress.is_running[slot] = True
        progress.fills_limit[slot] = fills_limit(choice.submit)
        progress.max_shadows[slot] = 2 if choice.submit.has_text_stops else 1

    def first_copies(self, choice: Choice) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
        """Return the pages and slots to copy before the first row of a choice that resumes at its source."""
        source = choice.source
        if source is None or choice.num_written != source.end:
            return (), ()
        snapshot = source.device.snapshot
        assert snapshot is not None, "the source is locked"
        pages: tuple[Pair, ...] = ()
        if snapshot.tail_page is not None:
            pages = ((snapshot.tail_page, choice.pages[source.end // self.budget.page_size_tokens]),)
        return pages, ((snapshot.slot, choice.slot),)

    def add_page(self, choice: Choice) -> None:
        """Give `choice` one more page; raises IndexError when there is none."""
        (page,) = self.take_pages(1)
        self.table.add_page(choice.slot, len(choice.pages), page)
        choice.pages.append(page)
        self.progress.num_pages[choice.slot] += 1

    def take_pages(self, count: int) -> list[int]:
        """Return `count` pages, evicting what is needed; raises IndexError when there are fewer."""
        lacking = count - self.pages.num_free
        if lacking > 0 and self.tree is not None:
            self.give_back(self.tree.evict_pages(lacking))
        return self.pages.take(count)

    def give_back(self, freed: Freed) -> None:
        """Take back what the tree let go of."""
        self.pages.give_back(freed.pages)
        self.slots.give_back(freed.slots)
        if self.on_freed is not None:
            self.on_freed(freed)

    def _take_slot(self) -> int:
        if not self.slots.num_free and self.tree is not None:
            self.give_back(self.tree.evict_snapshot())
        (slot,) = self.slots.take(1)
        return slot

    def take_snapshot_slot(self) -> int | None:
        """Return a slot for one more snapshot of the tree, evicting another where there are enough, or None."""
        if self.tree is None or not self._has_snapshot_room():
            return None
        return self._take_slot() if self.slots.num_free > self._num_coming() else None

    def _has_snapshot_room(self) -> bool:
        """Return whether the tree may hold one more snapshot, evicting one if it takes that."""
        assert self.tree is not None
        while self.tree.num_snapshots + self.num_coming_snapshots >= self.budget.max_snapshots:
            if not self.budget.max_snapshots or not self.tree.num_evictable_snapshots:
                return False
            self.give_back(self.tree.evict_snapshot())
        return True

    def _num_coming(self) -> int:
        """Return how many slots to leave for rows that may still be let in."""
        return max(0, self.budget.max_rows - self.num_live_slots)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def shadow(self, slots: Ints, positions: Ints) -> Ints:
        """Return the copies [M, 2] that keep the states worth it of slots[N] before they read token positions[N]."""
        if self.tree is None:
            return _NO_PAIRS
        is_kept = positions % self.turn_end_tokens == 0
        slots, positions = slots[is_kept], positions[is_kept]
        if not len(slots):
            return _NO_PAIRS
        lacking = self.progress.lacking_shadows(slots).tolist()
        num_new = min(len(lacking), max(0, self.slots.num_free - self._num_coming()))
        for slot, shadow in zip(lacking, self.slots.take(num_new), strict=False):
            self.progress.add_shadow(slot, shadow)
        return self.progress.take_shadows(slots, positions)

    def take_captures(self, choice: Choice, end: int) -> tuple[Capture, ...]:
        """Return the snapshots to take while `choice` is computed up to `end`; one there is no room for is left out."""
        captures = []
        while choice.captures and choice.captures[0] <= end:
            position = choice.captures.pop(0)
            slot = self.take_snapshot_slot()
            if slot is None:
                continue
            has_tail = position % self.budget.page_size_tokens > 0
            if has_tail and not self.num_room_pages:
                self.slots.give_back([slot])
                continue
            captures.append(Capture(position, slot, self.take_pages(1)[0] if has_tail else None))
            self.num_coming_snapshots += 1
        return tuple(captures)

    def land(self, choice: Choice, captures: Iterable[Capture]) -> None:
        """Put the snapshots of a step that is done into the tree; its copies are done too."""
        assert self.tree is not None
        if choice.source is not None:
            self.tree.unlock_snapshot(choice.source)
            choice.source = None
        for capture in captures:
            if self._insert(choice, capture.position, capture.slot, capture.tail_page):
                self.num_coming_snapshots -= 1
            else:
                self.drop((capture,))

    def drop(self, captures: Iterable[Capture]) -> None:
        """Take back what captures were given that come to nothing."""
        for capture in captures:
            self.num_coming_snapshots -= 1
            self.slots.give_back([capture.slot])
            self.pages.give_back([] if capture.tail_page is None else [capture.tail_page])

    def _insert(
        self, choice: Choice, position: int, slot: int, tail_page: int | None, turn_start: int | None = None
    ) -> bool:
        """Give the tree a snapshot and the pages under it; returns False when it has one already."""
        assert self.tree is not None
        ids = choice.ids()[:position]
        inserted = self.tree.insert(
            choice.submit.namespace, ids, choice.pages, slot, tail_page, choice.rank, choice.num_inserted, turn_start
        )
        if self.knows_turns and inserted.has_taken_snapshot:
            self._rank(choice, inserted.node, turn_start)
        choice.num_inserted = position
        choice.borrowed.update(inserted.taken)
        self.tree.lock(inserted.node)
        if choice.node is not None:
            self.tree.unlock(choice.node)
        choice.node = inserted.node
        return inserted.has_taken_snapshot

    def _rank(self, choice: Choice, node: Node, turn_start: int | None) -> None:
        """Tell the tree which snapshots a new one at `node` leaves without much worth."""
        assert self.tree is not None
        self.tree.touch_forks(node)
        # Before a turn's prompt, the prompt's end and the answer's serve whoever comes back.
        if turn_start is None:
            self.tree.supersede(node)
        elif choice.leaves_answers:
            self.tree.abandon(node)
        elif choice.node is not None:
            self.tree.supersede(choice.node)

    # --- taking back --------------------------------------------------------------------------------------------------

    def release(self, choice: Choice, num_kept: int | None = None) -> Node | None:
        """Take back whatever `choice` holds, offering its state at num_kept tokens or before to the tree.

        Returns the node where its next turn would resume.
        """
        node = None
        if choice.slot:
            states = [Shadow(choice.slot, choice.num_written), *choice.shadows]
            self.num_live_slots -= 1
            donated = self._offer(choice, num_kept, states) if num_kept is not None else 0
            self.table.clear(choice.slot)
            self.progress.clear(choice.slot)
            self.slots.give_back([state.slot for state in states if state.slot != donated])
        self.pages.give_back([page for page in choice.pages if page not in choice.borrowed])
        if self.tree is not None:
            if choice.source is not None:
                self.tree.unlock_snapshot(choice.source)
            if (node := choice.node) is not None:
                self.tree.unlock(node)
        choice.slot, choice.pages, choice.borrowed = 0, [], set()
        choice.node = choice.source = choice.origin = None
        return node

    def leaves_at(self, choice: Choice, num_kept: int) -> int:
        """Return how many tokens the state has read that `choice` will offer once its steps in flight are done."""
        states = [Shadow(choice.slot, choice.num_written), *choice.shadows]
        best = self._latest(states, num_kept) if self.tree is not None else None
        return best.at if best is not None else 0

    def _latest(self, states: list[Shadow], num_kept: int) -> Shadow | None:
        usable = [state for state in states if state.at <= num_kept and state.at % self.turn_end_tokens == 0]
        return max(usable, key=lambda state: state.at, default=None)

    def _offer(self, choice: Choice, num_kept: int, states: list[Shadow]) -> int:
        """Give the tree the latest of `states` within num_kept tokens, returning its slot, or 0 if it takes none."""
        if self.tree is None:
            return 0
        best = self._latest(states, num_kept)
        known = choice.node.end if choice.node is not None else 0
        if best is None or best.at <= known or not self._has_snapshot_room():
            return 0
        size = self.budget.page_size_tokens
        tail_page = choice.pages[best.at // size] if best.at % size else None
        if not self._insert(choice, best.at, best.slot, tail_page, len(choice.prompt)):
            return 0
        if tail_page is not None:
            choice.borrowed.add(tail_page)
        return best.slot
