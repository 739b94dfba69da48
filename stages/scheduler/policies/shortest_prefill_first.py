"""Shortest prefill first: the fewest tokens to compute until a first token goes first.

Peers also shrink the chunk of a long prompt that is being computed when a shorter one could finish within the step's
token budget. Here a prefill step has a row for each prompt, all as wide as the oldest's chunk (rows.py), so a shorter
prompt that is let in runs beside the chunk and there is nothing to take from it. Only max_token_gap_s can leave a step
with a single row (pace.py), and then the oldest prompt goes on first under every policy.
"""

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
