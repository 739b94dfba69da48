"""Depth first through the prefix tree, the branch on which most are waiting first.

Those who share a branch are let in one after another, so what they share is computed and kept once. A choice sits at
the deepest node that its prompt reaches; a node weighs as many as wait at it and beneath it. The heaviest child goes
first, of equal ones the one that has waited longest; a node's own come after its children's, who have more to gain.

The cost is a few vector operations over the nodes of the tree for each doubling of its depth, and two sorts by digits;
no more of the tree is walked than gives `limit` choices.
"""

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
            weight, first = _weigh(waiting.node, now.parents)
            busy = np.flatnonzero(weight[1:]) + 1
            rows = _grouped(waiting.node, np.arange(len(waiting.node)))
            branches = _grouped(now.parents[busy], busy)
            num_chosen = 0
            stack = [(_ROOT, False)]
            while stack and num_chosen < limit:
                node, has_visited_children = stack.pop()
                if not has_visited_children:
                    stack.append((node, True))
                    children = branches.of(node)
                    if len(children) > 1:
                        children = children[smallest_pairs(-weight[children], first[children], limit)]
                    stack.extend((child, False) for child in children[::-1].tolist())
                else:
                    chosen.append(rows.of(node))
                    num_chosen += len(chosen[-1])
        return np.concatenate(chosen)


@frozen(eq=False)
class _Groups:
    """Indices [N] by their number, of one number in rising order."""

    numbers: Ints
    indices: Ints

    def of(self, number: int) -> Ints:
        """Return the indices with that number."""
        begin, end = self.numbers.searchsorted((number, number + 1))
        return self.indices[begin:end]


def _grouped(numbers: Ints, indices: Ints) -> _Groups:
    order = by_digits(numbers)
    return _Groups(numbers[order], indices[order])


def _weigh(node: Ints, parents: Ints) -> tuple[Ints, Ints]:
    """Return of each node [M] but the root how many wait at it and beneath it, and the earliest of them."""
    size = len(parents)
    weight, first = np.bincount(node, minlength=size), np.full(size, len(node))
    # Of several for one node the last is kept, which is the earliest here.
    first[node[::-1]] = np.arange(len(node))[::-1]
    # After k rounds a node knows of all that is less than 2**k below it: its part, and that of those 2**k below.
    beneath, above, jump = np.arange(1, size), parents[1:], parents
    while len(beneath):
        weight += np.bincount(above, weight[beneath], size).astype(np.int64)
        np.minimum.at(first, above, first[beneath])
        beneath, jump = beneath[above != _ROOT], jump[jump]
        above = jump[beneath]
    return weight, first


POLICY = DfsWeight()
