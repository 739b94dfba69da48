"""Longest output first: who may generate most goes first, so that the long ones do not end a busy hour alone."""

from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows
from stages.scheduler.selection import smallest


@frozen
class Lof:
    """Largest max_new_tokens first, equal ones in order of arrival."""

    can_starve: bool = True
    needs_cache: bool = False

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return the `limit` with the largest max_new_tokens."""
        return smallest(-waiting.max_new_tokens, limit)


POLICY = Lof()
