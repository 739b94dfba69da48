"""One choice's penalties and biases as the arrays a device reads, kept up to date token by token. Core.

Only tokens of which something is asked have a place: those that came already where there are penalties, and those with
a bias. The prompt's are counted once, as one array, and every token after it costs the same however long the prompt is.
"""

import numpy as np
from attrs import define, field

from graphs.step import Floats, Ints
from stages.messages import Penalties, Submit

_FIRST_PLACES = 64
# A bias beyond it is as good as infinite. An infinite one would leave no logit a number.
_MAX_BIAS = 1e30


@define(eq=False)
class Adjusting:
    """The first `size` of token_ids[P] are distinct; counts, seen and bias [P] are theirs, as in graphs.step.Adjust."""

    penalties: Penalties
    size: int = 0
    token_ids: Ints = field(factory=lambda: np.zeros(_FIRST_PLACES, np.int64))
    counts: Floats = field(factory=lambda: np.zeros(_FIRST_PLACES, np.float32))
    seen: Floats = field(factory=lambda: np.zeros(_FIRST_PLACES, np.float32))
    bias: Floats = field(factory=lambda: np.zeros(_FIRST_PLACES, np.float32))
    _places: dict[int, int] = field(factory=dict)

    @property
    def counts_tokens(self) -> bool:
        """Return whether it matters which tokens come."""
        return self.penalties != Penalties()

    def read(self, prompt_ids: tuple[int, ...]) -> None:
        """Note a prompt's tokens, which only repetition looks at; before anything else."""
        token_ids = np.unique(np.array(prompt_ids, np.int64))
        self._reserve(len(token_ids))
        self.size = len(token_ids)
        self.token_ids[: self.size] = token_ids
        self.seen[: self.size] = 1
        self._places = dict(zip(token_ids.tolist(), range(self.size), strict=True))

    def add_bias(self, token_id: int, bias: float) -> None:
        """Add to a token's bias."""
        place = self._place(token_id)  # may give the arrays more room
        self.bias[place] = min(max(float(self.bias[place]) + bias, -_MAX_BIAS), _MAX_BIAS)

    def add(self, token_id: int) -> None:
        """Count a generated token."""
        place = self._place(token_id)
        self.counts[place] += 1
        self.seen[place] = 1

    def _place(self, token_id: int) -> int:
        place = self._places.get(token_id)
        if place is None:
            self._reserve(self.size + 1)
            place = self._places[token_id] = self.size
            self.token_ids[place] = token_id
            self.size += 1
        return place

    def _reserve(self, size: int) -> None:
        """Make room for `size` places, at least twice what there was if there is not."""
        room = len(self.token_ids)
        if size <= room:
            return
        more = max(size, 2 * room) - room
        self.token_ids = np.concatenate((self.token_ids, np.zeros(more, np.int64)))
        empty = np.zeros(more, np.float32)
        self.counts, self.seen, self.bias = (
            np.concatenate((column, empty)) for column in (self.counts, self.seen, self.bias)
        )


def adjusting_of(submit: Submit) -> Adjusting | None:
    """Return the adjusting of a choice that has generated nothing, None where no logit is changed."""
    if submit.penalties == Penalties() and not submit.logit_bias:
        return None
    adjusting = Adjusting(submit.penalties)
    if submit.penalties.repetition != 1:
        adjusting.read(submit.prompt_ids)
    for token_id, bias in submit.logit_bias:
        adjusting.add_bias(token_id, bias)
    return adjusting
