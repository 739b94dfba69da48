"""A prompt's logprobs, gathered as its chunks are computed. Core.

Token t of a prompt is scored where token t - 1 is read. What has been gathered stays when the choice is retracted: its
prefill then resumes at most where the next token to be scored is read, and nothing is scored twice.
"""

import numpy as np
from attrs import define, field

from graphs.step import Scores
from stages.messages import PromptScores, Submit


@define(eq=False)
class PromptScoring:
    """What is known of the N tokens after prompt_logprobs_from; num_scored of them are."""

    first: int
    num_tokens: int
    num_top: int
    num_wanted: int
    num_scored: int = 0
    # Made with the first chunk: what waits or never runs holds none.
    _scores: PromptScores | None = field(init=False, default=None)

    @property
    def next_position(self) -> int:
        """Return where the next token to be scored is read; behind the last one that is, nowhere."""
        return self.first + self.num_scored

    def span(self, start: int, num_valid: int) -> slice:
        """Return which of a chunk's tokens are read to score the next ones."""
        end = min(start + num_valid, self.first + self.num_tokens)
        return slice(min(self.next_position, end) - start, end - start) if end > start else slice(0, 0)

    def take(self, scores: Scores, row: int, start: int, num_valid: int) -> None:
        """Keep what a chunk scored in `row` of its step."""
        span = self.span(start, num_valid)
        mine = slice(self.num_scored, self.num_scored + span.stop - span.start)
        kept = self._kept()
        kept.logprobs[mine] = scores.logprobs[row, span]
        kept.top_ids[mine] = scores.top_ids[row, span, : self.num_top]
        kept.top_logprobs[mine] = scores.top_logprobs[row, span, : self.num_top]
        if kept.wanted is not None and scores.wanted is not None:
            kept.wanted[mine] = scores.wanted[row, span, : self.num_wanted]
        self.num_scored = mine.stop

    def done(self) -> PromptScores:
        """Return all of them."""
        assert self.num_scored == self.num_tokens, f"{self.num_scored} of {self.num_tokens} tokens are scored"
        return self._kept()

    def _kept(self) -> PromptScores:
        if self._scores is None:
            shape = (self.num_tokens, self.num_top)
            self._scores = PromptScores(
                np.zeros(self.num_tokens, np.float32),
                np.zeros(shape, np.int32),
                np.zeros(shape, np.float32),
                np.zeros((self.num_tokens, self.num_wanted), np.float32) if self.num_wanted else None,
            )
        return self._scores


def scoring_of(submit: Submit) -> PromptScoring | None:
    """Return what gathers the logprobs of a prompt's tokens, None where nobody asks for them."""
    if submit.prompt_logprobs_from is None:
        return None
    last = len(submit.prompt_ids) - 1
    first = min(submit.prompt_logprobs_from, last)
    return PromptScoring(first, last - first, submit.num_top_logprobs, len(submit.logprob_token_ids))
