"""One choice inside the scheduler: what was asked, what came out, and what of the device it holds. Core."""

from attrs import define, field

from stages.messages import Finish, Submit, Usage
from stages.scheduler.lifecycle import Phase, Signal, advance


@define(eq=False)
class Choice:
    """One admitted choice; `number` rises with each first admission, so the highest is the newest.

    num_computed counts the tokens whose latents and state are on the device; the token after them is the next to
    be read. While decoding it is num_tokens - 1: only the newest token has not been read yet.
    """

    submit: Submit
    number: int
    phase: Phase = Phase.WAITING
    generated: list[int] = field(factory=list)
    slot: int = 0
    pages: list[int] = field(factory=list)
    num_computed: int = 0
    # Steps given to the device and not done yet that read or write this choice's slot and pages. Each brings one token
    # at most; of a decoding choice each brings one.
    num_flights: int = 0

    @property
    def num_tokens(self) -> int:
        """Return how many tokens are known: prompt and generated."""
        return len(self.submit.prompt_ids) + len(self.generated)

    @property
    def num_remaining(self) -> int:
        """Return how many tokens may still be generated."""
        return self.submit.max_new_tokens - len(self.generated)

    @property
    def usage(self) -> Usage:
        """Return the token counts so far."""
        return Usage(len(self.submit.prompt_ids), len(self.generated))

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
