"""The time between a choice's tokens, as a step delivers them. Core.

Rows of one step mostly had their last token in the same step before, so a step's gaps are counted by when that was: a
token costs a count in a small dict, and a step tells stats of the few gaps there were, each with how many.
"""

from collections import defaultdict

from stages.detokenizer.choice import Choice
from stages.messages import TokenGaps
from stages.trail import Trail


class Gaps:
    """The gaps of one step, which is delivered at now_s."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        # Of rows of one token: how many had their last one then.
        self._singles: defaultdict[float, int] = defaultdict(int)
        # Of rows of several: how many had their last one then and get so many now.
        self._several: defaultdict[tuple[float, int], int] = defaultdict(int)
        self._num_firsts = 0

    def took(self, choice: Choice, num_tokens: int) -> None:
        """Note that a choice gets tokens, on its trail too; several at once came evenly since the last one."""
        now_s, last_s, trail = self._now_s, choice.last_token_s, choice.trail
        if num_tokens == 1 and last_s is not None:
            self._singles[last_s] += 1
        elif num_tokens:
            self._took_first_or_several(last_s, num_tokens, trail)
        else:
            return
        choice.last_token_s = now_s
        if trail is not None:
            trail.last_token_s = now_s
            trail.completion_tokens += num_tokens

    def told(self) -> TokenGaps | None:
        """Return what there is to tell, None for nothing."""
        now_s = self._now_s
        gaps = [(now_s - last_s, count) for last_s, count in self._singles.items()]
        for (last_s, num_tokens), count in self._several.items():
            gaps.append(((now_s - last_s) / num_tokens, num_tokens * count))
        num_tokens = self._num_firsts + sum(count for _, count in gaps)
        return TokenGaps(num_tokens, tuple(gaps)) if num_tokens else None

    def _took_first_or_several(self, last_s: float | None, num_tokens: int, trail: Trail | None) -> None:
        if last_s is not None:
            self._several[last_s, num_tokens] += 1
            return
        self._num_firsts += 1
        if num_tokens > 1:  # nothing is known of when its first one came but that the others came with it
            self._several[self._now_s, num_tokens - 1] += 1
        if trail is not None and trail.first_token_s is None:
            trail.first_token_s = self._now_s
