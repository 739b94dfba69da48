"""What one choice has brought so far, folded from its events, and token counts over all choices of a call."""

import json
from collections.abc import Iterable

from attrs import define, evolve, field

from stages.ingress.dialect import Collected
from stages.messages import Delta, Ended, Event, Finish, TokenLogprob, ToolCallDelta, Usage

MINUS_INFINITY = -9999.0


def is_object(text: str) -> bool:
    """Say whether `text` is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@define
class Call:
    """One tool call so far; arguments is a list of pieces that joined are one JSON object's text."""

    name: str = ""
    arguments: list[str] = field(factory=list)
    # The model's own id of it, where its format has one.
    call_id: str | None = None

    @property
    def text(self) -> str:
        """Return the arguments joined."""
        return "".join(self.arguments)

    def is_complete(self) -> bool:
        """Say whether the arguments are one whole JSON object."""
        return is_object(self.text)


@define
class Calls:
    """The tool calls of one choice, by rising index."""

    by_index: dict[int, Call] = field(factory=dict)

    def add(self, piece: ToolCallDelta) -> None:
        """Add a piece of a call."""
        call = self.by_index.setdefault(piece.index, Call())
        if piece.name is not None:
            call.name = piece.name
            call.call_id = piece.call_id
        if piece.arguments:
            call.arguments.append(piece.arguments)

    def are_complete(self) -> bool:
        """Say whether there is a call and the last one was not cut off."""
        return bool(self.by_index) and self.by_index[max(self.by_index)].is_complete()


@define
class Choice:
    """One choice of an answer; every list is in the order the events came in."""

    text: list[str] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    calls: Calls = field(factory=Calls)
    token_ids: list[int] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)
    usage: Usage = field(factory=lambda: Usage(0, 0))
    finish: Finish | None = None

    def add(self, event: Event) -> None:
        """Take in a Delta or the Ended."""
        self.usage = event.usage
        if isinstance(event, Ended):
            self.finish = event.finish
            return
        self.token_ids.extend(event.token_ids)
        self.logprobs.extend(event.logprobs)
        if event.text:
            self.text.append(event.text)
        if event.reasoning:
            self.reasoning.append(event.reasoning)
        for piece in event.tool_calls:
            self.calls.add(piece)


def fold(collected: Collected, num_choices: int) -> list[Choice]:
    """Return the ask's choices by index from its events."""
    choices = [Choice() for _ in range(num_choices)]
    for event in collected.events:
        choices[event.choice].add(event)
    return choices


@define
class Tally:
    """Token counts of a whole call: each ask's prompt once, the completions of every choice."""

    prompt_tokens: dict[int, int] = field(factory=dict)
    latest: dict[tuple[int, int], Usage] = field(factory=dict)

    def add(self, ask_index: int, prompt_tokens: int, event: Delta | Ended) -> None:
        """Take in the counts an event carries."""
        self.prompt_tokens[ask_index] = prompt_tokens
        self.latest[ask_index, event.choice] = event.usage

    def of(self, ask_index: int, choice: int) -> Usage:
        """Return what one choice has taken so far, its prompt among it."""
        usage = self.latest.get((ask_index, choice), Usage(0, 0))
        return evolve(usage, prompt_tokens=self.prompt_tokens.get(ask_index, usage.prompt_tokens))

    def total(self) -> Usage:
        """Return the sums; an ask's cached tokens are those of its first choice, as its prompt is counted once."""
        first: dict[int, tuple[int, Usage]] = {}
        for (ask, choice), usage in self.latest.items():
            if ask not in first or choice < first[ask][0]:
                first[ask] = choice, usage
        firsts = [usage for _, usage in first.values()]
        return Usage(
            prompt_tokens=sum(self.prompt_tokens.values()),
            completion_tokens=sum(usage.completion_tokens for usage in self.latest.values()),
            cached_tokens=sum(usage.cached_tokens for usage in firsts),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in self.latest.values()),
            cached_host_tokens=sum(usage.cached_host_tokens for usage in firsts),
            num_retractions=sum(usage.num_retractions for usage in self.latest.values()),
        )


def tally(collected: Iterable[Collected]) -> Usage:
    """Return the token counts of an answer that is not streamed."""
    counts = Tally()
    for ask_index, one in enumerate(collected):
        for event in one.events:
            counts.add(ask_index, len(one.prompt.token_ids), event)
    return counts.total()


def cached_details(usage: Usage) -> dict[str, int] | None:
    """Return how many cached tokens were on the device and how many came from host memory; None for no cached ones."""
    if not usage.cached_tokens:
        return None
    return {"device": usage.cached_tokens - usage.cached_host_tokens, "host": usage.cached_host_tokens}


def finite(logprob: float) -> float:
    """Return `logprob`, or the stand-in for minus infinity that JSON can carry."""
    return logprob if logprob > MINUS_INFINITY else MINUS_INFINITY


def token_json(token_bytes: bytes, logprob: float) -> dict[str, object]:
    """Return a token with its logprob as OpenAI's APIs tell it."""
    return {"token": token_text(token_bytes), "logprob": finite(logprob), "bytes": list(token_bytes)}


def token_text(token_bytes: bytes) -> str:
    """Return one token's own text; part of a character becomes a replacement character."""
    return token_bytes.decode("utf-8", "replace")
