"""Answers of SGLang's /generate: events to stream events, or to one object or a list of them."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from attrs import define, field

from stages.errors import Unavailable
from stages.ingress.dialect import Call, Collected
from stages.ingress.dialects.choices import cached_details, finite, token_text
from stages.ingress.dialects.common import DONE, WEIGHT_VERSION, derived_id, frame
from stages.ingress.dialects.openai_common import raise_failure
from stages.ingress.dialects.prompt_logprobs import PromptScores, scores_in
from stages.ingress.error_bodies import message_of
from stages.messages import Ask, Ended, Event, Finish, Prompt, TokenLogprob, Usage


@define
class _Sample:
    """One sample so far; the sent_* counts say how much of it earlier stream events carried."""

    text: str = ""
    token_ids: list[int] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)
    usage: Usage = field(factory=lambda: Usage(0, 0))
    finish: Finish | None = None
    sent_characters: int = 0
    sent_tokens: int = 0
    sent_logprobs: int = 0

    def add(self, event: Event) -> None:
        """Take in a Delta or the Ended."""
        self.usage = event.usage
        if isinstance(event, Ended):
            self.finish = event.finish
            return
        self.text += event.text
        self.token_ids.extend(event.token_ids)
        self.logprobs.extend(event.logprobs)

    def is_due(self, interval: int) -> bool:
        """Say whether an event should go out now: at once at first, then every `interval` tokens, always at the end."""
        return self.finish is not None or self.sent_tokens == 0 or len(self.token_ids) - self.sent_tokens >= interval

    def mark_sent(self) -> None:
        """Remember that everything so far has gone out."""
        self.sent_characters, self.sent_tokens = len(self.text), len(self.token_ids)
        self.sent_logprobs = len(self.logprobs)


@define(eq=False)
class GenerateEncoder:
    """Events to SGLang's stream events, or to one object or list of them."""

    call: Call
    asks: tuple[Ask, ...]
    is_list: bool
    incremental: bool
    with_text: bool
    with_prompt: bool
    intervals: tuple[int, ...]
    # Whether nothing was to be generated: the one token that is nevertheless, for its logprob, is not shown.
    are_scoring: tuple[bool, ...]
    scores: list[PromptScores] = field(init=False)
    samples: list[list[_Sample]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.samples = [[_Sample() for _ in range(ask.num_choices)] for ask in self.asks]
        self.scores = [PromptScores(is_known=ask.prompt_logprobs_from is None) for ask in self.asks]

    def start(self) -> list[bytes]:
        """Return nothing: the first event comes with the first token."""
        return []

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the stream events of one event and of those that waited for the prompt's scores in it."""
        events = self.scores[ask_index].take(event)
        return [one for event in events for one in self._tell(ask_index, prompt, event)]

    def _tell(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the stream event of one event, whole or incremental."""
        sample = self.samples[ask_index][event.choice]
        sample.add(event)
        _raise_failure(sample.finish)
        if not sample.is_due(self.intervals[ask_index]):
            return []
        value = self._object(ask_index, event.choice, prompt, sample)
        if self.is_list:
            value["index"] = self._index(ask_index, event.choice)
        sample.mark_sent()
        return [frame(value)]

    def finish(self) -> list[bytes]:
        """Return [DONE]."""
        return [DONE]

    def failed(self, error: Exception) -> list[bytes]:
        """Return the error event and [DONE]."""
        return RefusedStream(error).start()

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole answer; the first sample that was refused is the answer of all."""
        values = []
        for ask_index, one in enumerate(collected):
            samples = [_Sample() for _ in range(self.asks[ask_index].num_choices)]
            self.scores[ask_index].entries = scores_in(one.events)
            for event in one.events:
                samples[event.choice].add(event)
            for choice, sample in enumerate(samples):
                _raise_failure(sample.finish)
                if (refusal := _refusal(sample.finish)) is not None:
                    return refusal
                values.append(self._object(ask_index, choice, one.prompt, sample))
        return HTTPStatus.OK, values if self.is_list else values[0]

    def _index(self, ask_index: int, choice: int) -> int:
        return ask_index * self.asks[0].num_choices + choice

    def _object(self, ask_index: int, choice: int, prompt: Prompt, sample: _Sample) -> dict[str, Any]:
        from_character, from_token = (sample.sent_characters, sample.sent_tokens) if self.incremental else (0, 0)
        value: dict[str, Any] = {
            "text": sample.text[from_character:],
            "output_ids": sample.token_ids[from_token:],
            "meta_info": self._meta(ask_index, choice, prompt, sample),
        }
        if self.are_scoring[ask_index]:
            value |= {"text": "", "output_ids": []}
        if self.with_prompt:
            value["prompt_token_ids"] = prompt.token_ids
        return value

    def _meta(self, ask_index: int, choice: int, prompt: Prompt, sample: _Sample) -> dict[str, Any]:
        ask, usage = self.asks[ask_index], sample.usage
        many = ask.num_choices > 1
        meta: dict[str, Any] = {
            "id": derived_id(ask.request_id, choice) if many else ask.request_id,
            "finish_reason": None if sample.finish is None else _reason(sample.finish, ask, usage),
            "prompt_tokens": len(prompt.token_ids),
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cached_tokens_details": cached_details(usage),
            "weight_version": WEIGHT_VERSION,
            "num_retractions": usage.num_retractions,
            "dp_rank": None,
        }
        if self.are_scoring[ask_index]:
            meta["completion_tokens"] = meta["reasoning_tokens"] = 0
            if sample.finish is not None and sample.finish.kind in ("stop", "length"):
                meta["finish_reason"] = {"type": "length", "length": 0}
        if ask.logprobs:
            meta |= self._input_logprobs(ask, prompt, self.scores[ask_index].entries)
            meta |= self._output_logprobs(ask, sample)
        if sample.finish is not None and self.call.elapsed_s is not None:
            meta["e2e_latency"] = self.call.elapsed_s()
        return meta

    def _input_logprobs(self, ask: Ask, prompt: Prompt, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the lists of the prompt from where they begin; the first token there has no logprob and no rows.

        Ids to score without a beginning are told of the last token alone, as SGLang does.
        """
        start = ask.prompt_logprobs_from
        if start is None and ask.logprob_token_ids:
            start = len(prompt.token_ids) - 1
        first: list[Any] = []
        if start is not None and start < len(prompt.token_ids):
            text = token_text(entries[0].token_bytes) if entries and self.with_text else None
            first = [(None, prompt.token_ids[start], text)]
        rest = self._lists("input", ask, entries[1:])
        none = [None] * len(first)
        return {name: [*(first if name == "input_token_logprobs" else none), *rows] for name, rows in rest.items()}

    def _output_logprobs(self, ask: Ask, sample: _Sample) -> dict[str, Any]:
        entries = sample.logprobs[sample.sent_logprobs if self.incremental else 0 :]
        return {**self._lists("output", ask, entries), "output_token_logprobs_length": len(sample.logprobs)}

    def _lists(self, side: str, ask: Ask, entries: Sequence[TokenLogprob]) -> dict[str, list[Any]]:
        lists: dict[str, list[Any]] = {
            f"{side}_token_logprobs": [self._triple(e.token_id, e.logprob, e.token_bytes) for e in entries]
        }
        if most := ask.num_top_logprobs:
            lists[f"{side}_top_logprobs"] = [[self._triple(*one) for one in e.top[:most]] for e in entries]
        if ask.logprob_token_ids:
            lists[f"{side}_token_ids_logprobs"] = [[self._triple(*one) for one in e.wanted] for e in entries]
        return lists

    def _triple(self, token_id: int, logprob: float, token_bytes: bytes) -> tuple[float, int, str | None]:
        return finite(logprob), token_id, token_text(token_bytes) if self.with_text else None


@define(eq=False)
class RefusedStream:
    """A stream that says only why there is none; status 200, as SGLang has it."""

    error: Exception

    def start(self) -> list[bytes]:
        """Return the error event and [DONE]."""
        status = int(getattr(self.error, "status", HTTPStatus.INTERNAL_SERVER_ERROR))
        is_clients = status < HTTPStatus.INTERNAL_SERVER_ERROR
        error = {
            "message": message_of(self.error),
            "type": "invalid_request_error" if is_clients else "server_error",
            "code": status,
            "retryable": status == HTTPStatus.SERVICE_UNAVAILABLE,
        }
        return [frame({"error": error}), DONE]

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return nothing: there are no events of no asks."""
        return []

    def finish(self) -> list[bytes]:
        """Return nothing: start() said it all."""
        return []

    def failed(self, error: Exception) -> list[bytes]:
        """Return nothing: start() said it all."""
        return []

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Raise the error: a stream has no body."""
        raise self.error


def _reason(finish: Finish, ask: Ask, usage: Usage) -> dict[str, object]:
    if finish.kind == "length":
        most = ask.limits.max_new_tokens
        return {"type": "length", "length": usage.completion_tokens if most is None else most}
    if finish.kind == "stop":
        return {"type": "stop", "matched": finish.matched}
    err_type = "BadRequestError" if finish.status == HTTPStatus.BAD_REQUEST else None
    return {"type": "abort", "message": finish.message, "status_code": finish.status, "err_type": err_type}


def _raise_failure(finish: Finish | None) -> None:
    if finish is not None:
        raise_failure(finish)


def _refusal(finish: Finish | None) -> tuple[int, object] | None:
    """Return status and body of an abort that carries a status; None for an ordinary end or a user's abort.

    Raises Unavailable for a 503, so that its answer says when to come again, as every other 503 does.
    """
    if finish is None or finish.kind != "abort" or finish.status is None:
        return None
    message = finish.message or "Aborted"
    if finish.status == HTTPStatus.BAD_REQUEST:
        return finish.status, {"error": {"message": message}}
    if finish.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise Unavailable(message)
    flat = {"object": "error", "message": message, "type": str(finish.status), "param": None, "code": finish.status}
    return finish.status, flat
