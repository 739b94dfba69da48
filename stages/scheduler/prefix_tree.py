"""The prefix cache: which computed pages and snapshots exist, for which tokens, and who gives theirs up first. Core.

Theory of operation. The model is hybrid: a prefix can be resumed only where a *snapshot* of the recurrent state was
kept, and needs the latents of all its tokens, which lie in pages of `page_size_tokens`. The cache is one radix tree of
tokens for each namespace. A node covers positions [start, end), anywhere in a page, and owns in a tier
- the *full* pages start // size .. end // size - 1. One that begins in the middle of a page has its own version of it,
  in which the tokens before `start` stand as well; so each index is owned once on the way to any node;
- with a snapshot its slot and, when `end` is inside a page, a *tail page* that is right up to `end` and no further.
Splitting a node deals its pages to the halves. The lower half stays the same object with the same number, so whoever
holds a node (a lock, a transfer) holds the same snapshot and the same prefix for as long as the node exists.

Two tiers, device and host. # Invariant: in each tier a node is there only if its parent is, so leaves leave first; a
snapshot is in a tier only if its node is; a node in no tier does not exist. A node that leaves one tier stays in the
other. A node with neither children nor a snapshot in any tier is of no use to any prompt and goes at once, or, while
locked, as the first thing that can.

Numbers come from the caller and go back to the caller; nobody writes what the tree owns. A caller that goes on using
pages or a snapshot of the tree locks the node; a lock holds in both tiers. A transfer between tiers asks what is
missing (a Gap), holds `lock_snapshot` while it copies, and attaches. What the tree got from elsewhere in the meantime
it does not take.

What a conversation has outgrown goes before all others: its turns leave a chain of superseded snapshots, of which only
the last serves the next turn, and answers that their clients send back without the reasoning are abandoned where they
began. What many conversations begin with stays as recent as the last of them.

Costs, for a path of d nodes: match, insert and watch compare each token once and visit d nodes; lock, touch and
supersede visit d nodes; an eviction is O(log n) each; counts are kept, not computed.
"""

from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from graphs.step import Ints
from stages.scheduler.eviction import Eviction, Key
from stages.scheduler.matching import Match, descend, match_from
from stages.scheduler.nodes import DEVICE, HOST, Ints32, Node, Snapshot, path_to, upwards
from stages.scheduler.radix import Radix
from stages.scheduler.ranking import Ranking
from stages.scheduler.superseding import is_chain, mark_above, unmark_nearest
from stages.scheduler.tiers import Freed, Gap, Tier, gap
from stages.scheduler.watches import Watch, Watches


@frozen
class Inserted:
    """The node that ends where the snapshot is, and which of the caller's numbers are the tree's now."""

    node: Node
    taken: list[int]
    has_taken_snapshot: bool


@define(eq=False)
class PrefixTree:
    """The tree of all namespaces over both tiers."""

    page_size_tokens: int
    eviction: Eviction
    _device: Tier = field(init=False)
    _host: Tier = field(init=False)
    _unsaved: Ranking[Node] = field(init=False, factory=Ranking)
    _radix: Radix = field(init=False)
    _watches: Watches = field(init=False, factory=Watches)
    _num_locks: int = field(init=False, default=0)
    _clock: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self._device = Tier(DEVICE, self.eviction)
        self._host = Tier(HOST, self.eviction)
        self._radix = Radix(self.page_size_tokens)

    @property
    def num_pages(self) -> int:
        """Return how many device pages the tree owns."""
        return self._device.num_pages

    @property
    def num_snapshots(self) -> int:
        """Return how many snapshots are on the device."""
        return self._device.num_snapshots

    @property
    def num_evictable_pages(self) -> int:
        """Return how many device pages evict_pages could free."""
        return self._device.num_evictable_pages

    @property
    def num_evictable_snapshots(self) -> int:
        """Return how many device snapshots evict_snapshot could free."""
        return self._device.num_evictable_snapshots

    @property
    def host(self) -> Tier:
        """Return the host tier, for its counts."""
        return self._host

    def parents(self) -> Ints:
        """Return a view of each node's parent by number [M], right until the tree changes: 0 under a root."""
        return self._radix.parents

    def match(self, namespace: str, tokens: Ints32, limit: int) -> Match:
        """Return how far `tokens` is cached and its deepest resume points up to `limit`; changes nothing."""
        root = self._radix.roots.get(namespace)
        return match_from(root, tokens, limit) if root is not None else Match(0, None, None)

    def path_pages(self, node: Node) -> list[int]:
        """Return the device pages of all full pages before node.end; raises ValueError when some are not there."""
        pages: list[int] = []
        for each in path_to(node):
            if each.device.pages is None:
                raise ValueError(f"node {each.number} is not on the device")
            pages += each.device.pages
        return pages

    def touch(self, node: Node) -> None:
        """Note a use of the snapshot of `node` and of the pages on the way, the deepest newest."""
        path = path_to(node)
        self._stamp(path)
        self._used(node)
        # Elsewhere on the path nothing changed that a ranking looks at: of pages only leaves are ranked.
        self._refresh(*(each for each in path if each is node or each.is_leaf))

    def insert(
        self,
        namespace: str,
        tokens: Ints32,
        pages: Sequence[int],
        slot: int,
        tail_page: int | None,
        priority: int = 0,
        num_counted: int = 0,
        turn_start: int | None = None,
    ) -> Inserted:
        """Add the snapshot after all of `tokens`, with its tail page, and those full pages on the way that lack here.

        num_counted is how many of the tokens the same request inserted before: a node counts one hit a request.
        turn_start says that this is a turn's end, and where its answer began.
        """
        end = len(tokens)
        if not end or (tail_page is None) != (end % self.page_size_tokens == 0):
            raise ValueError(f"{end} tokens cannot come with tail page {tail_page}")
        if len(pages) < end // self.page_size_tokens:
            raise ValueError(f"{end} tokens cannot come with {len(pages)} pages")
        root = self._radix.root(namespace)
        path, num_matched = descend(root, tokens)
        if path and path[-1].end > num_matched:
            lower = path[-1]
            path[-1] = self._radix.split(lower, num_matched)
            self._watches.was_split(path[-1], lower)
            self._refresh(lower)
        grown = None
        if num_matched < end:
            self._clock += 1
            grown = self._radix.grow(path[-1] if path else root, tokens[num_matched:].copy(), self._clock)
            self._uncover(grown.parent)
            path.append(grown)
        taken: list[int] = []
        for each in path:
            if each.device.pages is None:
                own = list(pages[each.start // self.page_size_tokens : each.end // self.page_size_tokens])
                self._device.enter(each, own)
                taken += own
            if each.end > num_counted:
                each.hits += 1
            each.priority = max(each.priority, priority) if each is not grown else priority
            each.history_tokens = max(each.history_tokens, end)
            self._rejoin(each)
        self._stamp(path)
        node = path[-1]
        self._used(node)
        has_taken_snapshot = node.device.snapshot is None
        if has_taken_snapshot:
            self._attach(self._device, node, Snapshot(slot, tail_page))
            node.turn_start = turn_start
        if grown is not None:
            self._watches.grown(grown)
        self._refresh(*path)
        self._watches.tell()
        return Inserted(node, taken, has_taken_snapshot)

    def lock(self, node: Node) -> None:
        """Keep the pages on the way to `node` where they are, in each tier; raises ValueError when it is gone."""
        if node.is_gone:
            raise ValueError(f"node {node.number} is gone")
        self._num_locks += 1
        for each in upwards(node):
            each.locks += 1
            if each.locks == 1:
                self._refresh_pages(each)

    def unlock(self, node: Node) -> None:
        """Take back one lock; raises ValueError when there is none."""
        if not node.locks:
            raise ValueError(f"node {node.number} is not locked")
        self._num_locks -= 1
        for each in upwards(node):
            each.locks -= 1
            if not each.locks:
                self._refresh_pages(each)

    def lock_snapshot(self, node: Node) -> None:
        """Keep the snapshot of `node`, and all that resuming there needs, in each tier that has it."""
        self.lock(node)
        node.snapshot_locks += 1
        self._refresh(node)

    def unlock_snapshot(self, node: Node) -> None:
        """Take back one lock_snapshot; raises ValueError when there is none."""
        if not node.snapshot_locks:
            raise ValueError(f"the snapshot of node {node.number} is not locked")
        node.snapshot_locks -= 1
        self._refresh(node)
        self.unlock(node)

    def evict_pages(self, count: int) -> Freed:
        """Free at least `count` device pages, or what can be freed: unlocked leaves in the eviction's order."""
        freed = Freed()
        self._evict_pages(self._device, count, freed)
        self._watches.tell()
        return freed

    def evict_snapshot(self) -> Freed:
        """Free the device snapshot that goes first, and its node if that is of no use then, if any can go."""
        freed = Freed()
        self._evict_snapshots(self._device, 1, freed)
        self._watches.tell()
        return freed

    def evict_host(self, num_pages: int, num_slots: int, for_node: Node | None = None) -> Freed:
        """Free at least that many host pages and slots, or what can be freed, in the order of the device's tier.

        For a node nothing goes that is worth as much as its snapshot: else two could take turns in one place for ever.
        """
        freed = Freed()
        limit = self._host.worth(for_node) if for_node is not None else None
        self._evict_snapshots(self._host, num_slots, freed, limit)
        self._evict_pages(self._host, num_pages, freed, limit)
        self._watches.tell()
        return freed

    def supersede(self, node: Node) -> None:
        """Mark the snapshots above `node` that lead without a fork to a deeper one as worth least, until used again."""
        self._refresh(*mark_above(node))

    def touch_forks(self, node: Node) -> None:
        """Note a use of the snapshots above `node` that other conversations resume from too."""
        is_fork = False
        for above in upwards(node.parent):
            is_fork = is_fork or not is_chain(above)
            if above.has_snapshot:
                if is_fork:
                    self._clock += 1
                    above.snapshot_access = self._clock
                    self._refresh(above)
                is_fork = False

    def abandon(self, node: Node) -> None:
        """Mark a turn's end that its conversation has left as worth least, until it is used again."""
        node.is_abandoned = True
        # Whoever left it resumes above it.
        self._uncover(node.parent)
        self._refresh(node)

    def clear(self) -> Freed:
        """Forget everything; raises ValueError when something is locked."""
        if self._num_locks:
            raise ValueError(f"the tree has {self._num_locks} locks")
        freed = Freed()
        for node in list(self._radix.nodes())[::-1]:
            self._vanish(node, freed)
        for namespace in list(self._radix.roots):
            self._drop_root(namespace)
        self._watches.tell()
        return freed

    def watch(self, namespace: str, tokens: Ints32, limit: int, on_change: Callable[[Watch], None]) -> Watch:
        """Return a match of `tokens` that stays current until unwatch; on_change hears when its answer changed."""
        watch = Watch(namespace, tokens, limit, on_change)
        self._watches.add(watch, self._radix.root(namespace))
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Stop keeping `watch` current; raises ValueError when it is not watched."""
        self._watches.remove(watch)
        self._drop_root(watch.namespace)

    def backup_candidates(self, limit: int) -> list[Node]:
        """Return up to `limit` nodes whose snapshot is on the device only, the last used first.

        Superseded ones and locked snapshots are left out: a transfer that runs holds the latter. So is what was tried.
        """
        return self._unsaved.smallest(limit)

    def tried(self, node: Node) -> None:
        """Note that a copy of `node` to the host was begun or had no room: it is no candidate until it is used again.

        Else two could make room for each other for ever.
        """
        node.tried_access = node.snapshot_access
        self._refresh(node)

    def missing_on_host(self, node: Node) -> Gap:
        """Return what to copy from the device so that the host could resume at `node`."""
        return gap(node, self._device, self._host, self.page_size_tokens)

    def missing_on_device(self, node: Node) -> Gap:
        """Return what to copy from the host so that the device can resume at `node`."""
        return gap(node, self._host, self._device, self.page_size_tokens)

    def attach_host(self, node: Node, first_page: int, pages: Sequence[int], snapshot: Snapshot | None) -> Inserted:
        """Add copies that fill a gap, `pages` of the indices from first_page on; returns what was taken of them."""
        return self._fill(self._host, node, first_page, pages, snapshot)

    def attach_device(self, node: Node, first_page: int, pages: Sequence[int], snapshot: Snapshot | None) -> Inserted:
        """Add copies that fill a gap, `pages` of the indices from first_page on; returns what was taken of them."""
        return self._fill(self._device, node, first_page, pages, snapshot)

    def _fill(
        self, tier: Tier, node: Node, first_page: int, pages: Sequence[int], snapshot: Snapshot | None
    ) -> Inserted:
        path = path_to(node)
        lacking = [each for each in path if tier.held(each).pages is None]
        begin, end = (
            (lacking[0].start if lacking else node.end) // self.page_size_tokens,
            node.end // self.page_size_tokens,
        )
        if not first_page <= begin <= end <= first_page + len(pages):
            raise ValueError(f"{len(pages)} pages from {first_page} on leave a gap on the way to node {node.number}")
        taken: list[int] = []
        for each in lacking:
            begin, end = (position // self.page_size_tokens - first_page for position in (each.start, each.end))
            own = list(pages[begin:end])
            tier.enter(each, own)
            taken += own
        has_taken_snapshot = snapshot is not None and tier.held(node).snapshot is None
        if snapshot is not None and has_taken_snapshot:
            self._attach(tier, node, snapshot)
            if tier is self._host:
                node.tried_access = node.snapshot_access
        self._refresh(*path)
        self._watches.tell()
        return Inserted(node, taken, has_taken_snapshot)

    def _evict_pages(self, tier: Tier, count: int, freed: Freed, limit: Key | None = None) -> None:
        pages, _ = freed.of(tier.index)
        while len(pages) < count and (leaf := tier.leaves.first()) is not None and tier.goes_before(leaf, limit):
            self._remove_from(tier, leaf, freed)
            self._settle(leaf, freed)

    def _evict_snapshots(self, tier: Tier, count: int, freed: Freed, limit: Key | None = None) -> None:
        _, slots = freed.of(tier.index)
        while len(slots) < count and (node := tier.snapshots.first()) is not None and tier.goes_before(node, limit):
            self._detach(tier, node, freed)
            self._settle(node, freed)

    def _used(self, node: Node) -> None:
        """Note that somebody resumes at `node`, or has just computed it."""
        node.snapshot_access, node.is_superseded = node.last_access, False
        self._rejoin(node)

    def _rejoin(self, node: Node) -> None:
        if node.is_abandoned:
            # It is a way on from above again.
            node.is_abandoned = False
            self._uncover(node.parent)

    def _attach(self, tier: Tier, node: Node, snapshot: Snapshot) -> None:
        is_first = not node.has_snapshot
        tier.attach(node, snapshot)
        if is_first:
            self._watches.gained_snapshot(node)

    def _detach(self, tier: Tier, node: Node, freed: Freed) -> None:
        tier.detach(node, freed)
        if node.has_snapshot:
            return
        if not node.is_superseded:
            # What superseded this node supersedes those above as well; else this was what superseded them.
            self._uncover(node.parent)
        node.is_superseded = False
        self._watches.lost_snapshot(node)

    def _remove_from(self, tier: Tier, node: Node, freed: Freed) -> None:
        if tier.held(node).snapshot is not None:
            self._detach(tier, node, freed)
        if tier.held(node).pages is not None:
            tier.leave(node, freed)

    def _settle(self, node: Node, freed: Freed) -> None:
        """Remove `node` and then its ancestors for as long as they are of no use; a node in no tier is of none."""
        while node.parent is not None and node.is_useless and not node.locks:
            parent = node.parent
            self._vanish(node, freed)
            node = parent
        if node.parent is None:
            self._drop_root(node.namespace)
        else:
            # The parent may have become a leaf of a tier.
            self._refresh(node, node.parent)

    def _vanish(self, node: Node, freed: Freed) -> None:
        for tier in (self._device, self._host):
            self._remove_from(tier, node, freed)
        self._refresh(node)
        self._radix.unlink(node)
        self._watches.removed(node)

    def _uncover(self, node: Node | None) -> None:
        if (unmarked := unmark_nearest(node)) is not None:
            self._refresh(unmarked)

    def _stamp(self, path: list[Node]) -> None:
        for node in path:
            self._clock += 1
            node.last_access = self._clock

    def _refresh_pages(self, node: Node) -> None:
        for tier in (self._device, self._host):
            if tier.held(node).pages is not None:
                tier.refresh_pages(node)

    def _refresh(self, *nodes: Node) -> None:
        for node in nodes:
            for tier in (self._device, self._host):
                if tier.held(node).pages is not None:
                    tier.refresh(node)
            is_unsaved = node.device.snapshot is not None and node.host.snapshot is None
            # Once a use: what host memory has let go of meanwhile would be copied for ever, each in another's place.
            is_due = node.tried_access != node.snapshot_access
            if is_unsaved and is_due and not node.goes_first and not node.snapshot_locks:
                self._unsaved.place(node, (-node.snapshot_access,))
            else:
                self._unsaved.remove(node)

    def _drop_root(self, namespace: str) -> None:
        root = self._radix.roots[namespace]
        if not root.children and not self._watches.is_watched(root):
            del self._radix.roots[namespace]
