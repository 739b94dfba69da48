"""Keeps requests of one routing key together: what runs most already goes first."""

import numpy as np
from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows
from stages.scheduler.selection import smallest_pairs

_NO_KEY = np.iinfo(np.int64).max


@frozen
class RoutingKey:
    """Key with the most running choices first, then by key, then in order of arrival; without a key last."""

    can_starve: bool = True
    needs_cache: bool = False

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return the `limit` whose keys run most."""
        keys = waiting.routing_key
        running = np.zeros(len(keys), np.int64)
        if now.running_keys:
            known = np.array(sorted(now.running_keys), np.int64)
            counts = np.array([now.running_keys[key] for key in known.tolist()], np.int64)
            place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            running = np.where((known[place] == keys) & (keys >= 0), counts[place], 0)
        return smallest_pairs(-running, np.where(keys < 0, _NO_KEY, keys), limit)


POLICY = RoutingKey()
