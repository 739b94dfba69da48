"""The shape of the prefix tree: roots, nodes and their numbers, growing, splitting and unlinking. Core."""

from collections.abc import Iterator

import numpy as np
from attrs import define, field

from stages.scheduler.nodes import Ints32, Node, subtree


@define(eq=False)
class Radix:
    """One radix tree of tokens for each namespace; a number is given to one node ever, 0 to the roots."""

    page_size_tokens: int
    roots: dict[str, Node] = field(factory=dict)
    # Each node's parent by number; nodes under a root are left out.
    parents: dict[int, int] = field(factory=dict)
    _num_nodes_made: int = 0

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
        self._num_nodes_made += 1
        end = parent.end + len(tokens)
        node = Node(parent.namespace, self._num_nodes_made, parent, tokens, parent.end, end, created=now)
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
        self.parents.pop(leaf.number, None)

    def _link(self, node: Node) -> None:
        assert node.parent is not None
        node.parent.children[int(node.tokens[0])] = node
        if node.parent.number:
            self.parents[node.number] = node.parent.number
