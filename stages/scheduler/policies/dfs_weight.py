"""Depth first through the prefix tree, the branch on which most are waiting first.

Those who share a branch are let in one after another, so what they share is computed and kept once. A choice sits at
the deepest node that its prompt reaches; a node weighs as many as wait at it and beneath it. The heaviest child goes
first, of equal ones the one that has waited longest; a node's own come after its children's, who have more to gain.

The cost is one sort of what waits, and for the nodes between those it sits at and the root one look-up and a few
vector operations each; no more of the tree is looked at, and no more of it is walked than gives `limit` choices.
"""

from collections.abc import Mapping
from itertools import repeat

import numpy as np
from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows
from stages.scheduler.selection import by_digits, smallest_pairs

_ROOT = 0


@frozen
class DfsWeight:
    """Heaviest branch first, and of one node in order of arrival."""

    can_starve: bool = True
    needs_cache: bool = True

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return the first `limit` that the walk meets."""
        chosen = [np.empty(0, np.int64)]
        if len(waiting.node):
            groups = _groups(waiting.node)
            branches = _branches(groups, now.parents)
            num_chosen = 0
            stack = [(_ROOT, False)]
            while stack and num_chosen < limit:
                node, has_visited_children = stack.pop()
                if not has_visited_children:
                    stack.append((node, True))
                    stack.extend((child, False) for child in reversed(branches.heaviest_children(node, limit)))
                else:
                    chosen.append(groups.rows[branches.begin[node] : branches.end[node]])
                    num_chosen += len(chosen[-1])
        return np.concatenate(chosen)


@frozen(eq=False)
class _Groups:
    """The indices of what waits, by node and then arrival; nodes[i] has rows[starts[i] : ends[i]]."""

    rows: Ints
    nodes: Ints
    starts: Ints
    ends: Ints


@frozen(eq=False)
class _Branches:
    """The nodes from those where somebody waits up to the root, which is number 0; every array is [M]."""

    # What waits at the node itself is rows[begin : end].
    begin: Ints
    end: Ints
    # How many wait at the node and beneath it, and the earliest of them.
    weight: Ints
    first: Ints
    # The children of node n are by_parent[children[n] : children[n + 1]].
    by_parent: Ints
    children: Ints

    def heaviest_children(self, node: int, limit: int) -> list[int]:
        """Return the children of a node, at most the `limit` heaviest, in order."""
        children = self.by_parent[self.children[node] : self.children[node + 1]]
        if len(children) > 1:
            children = children[smallest_pairs(-self.weight[children], self.first[children], limit)]
        numbers: list[int] = children.tolist()
        return numbers


def _groups(node: Ints) -> _Groups:
    rows = by_digits(node)
    ordered = node[rows]
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1, [len(node)]))
    return _Groups(rows, ordered[bounds[:-1]], bounds[:-1], bounds[1:])


def _branches(groups: _Groups, parents: Mapping[int, int]) -> _Branches:
    known, numbers, parents_of = {_ROOT}, [_ROOT], [_ROOT]
    newest = set(groups.nodes.tolist()) - known
    while newest:
        known |= newest
        above_each = list(map(parents.get, newest, repeat(_ROOT)))
        numbers += newest
        parents_of += above_each
        newest = set(above_each) - known
    order = np.argsort(numbers)
    ordered = np.array(numbers)[order]
    size = len(ordered)
    # Above the root lies one more place, which nobody reads, so that going up ends there.
    parent = np.append(np.searchsorted(ordered, np.array(parents_of)[order]), size)
    parent[_ROOT] = size
    at = np.searchsorted(ordered, groups.nodes)
    begin, end, first = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(size + 1, len(groups.rows))
    begin[at], end[at], first[at] = groups.starts, groups.ends, groups.rows[groups.starts]
    weight = np.append(end - begin, 0)
    # After k rounds a node knows of all that is less than 2**k below it: its part, and that of those 2**k below.
    above = parent
    while (above < size).any():
        weight += np.bincount(above, weight, size + 1).astype(np.int64)
        np.minimum.at(first, above, first.copy())
        above = above[above]
    by_parent = np.argsort(parent[:size], kind="stable")
    children = np.searchsorted(parent[by_parent], np.arange(size + 1))
    return _Branches(begin, end, weight, first, by_parent, children)


POLICY = DfsWeight()
