"""One choice inside the scheduler: what was asked, what came out, and what of the device it holds. Core."""

from functools import cached_property

import numpy as np
from attrs import define, field, frozen

from graphs.step import Words
from stages.messages import Finish, Submit, Usage
from stages.scheduler.adjusting import Adjusting, adjusting_of
from stages.scheduler.lifecycle import Phase, Signal, advance
from stages.scheduler.nodes import Ints32, Node
from stages.scheduler.progress import NOTHING, Progress
from stages.scheduler.scoring import PromptScoring, scoring_of


@frozen
class Shadow:
    """A second slot of a decoding choice: its state as it was after `at` tokens, once every flight has landed."""

    slot: int
    at: int


@frozen
class Capture:
    """A snapshot that a step in flight takes: the state after `position` tokens, and the open page as it then is."""

    position: int
    slot: int
    tail_page: int | None


@define(eq=False)
class Guide:
    """What is known of a choice's next tokens; their numbers count from the prompt's first.

    Tokens before number free_until need no mask; `allowed` is the mask for token number mask_for.
    """

    # How many generated tokens the grammar stage was told of, None before its first question.
    num_told: int | None = None
    # Whether an answer is on its way.
    is_asked: bool = False
    free_until: int = 0
    mask_for: int = 0
    allowed: Words | None = None


@define(eq=False, slots=False)
class Choice:
    """One admitted choice; `number` rises with each admission to the queue's head, so the highest is the newest.

    num_computed counts the tokens of a prefill whose latents and state are on the device; the token after them is the
    next to be read. While it decodes only the newest token has not been read yet, and nobody counts.
    """

    submit: Submit
    number: int
    rank: int = 0
    phase: Phase = Phase.WAITING
    generated: list[int] = field(factory=list)
    slot: int = 0
    pages: list[int] = field(factory=list)
    # Of `pages`, those that the prefix tree owns: read only.
    borrowed: set[int] = field(factory=set)
    num_computed: int = 0
    # Where the slot's counts are kept.
    progress: Progress = NOTHING
    # Nodes of the prefix tree: the deepest whose pages it reads, the one it resumed from, and that one again until its
    # snapshot has been copied.
    node: Node | None = None
    origin: Node | None = None
    source: Node | None = None
    # How much of it this choice has put into the tree itself.
    num_inserted: int = 0
    # Positions of the prompt, rising, at which its prefill will be asked for a snapshot.
    captures: list[int] = field(factory=list)
    # Where its first admission began, and how much of that came back from host memory.
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    num_retractions: int = 0
    # Its conversation went on from before its last answer's end, so it may do so again.
    leaves_answers: bool = False
    # Tokens of the prompt.
    num_prompt: int = field(init=False)
    # What its rules and its penalties have come to, None where it has none; they outlive a retraction.
    guide: Guide | None = field(init=False, default=None)
    adjusting: Adjusting | None = field(init=False, default=None)
    # The logprobs of its prompt until they are told.
    scoring: PromptScoring | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.num_prompt = len(self.submit.prompt_ids)
        if self.submit.rules is not None and self.submit.max_new_tokens > 0:
            self.guide = Guide()
        self.scoring = scoring_of(self.submit)

    @property
    def num_flights(self) -> int:
        """Return how many steps of it are on the device."""
        return int(self.progress.num_flights[self.slot])

    @property
    def num_written(self) -> int:
        """Return how many tokens its state has read once every step in flight is done."""
        return int(self.progress.num_written[self.slot])

    @property
    def shadows(self) -> list[Shadow]:
        """Return its shadows."""
        progress, slot = self.progress, self.slot
        pairs = zip(progress.shadow_slots[slot].tolist(), progress.shadow_at[slot].tolist(), strict=True)
        return [Shadow(shadow, at) for shadow, at in pairs if shadow]

    @property
    def num_tokens(self) -> int:
        """Return how many tokens are known: prompt and generated."""
        return self.num_prompt + len(self.generated)

    @property
    def max_cached_tokens(self) -> int:
        """Return how many tokens a prefill may resume after: the last is read for its logits, so is what is scored."""
        limit = self.num_tokens - 1
        return limit if self.scoring is None else min(limit, self.scoring.next_position)

    @property
    def num_remaining(self) -> int:
        """Return how many tokens may still be generated."""
        return self.submit.max_new_tokens - len(self.generated)

    @property
    def usage(self) -> Usage:
        """Return the token counts so far."""
        # All by position: this is built for every row of every step.
        return Usage(
            self.num_prompt,
            len(self.generated),
            self.cached_tokens,
            0,
            self.cached_host_tokens,
            self.num_retractions,
        )

    @cached_property
    def prompt(self) -> Ints32:
        """The prompt's ids as an array."""
        return np.array(self.submit.prompt_ids, np.int32)

    def begin_edits(self) -> None:
        """Count the prompt's tokens where penalties or biases ask for it, the first time it gets a slot."""
        if self.adjusting is None and self.submit.max_new_tokens > 0:
            self.adjusting = adjusting_of(self.submit)

    def ids(self) -> Ints32:
        """Return all known ids."""
        return np.concatenate([self.prompt, np.array(self.generated, np.int32)]) if self.generated else self.prompt

    def on(self, signal: Signal) -> None:
        """Move to the phase after `signal`; raises IllegalTransition."""
        self.phase = advance(self.phase, signal)

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        """Return the known ids at positions [start, end) of prompt + generated."""
        num_prompt = len(self.submit.prompt_ids)
        if end <= num_prompt:
            return self.submit.prompt_ids[start:end]
        return self.submit.prompt_ids[start:] + tuple(self.generated[max(0, start - num_prompt) : end - num_prompt])

    def finish_after_newest(self) -> Finish | None:
        """Return why the newest token ends the choice, or None; before min_new_tokens an end token does not."""
        newest, num_generated = self.generated[-1], len(self.generated)
        if newest in self.submit.stop_token_ids and num_generated >= self.submit.min_new_tokens:
            return Finish("stop", matched=newest)
        if num_generated >= self.submit.max_new_tokens:
            return Finish("length")
        return None
