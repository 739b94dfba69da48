"""The prefix cache's second tier: what is copied to host memory and back, beside the steps. Core.

Backup. The newest snapshot that is on the device only is copied with the pages on its way, one copy at a time; what was
copied can be evicted from the device at once, and comes back from there. Nothing waits for a backup: what is evicted
before its turn is lost. A full host makes room only with what would be evicted before the newcomer, and a snapshot is
tried once a use, so that an idle engine comes to rest though host memory holds fewer than the device.

Fetch. A choice about to be let in whose prompt reaches further in host memory than on the device is deferred, and
others go on, until pages and snapshot are back; then it resumes from them as from any others. One fetch a choice: if
they were evicted again before it got in, it computes.

# Invariant: what a transfer reads or writes is locked in the tree, or owned by the transfer, until it is done.
"""

from attrs import define, field

from graphs.step import Capacity, Transfer, pairs
from stages.messages import ChoiceKey, StartTransfer
from stages.scheduler.choice import Choice
from stages.scheduler.matching import Match
from stages.scheduler.memory import Memory
from stages.scheduler.nodes import Node, Snapshot
from stages.scheduler.pages import Pool
from stages.scheduler.prefix_tree import PrefixTree
from stages.scheduler.sharing import MIN_SHARED_TOKENS, Deferrable
from stages.scheduler.tiers import Freed, Gap

# How many candidates are looked at for one that fits the host.
MAX_CANDIDATES = 8


@define(eq=False)
class Copy:
    """One transfer under way; `pages` and `snapshot` are its destinations, `keys` the choices that wait for it."""

    node: Node
    to_host: bool
    gap: Gap
    pages: list[int]
    snapshot: Snapshot | None
    keys: list[ChoiceKey] = field(factory=list)


@define(eq=False)
class HostTier:
    """Owns the numbers of the host's pages and slots, and the transfers."""

    capacity: Capacity
    memory: Memory
    tree: PrefixTree
    waiting: Deferrable
    pages: Pool = field(init=False)
    slots: Pool = field(init=False)
    # Whether there is a later to save for.
    backs_up: bool = True
    _copies: dict[int, Copy] = field(factory=dict)
    _to_start: list[StartTransfer] = field(factory=list)
    _num_started: int = 0
    # Of a choice that waits: which tokens were fetched for it.
    _fetched: dict[ChoiceKey, range] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.pages = Pool(self.capacity.num_host_pages)
        self.slots = Pool(self.capacity.num_host_slots)

    @property
    def is_busy(self) -> bool:
        """Return whether a transfer is under way."""
        return bool(self._copies)

    def start(self) -> list[StartTransfer]:
        """Return the transfers to begin now, a backup among them if none is under way."""
        if self.backs_up and not any(copy.to_host for copy in self._copies.values()):
            self._back_up()
        started, self._to_start = self._to_start, []
        return started

    def fetch(self, choice: Choice, match: Match) -> bool:
        """Return whether `choice` had better wait for what host memory holds of its prompt, its fetch begun."""
        key, node = choice.submit.key, match.resume
        begin = match.on_device.end if match.on_device is not None else 0
        if node is None or node.end < begin + MIN_SHARED_TOKENS or key in self._fetched:
            return False
        copy = next((copy for copy in self._copies.values() if copy.node is node and not copy.to_host), None)
        if copy is None:
            copy = self._begin_fetch(node)
        if copy is None:
            return False
        copy.keys.append(key)
        self._fetched[key] = range(begin, node.end)
        self.waiting.defer(key)
        return True

    def fetched_tokens(self, key: ChoiceKey, resumes_at: int) -> int:
        """Return how many of a choice's first resumes_at tokens were fetched for it."""
        fetched = self._fetched.get(key, range(0))
        return max(0, min(fetched.stop, resumes_at) - fetched.start)

    def forget(self, key: ChoiceKey) -> None:
        """Forget a choice that waits no more."""
        self._fetched.pop(key, None)

    def done(self, number: int) -> None:
        """Attach what a transfer has copied; what the tree got from elsewhere meanwhile is given back."""
        copy = self._copies.pop(number)
        attach = self.tree.attach_host if copy.to_host else self.tree.attach_device
        inserted = attach(copy.node, copy.gap.first_page, copy.pages, copy.snapshot)
        self.tree.unlock_snapshot(copy.node)
        taken = set(inserted.taken)
        self._give_back_destinations(
            copy, [page for page in copy.pages if page not in taken], inserted.has_taken_snapshot
        )
        if not copy.to_host:
            self.tree.touch(copy.node)
        for key in copy.keys:
            self.waiting.undefer(key)

    def give_back(self, freed: Freed) -> None:
        """Take back what the tree let go of in host memory."""
        self.pages.give_back(freed.host_pages)
        self.slots.give_back(freed.host_slots)

    # -----------------------------------------------------------------------------------------------------------------

    def _back_up(self) -> None:
        for node in self.tree.backup_candidates(MAX_CANDIDATES):
            gap = self.tree.missing_on_host(node)
            assert gap.snapshot is not None, "a candidate has no snapshot on the host"
            num_pages = len(gap.pages) + gap.snapshot.num_pages
            self.tree.tried(node)
            # What is on its way to the host already is not evicted for it.
            self.tree.lock_snapshot(node)
            lacking = num_pages - self.pages.num_free, 1 - self.slots.num_free
            if num_pages < self.pages.size and max(lacking) > 0:
                self.memory.give_back(self.tree.evict_host(max(0, lacking[0]), max(0, lacking[1]), node))
            if num_pages <= self.pages.num_free and self.slots.num_free:
                pages = self.pages.take(num_pages)
                (slot,) = self.slots.take(1)
                self._begin(node, gap, pages, slot, to_host=True)
                return
            self.tree.unlock_snapshot(node)

    def _begin_fetch(self, node: Node) -> Copy | None:
        gap = self.tree.missing_on_device(node)
        num_pages = len(gap.pages) + (gap.snapshot.num_pages if gap.snapshot is not None else 0)
        self.tree.lock_snapshot(node)
        slot = None
        if num_pages <= self.memory.num_room_pages and gap.snapshot is not None:
            slot = self.memory.take_snapshot_slot()
        if slot is None or num_pages > self.memory.num_room_pages:
            if slot is not None:
                self.memory.slots.give_back([slot])
            self.tree.unlock_snapshot(node)
            return None
        self.memory.num_coming_snapshots += 1
        return self._begin(node, gap, self.memory.take_pages(num_pages), slot, to_host=False)

    def _begin(self, node: Node, gap: Gap, pages: list[int], slot: int, *, to_host: bool) -> Copy:
        assert gap.snapshot is not None
        tail_page = pages.pop() if gap.snapshot.tail_page is not None else None
        snapshot = Snapshot(slot, tail_page)
        self._num_started += 1
        copy = self._copies[self._num_started] = Copy(node, to_host, gap, pages, snapshot)
        sources = [*gap.pages, *([] if gap.snapshot.tail_page is None else [gap.snapshot.tail_page])]
        targets = [*pages, *([] if tail_page is None else [tail_page])]
        page_pairs = list(zip(sources, targets, strict=True))
        slot_pairs = [(gap.snapshot.slot, slot)]
        if not to_host:
            page_pairs = [(target, source) for source, target in page_pairs]
            slot_pairs = [(target, source) for source, target in slot_pairs]
        self._to_start.append(StartTransfer(self._num_started, Transfer(to_host, pairs(page_pairs), pairs(slot_pairs))))
        return copy

    def _give_back_destinations(self, copy: Copy, pages: list[int], has_taken_snapshot: bool) -> None:
        page_pool, slot_pool = (self.pages, self.slots) if copy.to_host else (self.memory.pages, self.memory.slots)
        page_pool.give_back(pages)
        if not copy.to_host:
            self.memory.num_coming_snapshots -= 1
        if not has_taken_snapshot and copy.snapshot is not None:
            slot_pool.give_back([copy.snapshot.slot])
            page_pool.give_back([] if copy.snapshot.tail_page is None else [copy.snapshot.tail_page])
