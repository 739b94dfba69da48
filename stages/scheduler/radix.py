"""The shape of the prefix tree: roots, nodes and their numbers, growing, splitting and unlinking. Core."""

from collections.abc import Iterator

import numpy as np
from attrs import define, field

from graphs.step import Ints
from stages.scheduler.nodes import Ints32, Node, subtree

_FIRST_NUMBERS = 64


@define(eq=False)
class Radix:
    """One radix tree of tokens for each namespace; a number is one node's at a time, 0 the roots'."""

    page_size_tokens: int
    roots: dict[str, Node] = field(factory=dict)
    # Each node's parent by number, 0 for those under a root; as many numbers as there ever were nodes at once.
    _parents: Ints = field(factory=lambda: np.zeros(_FIRST_NUMBERS, np.int64))
    _num_numbers: int = 1
    _free_numbers: list[int] = field(factory=list)

    @property
    def parents(self) -> Ints:
        """Return a read-only view of each node's parent by number [M], 0 for those under a root."""
        view = self._parents[: self._num_numbers]
        view.flags.writeable = False
        return view

    def root(self, namespace: str) -> Node:
        """Return the root of `namespace`, a new one if it has none."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(namespace, 0, None, np.empty(0, np.int32), 0, 0)
        return root

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes but the roots, parents first."""
        for root in self.roots.values():
            for top in root.children.values():
                yield from subtree(top)

    def grow(self, parent: Node, tokens: Ints32, now: int) -> Node:
        """Return a new child of `parent`, made `now`; it keeps `tokens`."""
        end = parent.end + len(tokens)
        node = Node(parent.namespace, self._take_number(), parent, tokens, parent.end, end, created=now)
        self._link(node)
        return node

    def split(self, lower: Node, end: int) -> Node:
        """Return a new node that takes over what `lower` has before `end`; `lower` keeps its snapshot and number."""
        assert lower.parent is not None
        cut = end - lower.start
        upper = self.grow(lower.parent, lower.tokens[:cut], lower.created)
        upper.last_access, upper.hits, upper.priority = lower.last_access, lower.hits, lower.priority
        upper.history_tokens, upper.locks = lower.history_tokens, lower.locks
        num_pages = end // self.page_size_tokens - lower.start // self.page_size_tokens
        for above, beneath in zip(upper.held, lower.held, strict=True):
            if beneath.pages is not None:
                above.pages, beneath.pages = beneath.pages[:num_pages], beneath.pages[num_pages:]
                above.num_children = 1
        lower.tokens, lower.start, lower.parent = lower.tokens[cut:], end, upper
        self._link(lower)
        return upper

    def unlink(self, leaf: Node) -> None:
        """Remove a node without children."""
        assert leaf.parent is not None
        del leaf.parent.children[int(leaf.tokens[0])]
        self._parents[leaf.number] = 0
        self._free_numbers.append(leaf.number)

    def _link(self, node: Node) -> None:
        assert node.parent is not None
        node.parent.children[int(node.tokens[0])] = node
        self._parents[node.number] = node.parent.number

    def _take_number(self) -> int:
        if self._free_numbers:
            return self._free_numbers.pop()
        if self._num_numbers == len(self._parents):
            self._parents = np.concatenate((self._parents, np.zeros_like(self._parents)))
        self._num_numbers += 1
        return self._num_numbers - 1
