"""Longest prefix match: what the cache helps most goes first, before that part of the cache is evicted."""

from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows
from stages.scheduler.selection import smallest


@frozen
class Lpm:
    """Most cached tokens first, equal ones in order of arrival."""

    can_starve: bool = True
    needs_cache: bool = True

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return the `limit` with the most cached tokens."""
        return smallest(-waiting.cached_tokens, limit)


POLICY = Lpm()
