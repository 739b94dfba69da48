"""Highest response ratio next: short work first, but waiting makes up for length."""

import numpy as np
from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows
from stages.scheduler.selection import smallest


@frozen
class Hrrn:
    """Most tokens processed by the engine since arrival for each uncached token first, fully cached ones before all.

    It does not starve anybody: at least a prompt's last token is never cached, so a newcomer begins with a ratio of
    nothing and has to wait longer, the longer the others have waited, while the queue has room for only so many.
    """

    can_starve: bool = False
    needs_cache: bool = True

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return the `limit` with the highest ratio, equal ones in order of arrival."""
        uncached = waiting.prompt_tokens - waiting.cached_tokens
        waited_tokens = now.served_tokens - waiting.served_before
        ratio = np.where(uncached > 0, waited_tokens / np.maximum(uncached, 1), np.inf)
        return smallest(-ratio, limit)


POLICY = Hrrn()
