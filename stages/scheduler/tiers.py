"""One tier of the prefix cache, device or host: what its nodes own there, and who leaves first. Core."""

from attrs import define, field, frozen

from stages.scheduler.eviction import Eviction, Key
from stages.scheduler.nodes import DEVICE, Held, Node, Snapshot, path_to
from stages.scheduler.ranking import Ranking


@frozen
class Freed:
    """Numbers that are the caller's again."""

    pages: list[int] = field(factory=list)
    slots: list[int] = field(factory=list)
    host_pages: list[int] = field(factory=list)
    host_slots: list[int] = field(factory=list)

    def of(self, index: int) -> tuple[list[int], list[int]]:
        """Return the pages and the slots of one tier."""
        return (self.pages, self.slots) if index == DEVICE else (self.host_pages, self.host_slots)


@frozen
class Gap:
    """What one tier lacks to resume at a node, by its numbers in the other: pages of the indices from first_page on.

    snapshot is None when it is there already, or nowhere.
    """

    first_page: int
    pages: list[int]
    snapshot: Snapshot | None


@define(eq=False)
class Tier:
    """Totals and rankings of one tier.

    # Invariant: the totals and rankings are right for a node that was `refresh`ed after its last change.
    """

    index: int
    eviction: Eviction
    num_pages: int = 0
    num_snapshots: int = 0
    num_evictable_pages: int = 0
    num_evictable_snapshots: int = 0
    # Nodes without children in the tier: only these can leave it.
    leaves: Ranking[Node] = field(factory=Ranking)
    snapshots: Ranking[Node] = field(factory=Ranking)

    def held(self, node: Node) -> Held:
        """Return what `node` holds here."""
        return node.held[self.index]

    def enter(self, node: Node, pages: list[int]) -> None:
        """Give `node`, whose parent is here, its full pages."""
        self.held(node).pages = pages
        self.num_pages += len(pages)
        assert node.parent is not None
        self.held(node.parent).num_children += 1

    def leave(self, node: Node, freed: Freed) -> None:
        """Take the pages of `node`, which has neither a snapshot nor children here any more."""
        held = self.held(node)
        assert held.pages is not None
        assert node.parent is not None
        freed.of(self.index)[0].extend(held.pages)
        self.num_pages -= len(held.pages)
        held.pages = None
        self.held(node.parent).num_children -= 1
        self.refresh(node)

    def attach(self, node: Node, snapshot: Snapshot) -> None:
        """Give `node`, which is here, a snapshot."""
        self.held(node).snapshot = snapshot
        self.num_snapshots += 1
        self.num_pages += snapshot.num_pages

    def detach(self, node: Node, freed: Freed) -> None:
        """Take the snapshot of `node`."""
        held = self.held(node)
        assert held.snapshot is not None
        pages, slots = freed.of(self.index)
        slots.append(held.snapshot.slot)
        if held.snapshot.tail_page is not None:
            pages.append(held.snapshot.tail_page)
        self.num_snapshots -= 1
        self.num_pages -= held.snapshot.num_pages
        held.snapshot = None

    def worth(self, node: Node) -> Key:
        """Return the place of the node's snapshot in the order of eviction: the smallest goes first."""
        return (not node.goes_first, *self.eviction.key(node.facts(node.snapshot_access)))

    def goes_before(self, node: Node, limit: Key | None) -> bool:
        """Return whether what the node has here is worth less than `limit`; without a snapshot it is worth nothing."""
        return limit is None or self.held(node).snapshot is None or self.worth(node) < limit

    def refresh(self, node: Node) -> None:
        """Bring totals and rankings up to date with `node`."""
        self.refresh_pages(node)
        self._refresh_snapshot(node)

    def refresh_pages(self, node: Node) -> None:
        """Bring totals and ranking of pages up to date with `node`, of which at most its locks changed."""
        held = self.held(node)
        is_free = held.pages is not None and not node.locks
        num_pages = held.num_pages if is_free else 0
        self.num_evictable_pages += num_pages - held.num_evictable_pages
        held.num_evictable_pages = num_pages
        if is_free and not held.num_children:
            self.leaves.place(node, (not node.is_useless, *self.eviction.key(node.facts(node.last_access))))
        else:
            self.leaves.remove(node)

    def _refresh_snapshot(self, node: Node) -> None:
        held = self.held(node)
        num_snapshots = int(held.snapshot is not None and not node.snapshot_locks)
        self.num_evictable_snapshots += num_snapshots - held.num_evictable_snapshots
        held.num_evictable_snapshots = num_snapshots
        if num_snapshots:
            self.snapshots.place(node, self.worth(node))
        else:
            self.snapshots.remove(node)


def gap(node: Node, source: Tier, target: Tier, page_size_tokens: int) -> Gap:
    """Return what to copy from `source` so that `target` could resume at `node`."""
    # The target lacks the lower end of the path, so what it lacks is one run of pages.
    lacking = [each for each in path_to(node) if target.held(each).pages is None]
    first = (lacking[0].start if lacking else node.end) // page_size_tokens
    pages = [page for each in lacking for page in source.held(each).pages or ()]
    return Gap(first, pages, source.held(node).snapshot if target.held(node).snapshot is None else None)
