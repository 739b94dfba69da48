"""Logprobs of a prompt's tokens and of ids the client names: their fields, and where they stand in a stream of events.

The first choice of an ask scores the prompt all of them share, and its first Delta brings the scores. Whatever another
choice brings before that waits, so that every choice's answer can begin with them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from attrs import define, field, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialects.choices import finite, token_text
from stages.messages import Delta, Event, TokenLogprob
from stages.settings import Bounds, ModelSettings

MAX_LOGPROB_IDS = 128


@frozen(kw_only=True, slots=False)
class LogprobFields:
    """vLLM's fields, of both completions APIs; a wire class of a request's body inherits them."""

    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None


def check_prompt_logprobs(body: LogprobFields, bounds: Bounds, *, stream: bool) -> int | None:
    """Return how many alternatives go with each logprob of the prompt, None for no such logprobs."""
    wanted = body.prompt_logprobs
    if wanted is None:
        return None
    most = bounds.max_top_logprobs
    if not 0 <= wanted <= most:
        raise _wrong("prompt_logprobs", f"prompt_logprobs must be between 0 and {most}, got {wanted}.")
    if stream:
        raise _wrong("prompt_logprobs", "prompt_logprobs are not available when stream is true.")
    return wanted


def check_logprob_ids(body: LogprobFields, model: ModelSettings, *, logprobs: bool) -> tuple[int, ...]:
    """Return the ids whose logprobs are wanted with every token's, each once; raises InvalidRequest."""
    name, ids = "logprob_token_ids", body.logprob_token_ids or []
    if ids and not logprobs:
        raise _wrong(name, f"{name} needs logprobs.")
    if len(ids) > MAX_LOGPROB_IDS:
        raise _wrong(name, f"at most {MAX_LOGPROB_IDS} {name} are allowed, got {len(ids)}")
    for token_id in ids:
        if not 0 <= token_id < model.vocab_size:
            raise _wrong(name, f"{name} must be in [0, {model.vocab_size - 1}], got {token_id}.")
    return tuple(dict.fromkeys(ids))


@define
class PromptScores:
    """The scores of one ask's prompt, once they are known, and the events that wait for them."""

    entries: Sequence[TokenLogprob] = ()
    is_known: bool = False
    waiting: list[Event] = field(factory=list)

    def take(self, event: Event) -> list[Event]:
        """Return the events that may be told now, in order; a first choice that ends unscored frees the others too."""
        if self.is_known:
            return [event]
        if event.choice != 0:
            self.waiting.append(event)
            return []
        self.is_known = True
        if isinstance(event, Delta):
            self.entries = event.prompt_logprobs
        waiting, self.waiting = self.waiting, []
        return [event, *waiting]


def scores_in(events: Iterable[Event]) -> Sequence[TokenLogprob]:
    """Return the scores of the prompt that an ask's events brought, none where none did."""
    return next((e.prompt_logprobs for e in events if isinstance(e, Delta) and e.prompt_logprobs), ())


def prompt_logprobs_json(entries: Sequence[TokenLogprob], num_top: int) -> list[Mapping[str, object] | None]:
    """Return vLLM's prompt_logprobs: null for the first token, then by id the token itself and the best others.

    The rank of a token that is none of the best is null: nothing else of the distribution is known.
    """
    return [None if math.isnan(entry.logprob) else _position(entry, num_top) for entry in entries]


def with_wanted(entry: TokenLogprob, num_top: int) -> list[tuple[int, float, bytes]]:
    """Return the best tokens at an entry's place, then those the client named that are none of them."""
    best = entry.top[:num_top]
    known = {token_id for token_id, *_ in best}
    return [*best, *(one for one in entry.wanted if one[0] not in known)]


def _position(entry: TokenLogprob, num_top: int) -> Mapping[str, object]:
    position: dict[str, object] = {str(entry.token_id): _one(entry.logprob, entry.token_bytes, None)}
    for rank, (token_id, logprob, token_bytes) in enumerate(entry.top[:num_top], 1):
        position[str(token_id)] = _one(logprob, token_bytes, rank)
    return position


def _one(logprob: float, token_bytes: bytes, rank: int | None) -> Mapping[str, object]:
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": token_text(token_bytes)}


def _wrong(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, name, "invalid_value")
