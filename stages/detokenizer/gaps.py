"""The time between a choice's tokens, as a step delivers them. Core.

Rows of one step mostly had their last token in the same step before, so a step's gaps are counted by when that was: a
token costs a count in a small dict, and a step tells stats of the few gaps there were, each with how many.
"""

from stages.detokenizer.choice import Choice
from stages.messages import TokenGaps


class Gaps:
    """The gaps of one step, which is delivered at now_s."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        # How many rows had their last token then and so many now.
        self._counts: dict[tuple[float, int], int] = {}
        self._num_tokens = 0

    def took(self, choice: Choice, num_tokens: int) -> None:
        """Note that a choice gets tokens, on its trail too; several at once came evenly since the last one."""
        if not num_tokens:
            return
        now_s, last_s, trail = self._now_s, choice.last_token_s, choice.trail
        choice.last_token_s = now_s
        self._num_tokens += num_tokens
        if last_s is not None:
            since = (last_s, num_tokens)
            self._counts[since] = self._counts.get(since, 0) + 1
        elif num_tokens > 1:  # nothing is known of when its first one came but that the others came with it
            self._counts[now_s, num_tokens - 1] = self._counts.get((now_s, num_tokens - 1), 0) + 1
        if trail is not None:
            trail.last_token_s = now_s
            trail.completion_tokens += num_tokens
            if trail.first_token_s is None:
                trail.first_token_s = now_s

    def told(self) -> TokenGaps | None:
        """Return what there is to tell, None for nothing."""
        if not self._num_tokens:
            return None
        now_s = self._now_s
        return TokenGaps(
            self._num_tokens,
            tuple(
                ((now_s - last_s) / num_tokens, num_tokens * count)
                for (last_s, num_tokens), count in self._counts.items()
            ),
        )
