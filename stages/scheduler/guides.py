"""Which choices have the mask of their next token, and what to ask the grammar stage. Core.

Theory of operation. The grammar stage follows every choice with rules: it is told of each token once, in order, and
answers what may come next. A choice asks for one mask at a time, so it is known without a number which tokens an
answer has read; those that came meanwhile go with the next question. A mask serves one token, the one right after what
it has read, and what may be sampled freely is a promise that later answers only extend. All this is the choice's own
(choice.Guide), so a retraction loses nothing of it, and is shown by slot (progress.py) while it runs.

Masks mostly come much sooner than a step takes. A step that went out without the rows whose masks are on their way
would part them from the others for good, each half running every second step. So a step waits for them, for no longer
than the patience: by then a mask is slow, and holds up nobody but its own row.

With many free tokens ahead nothing is asked: tokens are told when they come to an end.
"""

import math

from attrs import define, field

from stages.messages import FillMasks, Mask
from stages.scheduler.choice import Choice
from stages.scheduler.lifecycle import Phase
from stages.scheduler.progress import Progress

# Free tokens beyond those in flight that make a question unnecessary.
ENOUGH_FREE_TOKENS = 32


@define(eq=False)
class Guides:
    """Asks for masks and shows those that came."""

    progress: Progress
    patience_s: float
    # Choices whose masks may be here soon, and until when they are waited for.
    expected: set[Choice] = field(factory=set)
    _until_s: float = math.inf
    # In order, each once; some of them have ended meanwhile.
    _due: dict[Choice, None] = field(factory=dict)

    def begin(self, choice: Choice) -> None:
        """Show what is known of a choice that has got a slot, and ask for its first mask."""
        choice.begin_edits()
        guide, adjusting = choice.guide, choice.adjusting
        if guide is None and adjusting is None:
            return
        needs_newest = adjusting is not None and adjusting.counts_tokens
        self.progress.edit(choice.slot, is_ruled=guide is not None, needs_newest=needs_newest)
        if guide is not None:
            self._show(choice)
            self._ask_if_due(choice)

    def sampled(self, choice: Choice) -> None:
        """Take note of the newest token of a choice that goes on."""
        if choice.adjusting is not None and choice.adjusting.counts_tokens:
            choice.adjusting.add(choice.generated[-1])
        if choice.guide is not None:
            self._ask_if_due(choice)

    def filled(self, choice: Choice, mask: Mask) -> None:
        """Take the answer to what a choice asked."""
        guide = choice.guide
        assert guide is not None, "a mask that nobody asked for"
        assert guide.num_told is not None
        guide.is_asked = False
        self.expected.discard(choice)
        number = choice.num_prompt + guide.num_told
        num_free = max(mask.num_free, 1 if mask.allowed is None else 0)
        guide.free_until = max(guide.free_until, number + num_free)
        guide.mask_for, guide.allowed = number, mask.allowed
        if choice.slot:
            self._show(choice)
        self._ask_if_due(choice)

    def left(self, choice: Choice) -> None:
        """Expect nothing more of a choice that does not run any more."""
        self.expected.discard(choice)

    def expire(self, now_s: float) -> None:
        """Expect no mask any more that was asked for patience_s ago."""
        if now_s >= self._until_s:
            self.expected.clear()
        if not self.expected:
            self._until_s = math.inf

    @property
    def next_expiry_s(self) -> float:
        """Return when `expire` next has something to do."""
        return self._until_s

    def take(self, now_s: float) -> FillMasks | None:
        """Return and forget what is to be asked now."""
        if not self._due:
            return None
        if self._until_s == math.inf:
            self._until_s = now_s + self.patience_s
        asked = [choice for choice in self._due if choice.phase is not Phase.ENDED]
        self._due.clear()
        return FillMasks(tuple((choice.submit, _untold(choice)) for choice in asked)) if asked else None

    def _ask_if_due(self, choice: Choice) -> None:
        guide = choice.guide
        assert guide is not None, "only what has rules asks"
        if guide.is_asked or guide.num_told == len(choice.generated):
            return
        if guide.free_until <= choice.num_tokens + ENOUGH_FREE_TOKENS:
            guide.is_asked = True
            self._due[choice] = None
            self.expected.add(choice)

    def _show(self, choice: Choice) -> None:
        guide = choice.guide
        assert guide is not None, "only what has rules is shown"
        self.progress.free_until[choice.slot] = guide.free_until
        self.progress.mask_for[choice.slot] = guide.mask_for


def _untold(choice: Choice) -> tuple[int, ...]:
    """Return the tokens that the grammar stage has not been told of, and note that it is."""
    guide = choice.guide
    assert guide is not None, "only what has rules asks"
    told = guide.num_told or 0
    guide.num_told = len(choice.generated)
    return tuple(choice.generated[told:])
