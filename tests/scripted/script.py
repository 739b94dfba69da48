"""Chosen token ids as a scheduler would send them: what a choice generates, cut into steps, and how it ends."""

from collections.abc import Iterator, Sequence

import trio
from attrs import define, evolve, field, frozen

from stages.detokenizer.choice import Choice, Decoding
from stages.detokenizer.stage import open_decoding
from stages.messages import Ask, ChoiceKey, Event, Finish, Prompt, Submit, TokensRow, Usage
from stages.prompt.tokenizer import open_prompt_tokenizer
from stages.settings import DetokenizerSettings
from trnrt.config import Config
from trnrt.served import DEMO_FILES, read_served_model

MODEL = read_served_model(Config()).settings
TOKENIZER = open_prompt_tokenizer(str(DEMO_FILES))
DECODING: Decoding = open_decoding(DetokenizerSettings(str(DEMO_FILES), "glm45", "glm47"))
# How a turn of calls ends, and one of text.
END = TOKENIZER.control_ids["<|observation|>"]
END_OF_TEXT = TOKENIZER.control_ids["<|user|>"]
PROMPT = Prompt((1, 2, 3), in_reasoning=True)
SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "i": {"type": "integer"},
        "o": {"type": "object"},
        "l": {"type": "array"},
    },
}
MINUS_INFINITY = float("-inf")


def call(name: str = "f", /, **arguments: str) -> str:
    """A tool call as the model writes it."""
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{pairs}</tool_call>"


def encoded(text: str) -> tuple[int, ...]:
    """The ids of a text whose tags are tokens."""
    return TOKENIZER.encode_texts([text])[0]


@frozen
class Script:
    """What one choice generates; `finish` is how it ends once the ids are used up, None for never.

    A stop token, the budget and a stop string end it before that, as they do in the scheduler and the detokenizer.
    """

    ids: tuple[int, ...]
    finish: Finish | None = None


def script(text: str, finish: Finish | None = None, end: int = END) -> Script:
    """The script of a text, which ends by a stop token unless another finish is given."""
    return Script((*encoded(text), *(() if finish else (end,))), finish)


def submit_of(ask: Ask, prompt: Prompt = PROMPT, choice: int = 0, budget: int = 4096) -> Submit:
    """One choice of an ask as the request task sends it; its mailbox takes nothing."""
    mailbox, events = trio.open_memory_channel[Event](0)
    events.close()
    return Submit(
        key=ChoiceKey("r", choice),
        prompt_ids=prompt.token_ids,
        sampling=ask.sampling,
        seed=choice,
        max_new_tokens=ask.limits.max_new_tokens or budget,
        min_new_tokens=ask.limits.min_new_tokens,
        stop_token_ids=frozenset() if ask.limits.ignore_eos else ask.limits.stop_token_ids | MODEL.eos_token_ids,
        stop=ask.limits.stop,
        stop_regex=ask.limits.stop_regex,
        form=ask.form,
        in_reasoning=prompt.in_reasoning,
        logprobs=ask.logprobs,
        num_top_logprobs=ask.num_top_logprobs,
        mailbox=mailbox,
    )


@define(eq=False)
class Stepper:
    """A choice's share of each step: `row` gives the next ids, and the end when they bring it."""

    submit: Submit
    script: Script
    cached_tokens: int = 0
    num_done: int = field(default=0, init=False)
    has_ended: bool = field(default=False, init=False)

    def row(self, num_tokens: int) -> TokensRow | None:
        """Return at most num_tokens more; None where there is nothing to tell."""
        if self.has_ended:
            return None
        ids = self.script.ids[self.num_done : self.num_done + num_tokens]
        for number, token_id in enumerate(ids, start=1):
            finish = self._finish_after(token_id, self.num_done + number)
            if finish is not None:
                return self._told(ids[:number], finish)
        if ids:
            return self._told(ids, None)
        return None if self.script.finish is None else self._told((), self.script.finish)

    def ended(self, finish: Finish) -> TokensRow:
        """Return the row that ends it from outside."""
        return self._told((), finish)

    def _finish_after(self, token_id: int, num_generated: int) -> Finish | None:
        if token_id in self.submit.stop_token_ids and num_generated >= self.submit.min_new_tokens:
            return Finish("stop", matched=token_id)
        if num_generated >= self.submit.max_new_tokens:
            return Finish("length")
        return None

    def _told(self, ids: Sequence[int], finish: Finish | None) -> TokensRow:
        self.num_done += len(ids)
        self.has_ended = finish is not None
        usage = Usage(len(self.submit.prompt_ids), self.num_done, self.cached_tokens)
        row = TokensRow(self.submit, tuple(ids), finish=finish, usage=usage)
        if not self.submit.logprobs:
            return row
        top = tuple(alternatives(token_id)[: self.submit.num_top_logprobs] for token_id in ids)
        return evolve(row, logprobs=tuple(map(logprob, ids)), top=top)


def logprob(token_id: int) -> float:
    """A token's logprob: some number, and minus infinity for every eighth as a mask would have it."""
    return MINUS_INFINITY if token_id % 8 == 0 else -0.25 * (1 + token_id % 7)


def alternatives(token_id: int) -> tuple[tuple[int, float], ...]:
    """The best tokens in a token's place, the second half of them masked."""
    others = [(token_id + 37 * number) % MODEL.vocab_size for number in range(1, 20)]
    finite = [(other, -0.5 * (3 + number)) for number, other in enumerate(others[:9])]
    masked = [(other, MINUS_INFINITY) for other in others[9:]]
    best = (token_id, logprob(token_id))
    return (*finite, *masked, best) if best[1] == MINUS_INFINITY else (best, *finite, *masked)


def events_of(submits: Sequence[Submit], scripts: Sequence[Script], step: int, cached_tokens: int = 0) -> list[Event]:
    """The events of all choices, their steps by turns, `step` ids a step."""
    choices = [Choice(submit, DECODING) for submit in submits]
    steppers = [Stepper(submit, one, cached_tokens) for submit, one in zip(submits, scripts, strict=True)]
    return [
        event
        for rows in rounds(steppers, step)
        for choice, row in zip(choices, rows, strict=True)
        if row is not None
        for event in choice.take(row)
    ]


def rounds(steppers: Sequence[Stepper], step: int) -> Iterator[list[TokensRow | None]]:
    """Yield every choice's row of each step until none has one."""
    while any(rows := [stepper.row(step) for stepper in steppers]):
        yield rows
