"""A fresh shuffle each step, the same in every run."""

import numpy as np
from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows
from stages.scheduler.selection import smallest

_WORD = 2**64
# Odd constants with well spread bits: the golden ratio's and two multipliers of the splitmix64 finalizer.
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@frozen
class Random:
    """Order of a hash of step and arrival, so that nothing but these decides."""

    can_starve: bool = True
    needs_cache: bool = False

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return `limit` drawn without replacement."""
        # Plus one, because nothing is what the hash makes of nothing.
        offset = np.uint64((now.step + 1) * _GOLDEN % _WORD)
        return smallest(_mixed(waiting.arrival.astype(np.uint64) + offset), limit)


def _mixed(
    bits: "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]":
    """Return bits[N] uint64 hashed, modulo 2**64. Source: Steele, Lea, Flood 2014, splitmix64's finalizer."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_FIRST)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_SECOND)
    return bits ^ (bits >> np.uint64(31))


POLICY = Random()
