"""Shortest prefill first: the fewest tokens to compute until a first token goes first."""

from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows
from stages.scheduler.selection import smallest


@frozen
class ShortestPrefillFirst:
    """Fewest uncached tokens first, equal ones in order of arrival."""

    can_starve: bool = True
    needs_cache: bool = True

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return the `limit` with the fewest uncached tokens."""
        return smallest(waiting.prompt_tokens - waiting.cached_tokens, limit)


POLICY = ShortestPrefillFirst()
