"""First come, first served."""

import numpy as np
from attrs import frozen

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows


@frozen
class Fcfs:
    """Order of arrival."""

    can_starve: bool = False
    needs_cache: bool = False

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        """Return the first `limit`."""
        return np.arange(min(limit, len(waiting.arrival)))


POLICY = Fcfs()
