"""Picks the best few of many by numpy, without sorting the many. Core."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphs.step import Ints

Keys = NDArray[Any]
# So many are sorted as fast as they are looked through.
_FEW = 64


def smallest(keys: Keys, limit: int) -> Ints:
    """Return the indices of the `limit` smallest of keys[N], smallest first, equal ones in order of index."""
    if limit >= len(keys):
        return np.argsort(keys, kind="stable")
    if limit == 1:
        # The usual question while one place is free, and many equal keys make a partition slow.
        return np.array([keys.argmin()])
    below, level = _split(keys, limit)
    chosen = np.concatenate((below, level[: limit - len(below)]))
    return chosen[np.argsort(keys[chosen], kind="stable")]


def smallest_pairs(first: Keys, second: Keys, limit: int) -> Ints:
    """Return the indices of the `limit` smallest pairs (first[N], second[N]), equal ones in order of index."""
    if limit >= len(first) or len(first) <= _FEW:
        return np.lexsort((second, first))[:limit]
    below, level = _split(first, limit)
    below = below[np.lexsort((second[below], first[below]))]
    return np.concatenate((below, level[smallest(second[level], limit - len(below))]))


def by_digits(numbers: Ints) -> Ints:
    """Return the indices that sort numbers[N], equal ones in order of index; fast where they lie close together.

    numpy sorts 16-bit numbers by counting, several times faster than wider ones, so these go digit by digit.
    """
    if not len(numbers):
        return np.empty(0, np.int64)
    left = numbers - numbers.min()
    digits = left.astype(np.uint16)
    indices = np.argsort(digits, kind="stable")
    while (left := left >> 16).any():
        indices = indices[np.argsort(left.astype(np.uint16)[indices], kind="stable")]
    return indices


def _split(keys: Keys, limit: int) -> tuple[Ints, Ints]:
    """Return the indices of what is surely among the `limit` smallest, fewer than it, and of what shares the rest."""
    if limit <= 0:
        nothing = np.empty(0, np.int64)
        return nothing, nothing
    threshold = np.partition(keys, limit - 1)[limit - 1]
    return np.flatnonzero(keys < threshold), np.flatnonzero(keys == threshold)
