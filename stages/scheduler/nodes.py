"""The nodes of the prefix tree, what they hold in each tier, and the walks over them. Core."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from stages.scheduler.eviction import NodeFacts

Ints32 = npt.NDArray[np.int32]

DEVICE: Final = 0
HOST: Final = 1
TIERS: Final = (DEVICE, HOST)


@frozen
class Snapshot:
    """The recurrent state after a node's last token; tail_page is the page that token lies in unless it ends one."""

    slot: int
    tail_page: int | None

    @property
    def num_pages(self) -> int:
        """Return how many pages belong to it."""
        return 0 if self.tail_page is None else 1


@define(eq=False)
class Held:
    """What a node holds in one tier; pages are its full pages, None when the node is not in the tier.

    num_children counts the children that are in the tier. The last two are what the tier's totals count of this node.
    """

    pages: list[int] | None = None
    snapshot: Snapshot | None = None
    num_children: int = 0
    num_evictable_pages: int = 0
    num_evictable_snapshots: int = 0

    @property
    def num_pages(self) -> int:
        """Return how many pages it owns, the snapshot's included."""
        return len(self.pages or ()) + (self.snapshot.num_pages if self.snapshot else 0)


@define(eq=False)
class Node:
    """Tokens [start, end) of every prompt that goes through it; a root has no parent, no tokens and number 0."""

    namespace: str
    number: int
    parent: "Node | None" = field(repr=False)
    tokens: Ints32 = field(repr=False)
    start: int
    end: int
    created: int = 0
    last_access: int = 0
    # The snapshot has a recency of its own: going through a node does not use its snapshot.
    snapshot_access: int = 0
    # The use after which a copy to the host was last tried.
    tried_access: int = -1
    hits: int = 0
    priority: int = 0
    history_tokens: int = 0
    is_superseded: bool = False
    # Of a turn's end: how long its prompt was.
    turn_start: int | None = None
    is_abandoned: bool = False
    # Locks on this node's pages and on those of any node beneath it.
    locks: int = 0
    snapshot_locks: int = 0
    children: "dict[int, Node]" = field(factory=dict, repr=False)
    held: tuple[Held, Held] = field(factory=lambda: (Held(), Held()))

    @property
    def device(self) -> Held:
        """Return what it holds on the device."""
        return self.held[DEVICE]

    @property
    def host(self) -> Held:
        """Return what it holds in host memory."""
        return self.held[HOST]

    @property
    def has_snapshot(self) -> bool:
        """Return whether any tier has its snapshot."""
        return self.held[DEVICE].snapshot is not None or self.held[HOST].snapshot is not None

    @property
    def is_gone(self) -> bool:
        """Return whether no tier has it any more; true of a root."""
        return self.held[DEVICE].pages is None and self.held[HOST].pages is None

    @property
    def is_leaf(self) -> bool:
        """Return whether a tier that has it has none of its children."""
        return any(held.pages is not None and not held.num_children for held in self.held)

    @property
    def is_useless(self) -> bool:
        """Return whether no prompt can resume here or beneath."""
        return not self.children and not self.has_snapshot

    @property
    def goes_first(self) -> bool:
        """Return whether its snapshot is worth less than any other."""
        return self.is_superseded or self.is_abandoned

    def facts(self, last_access: int) -> NodeFacts:
        """Return what an eviction may look at, with the recency of the part that is to be ranked."""
        return NodeFacts(last_access, self.created, self.hits, self.priority, self.start, self.end, self.history_tokens)


def upwards(node: Node | None) -> Iterator[Node]:
    """Yield `node` and its ancestors, the root left out."""
    while node is not None and node.parent is not None:
        yield node
        node = node.parent


def path_to(node: Node) -> list[Node]:
    """Return the nodes from the one under the root to `node`."""
    return list(upwards(node))[::-1]


def subtree(node: Node) -> Iterator[Node]:
    """Yield `node` and everything beneath it, parents first."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(node.children.values())
