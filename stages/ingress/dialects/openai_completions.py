"""`POST /v1/completions`: OpenAI's text completions, raw text in and out, one or several prompts.

Choices are numbered prompt by prompt: index = prompt index x n + sample.
"""

import codecs
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from attrs import define, evolve, field, frozen

from stages.ingress.dialect import BodyForm, Call, Collected, Dialect, Parsed, Route
from stages.ingress.dialects.choices import Tally, finite, fold, tally, token_text
from stages.ingress.dialects.common import MAX_PROMPTS, WEIGHT_VERSION, frame, repeated
from stages.ingress.dialects.constraints import constrain
from stages.ingress.dialects.fields import all_in_range, shown
from stages.ingress.dialects.grammars import read_format
from stages.ingress.dialects.openai_common import (
    NOT_SERVED as COMMON_NOT_SERVED,
)
from stages.ingress.dialects.openai_common import (
    CommonBody,
    Head,
    StreamOptions,
    check_choices,
    check_model,
    check_request_id,
    check_stream_options,
    check_top,
    error_frames,
    error_json,
    head,
    invalid,
    last_frames,
    raise_refusal,
    read_body,
    read_limits,
    read_sampling,
    refuse_unserved,
    sglext_json,
    stop_reason,
    usage_json,
)
from stages.ingress.dialects.placement import place
from stages.ingress.dialects.prompt_logprobs import (
    LogprobFields,
    PromptScores,
    check_logprob_ids,
    check_prompt_logprobs,
    prompt_logprobs_json,
    scores_in,
    with_wanted,
)
from stages.messages import Ask, Ended, Event, Finish, Prompt, TextForm, TokenLogprob
from stages.settings import ModelSettings

KIND = "text_completion"
DEFAULT_MAX_TOKENS = 16

NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "suffix": ("",),
    "prompt_embeds": (),
    "add_special_tokens": (True,),
}


@frozen(kw_only=True)
class CompletionBody(CommonBody, LogprobFields):
    """The body of a text completion."""

    prompt: str | list[str] | list[int] | list[list[int]] | None = field(
        default=None, metadata=shown(required=True, minLength=1, minItems=1, maxItems=MAX_PROMPTS)
    )
    echo: bool = False
    logprobs: int | None = None
    response_format: dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    best_of: int | None = None
    return_token_ids: bool = False
    rid: str | list[str] | None = None


def parse(call: Call, model: ModelSettings) -> Parsed:
    """Return the completions asked for; raises RequestError naming the field."""
    body = read_body(CompletionBody, call.body)
    refuse_unserved(call.body, NOT_SERVED)
    options = check_stream_options(body)
    prompts = _prompts(body, model.vocab_size)
    n = check_choices(body.n, model.bounds, len(prompts))
    if body.best_of is not None and body.best_of != n:
        raise invalid("best_of", "best_of is not supported by this server.", "unsupported_parameter")
    num_top = check_top("logprobs", body.logprobs, model.bounds)
    num_prompt_top = check_prompt_logprobs(body, model.bounds, stream=body.stream)
    logprob_ids = check_logprob_ids(body, model, logprobs=body.logprobs is not None)
    form = read_format(body.response_format, "response_format")
    rid, ids = _request_ids(body, len(prompts))
    top = head(call, "cmpl", check_model(body.model, model), rid, body.request_id)
    common = Ask(
        request_id=top.id,
        prompt="",
        sampling=read_sampling(body, model.completion_sampling, model.bounds),
        penalties=model.completion_penalties,
        limits=read_limits(body, _budget(body), model),
        form=TextForm(skip_special_tokens=body.skip_special_tokens, keep_stop=body.keep_stop()),
        num_choices=n,
        stream=body.stream,
        logprobs=body.logprobs is not None,
        num_top_logprobs=max(num_top, num_prompt_top or 0),
        logprob_token_ids=logprob_ids,
    )
    common = constrain(common, body, model, form, after_reasoning=False)
    asks = tuple(
        evolve(
            common,
            request_id=request_id or (top.id if len(prompts) == 1 else f"{top.id}_{index}"),
            prompt=prompt,
            prompt_logprobs_from=0 if num_prompt_top is not None or _echoes_scores(body, prompt) else None,
            engine_rids=_engine_rids(top.id, index, request_id, n),
        )
        for index, (prompt, request_id) in enumerate(zip(prompts, ids, strict=True))
    )
    asks = place(asks, body, call)
    encoder = CompletionEncoder(
        top,
        asks,
        model,
        options,
        body.echo,
        with_cache_details=body.return_cached_tokens_details,
        with_ids=body.return_token_ids,
        num_top=num_top,
        num_prompt_top=num_prompt_top,
    )
    return Parsed(asks, body.stream, encoder)


def _prompts(body: CompletionBody, vocab_size: int) -> list[str | tuple[int, ...]]:
    given: Any = body.prompt
    is_single = not isinstance(given, list) or not given or isinstance(given[0], int)
    items = [given] if is_single else given
    prompts = [tuple(item) if isinstance(item, list) else item or "" for item in items]
    if not all(prompts):
        raise invalid("prompt", "Prompt cannot be empty")
    if len(prompts) > MAX_PROMPTS:
        raise invalid("prompt", f"at most {MAX_PROMPTS} prompts are allowed, got {len(prompts)}")
    for prompt in prompts:
        if not isinstance(prompt, str) and not all_in_range(prompt, 0, vocab_size - 1):
            raise invalid("prompt", f"prompt has a token id outside [0, {vocab_size - 1}].")
    return prompts


def _echoes_scores(body: CompletionBody, prompt: str | tuple[int, ...]) -> bool:
    """Say whether an echo needs the prompt's scores: for its logprobs, or for the text of a prompt of ids."""
    return body.echo and (body.logprobs is not None or not isinstance(prompt, str))


def _request_ids(body: CompletionBody, num_prompts: int) -> tuple[str | None, Sequence[str | None]]:
    """Return the client's rid for the answer and one for each prompt, None where the client gave none."""
    if not isinstance(body.rid, list):
        return body.rid, [None] * num_prompts
    for index, rid in enumerate(body.rid):
        check_request_id(f"rid.{index}", rid)
    if len(body.rid) != num_prompts:
        text = "The specified rids length mismatch with the batch_size for batch processing."
        raise invalid("rid", text)
    if len(set(body.rid)) != len(body.rid):
        twice = repeated(body.rid)
        raise invalid("rid", f"Duplicate request IDs detected within the request: {twice}")
    return body.rid[0], body.rid


def _engine_rids(answer_id: str, index: int, request_id: str | None, n: int) -> tuple[str, ...]:
    """Return the ids of a prompt's choices for an engine behind this server: the client's own, where each has one."""
    if request_id is None:
        return tuple(f"{answer_id}-{index * n + sample}" for sample in range(n))
    return (request_id,) if n == 1 else tuple(f"{request_id}-{sample}" for sample in range(n))


def _budget(body: CompletionBody) -> int:
    budget = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if budget < 0 or (budget == 0 and not body.echo and body.prompt_logprobs is None):
        raise invalid("max_tokens", "max_tokens must be positive")
    return budget


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


@define
class LegacyLogprobs:
    """Makes legacy logprobs of one choice's tokens; offset counts the whole characters before the next token."""

    num_top: int
    offset: int = 0
    decoder: codecs.IncrementalDecoder = field(factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def take(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        """Return the four parallel lists of the next tokens; a prompt's first token has neither logprob nor top."""
        offsets = []
        for entry in entries:
            offsets.append(self.offset)
            self.offset += len(self.decoder.decode(entry.token_bytes))
        return {
            "tokens": [token_text(entry.token_bytes) for entry in entries],
            "token_logprobs": [None if _is_first(entry) else finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if _is_first(entry) else self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Return the best, wanted and sampled tokens by their text; of two with one text the better stays."""
        best: dict[str, float] = {}
        for _, logprob, token_bytes in (*with_wanted(entry, self.num_top), (0, entry.logprob, entry.token_bytes)):
            text = token_text(token_bytes)
            best[text] = max(best.get(text, -math.inf), finite(logprob))
        return best


@define
class _Streamed:
    """What a stream remembers of one choice: what waits for the next chunk."""

    logprobs: LegacyLogprobs
    waiting: list[TokenLogprob] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    is_begun: bool = False
    is_echoed: bool = False

    def ids(self, prompt: Prompt) -> dict[str, object]:
        """Return the ids since the last chunk, and the prompt's once."""
        taken, self.token_ids = self.token_ids, []
        first: dict[str, object] = {} if self.is_begun else {"prompt_token_ids": prompt.token_ids}
        self.is_begun = True
        return {**first, "token_ids": taken}


@define(eq=False)
class CompletionEncoder:
    """Events to completion chunks, or to one completion."""

    top: Head
    asks: tuple[Ask, ...]
    model: ModelSettings
    options: StreamOptions
    echo: bool
    with_cache_details: bool = False
    with_ids: bool = False
    # Alternatives beside each logprob, and beside each of the prompt's; None for none of the prompt's by themselves.
    num_top: int = 0
    num_prompt_top: int | None = None
    counts: Tally = field(factory=Tally)
    streamed: dict[int, _Streamed] = field(factory=dict)
    scores: dict[int, PromptScores] = field(factory=dict)

    def start(self) -> list[bytes]:
        """Return the prompts' text with echo, but for those that are told with their scores; else nothing."""
        if not self.echo:
            return []
        return [
            self._chunk(self._index(ask_index, choice), str(ask.prompt))
            for ask_index, ask in enumerate(self.asks)
            if ask.prompt_logprobs_from is None
            for choice in range(ask.num_choices)
        ]

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the chunks of one event, and of those that waited for the prompt's scores in it."""
        self.counts.add(ask_index, len(prompt.token_ids), event)
        if self.asks[ask_index].prompt_logprobs_from is None:
            return self._tell(ask_index, prompt, event)
        events = self.scores.setdefault(ask_index, PromptScores()).take(event)
        return [chunk for one in events for chunk in self._tell(ask_index, prompt, one)]

    def _tell(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        ask, index = self.asks[ask_index], self._index(ask_index, event.choice)
        choice = self.streamed.setdefault(index, _Streamed(LegacyLogprobs(self.num_top)))
        if isinstance(event, Ended):
            raise_refusal(event.finish)
        chunks = []
        if self.echo and ask.prompt_logprobs_from is not None and not choice.is_echoed:
            choice.is_echoed = True
            entries = self.scores[ask_index].entries
            logprobs = choice.logprobs.take(entries) if ask.logprobs else None
            chunks.append(self._chunk(index, _echo(ask, entries), logprobs))
        if isinstance(event, Ended):
            end = self._end(event.finish)
            return [*chunks, self._chunk(index, "", self._logprobs(choice), end, self._ids(choice, prompt))]
        choice.waiting.extend(event.logprobs)
        if self.with_ids:
            choice.token_ids.extend(event.token_ids)
        if not event.text:
            return chunks
        return [*chunks, self._chunk(index, event.text, self._logprobs(choice), ids=self._ids(choice, prompt))]

    def finish(self) -> list[bytes]:
        """Return the chunks of cache details and of usage if asked for, and [DONE]."""
        return last_frames(self.top, KIND, self.counts.total(), self.options, with_details=self.with_cache_details)

    def failed(self, error: Exception) -> list[bytes]:
        """Return the error frame and [DONE]."""
        return error_frames(error, "prompt")

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole answer."""
        entries: list[dict[str, object]] = []
        for ask, one in zip(self.asks, collected, strict=True):
            scores = scores_in(one.events)
            for choice in fold(one, ask.num_choices):
                # Invariant: a choice is encoded only after its Ended, which is always its last event.
                assert choice.finish is not None
                raise_refusal(choice.finish)
                told = [*(scores if self.echo else ()), *choice.logprobs]
                logprobs = LegacyLogprobs(self.num_top).take(told) if ask.logprobs else None
                text = "".join([_echo(ask, scores) if self.echo else "", *choice.text])
                entry = _entry(len(entries), text, logprobs, self._end(choice.finish))
                if self.num_prompt_top is not None:
                    entry["prompt_logprobs"] = prompt_logprobs_json(scores, self.num_prompt_top)
                if self.with_ids:
                    entry |= {"prompt_token_ids": one.prompt.token_ids, "token_ids": choice.token_ids}
                entries.append(entry)
        answer = self.top.chunk(KIND, entries)
        usage = tally(collected)
        answer["usage"] = usage_json(usage)
        answer["system_fingerprint"] = None
        answer["metadata"] = {"weight_version": WEIGHT_VERSION}
        return HTTPStatus.OK, {**answer, **sglext_json(usage)} if self.with_cache_details else answer

    def _index(self, ask_index: int, choice: int) -> int:
        return ask_index * self.asks[0].num_choices + choice

    def _logprobs(self, choice: _Streamed) -> dict[str, object] | None:
        if not choice.waiting:
            return None
        entries, choice.waiting = choice.waiting, []
        return choice.logprobs.take(entries)

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: Mapping[str, object] | None = None,
        end: Mapping[str, object] | None = None,
        ids: Mapping[str, object] | None = None,
    ) -> bytes:
        ending = end or {"finish_reason": None, "matched_stop": None}
        chunk = self.top.chunk(KIND, [{**_entry(index, text, logprobs, ending), **(ids or {})}])
        if self.options.continuous_usage_stats and self.counts.latest:
            chunk["usage"] = usage_json(self.counts.of(*divmod(index, self.asks[0].num_choices)))
        elif self.options.include_usage:
            chunk["usage"] = None
        return frame(chunk)

    def _ids(self, choice: _Streamed, prompt: Prompt) -> dict[str, object] | None:
        return choice.ids(prompt) if self.with_ids else None

    def _end(self, finish: Finish) -> dict[str, object]:
        return {
            "finish_reason": finish.kind,
            "matched_stop": finish.matched,
            "stop_reason": stop_reason(finish, self.model),
        }


def _is_first(entry: TokenLogprob) -> bool:
    """Say whether an entry is that of a prompt's first token, which nothing comes before."""
    return math.isnan(entry.logprob)


def _echo(ask: Ask, scores: Sequence[TokenLogprob]) -> str:
    """Return the prompt's text: as it was sent, or of the ids that were."""
    if isinstance(ask.prompt, str):
        return ask.prompt
    return b"".join(entry.token_bytes for entry in scores).decode("utf-8", "replace")


def _entry(
    index: int, text: str, logprobs: Mapping[str, object] | None, end: Mapping[str, object]
) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, **end}


def _error(error: Exception, status: int, request_id: str) -> dict[str, Any]:
    return error_json(error, status, request_id, "prompt")


FORM = BodyForm((CompletionBody,), {**COMMON_NOT_SERVED, **NOT_SERVED})

_ALL = {
    "prompt": ["a", "b"],
    "n": 2,
    "logprobs": 2,
    "return_token_ids": True,
    "return_cached_tokens_details": True,
}
_USAGE = {"include_usage": True, "continuous_usage_stats": True}
SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"prompt": "a"},
    _ALL,
    {**_ALL, "stream": True, "stream_options": _USAGE},
    {"prompt": "a", "echo": True, "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": "a", "echo": True, "logprobs": 1},
    {"prompt": "a", "prompt_logprobs": 1, "stream": False},
)

DIALECT = Dialect(
    name="openai_completions",
    routes=(
        Route("/v1/completions", form=FORM, samples=SAMPLES, data_keyed=frozenset({"top_logprobs", "prompt_logprobs"})),
    ),
    parse=parse,
    error=_error,
)
