"""`POST|PUT /generate`: SGLang's native API; text or ids, one prompt or a batch, n samples of each.

A body passes two checks. The contract gate (keys and types) answers 400 with one plain string. What comes after it
(ranges, combinations, a prompt beyond the context) answers 400 with {"error": {"message"}}, and in a stream 200 with an
error event, as SGLang does. Samples are numbered prompt by prompt: index = prompt index x n + sample.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar, cast

from attrs import define, field, frozen

from stages.errors import EngineFailure, InvalidRequest, RequestError
from stages.ingress.dialect import Call, Collected, Dialect, Parsed, Route
from stages.ingress.dialects.choices import finite, token_text
from stages.ingress.dialects.fields import FieldError, Unsigned, read
from stages.ingress.dialects.openai_common import (
    DONE,
    MAX_REQUEST_ID_CHARACTERS,
    MAX_TOP_LOGPROBS,
    WEIGHT_VERSION,
    derived_id,
    frame,
)
from stages.ingress.dialects.sglang_sampling import (
    ContractError,
    WireSampling,
    check,
    limits_of,
    read_wire,
    sampling_of,
)
from stages.ingress.error_bodies import flat_error, message_of
from stages.messages import Ask, Ended, Event, Finish, Prompt, TextForm, TokenLogprob, Usage
from stages.settings import ModelSettings

MAX_BATCH = 4096

T = TypeVar("T")

# Fields that change the answer and are not served; any value but these asks for them.
_NOT_SERVED = (
    "token_ids_logprob",
    "session_id",
    "session_params",
    "custom_logit_processor",
    "return_hidden_states",
    "return_sampling_mask",
    "sampling_logprobs_mode",
    "return_flat_raw_logprobs",
    "return_routed_experts",
    "watermark",
    "lora_path",
    "image_data",
    "audio_data",
    "video_data",
    "input_embeds",
    "bootstrap_host",
    "bootstrap_room",
)
_NOTHING: tuple[object, ...] = (None, False, "", [], {})


@frozen(kw_only=True)
class GenerateBody:
    """The body of /generate."""

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: Unsigned | list[Unsigned] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    priority: int | None = None
    return_prompt_token_ids: bool = False
    max_thinking_tokens: int | None = None
    extra_key: str | list[str] | None = None
    cache_salt: str | list[str] | None = None


def parse(call: Call, model: ModelSettings) -> Parsed:
    """Return the generation asked for; raises ContractError, or InvalidRequest unless it is a stream."""
    body, params = _gate(call.body)
    try:
        return _parse(call, body, params, model)
    except RequestError as error:
        if not body.stream:
            raise
        return Parsed((), True, RefusedStream(error), errors_in_stream=True)


def _gate(raw: Mapping[str, Any]) -> tuple[GenerateBody, WireSampling | list[WireSampling]]:
    """Return the body and its sampling_params with all types right; raises ContractError."""
    try:
        body = read(GenerateBody, raw)
    except FieldError as error:
        raise ContractError(error.in_serde(), error.param) from None
    if raw.get("return_prompt_token_ids", False) is None:
        text = "invalid type: null, expected a boolean at `return_prompt_token_ids`"
        raise ContractError(text, "return_prompt_token_ids")
    given = body.sampling_params
    if isinstance(given, list):
        return body, [read_wire(item, ("sampling_params", str(index))) for index, item in enumerate(given)]
    return body, read_wire(given or {}, ("sampling_params",))


def _parse(call: Call, body: GenerateBody, params: WireSampling | list[WireSampling], model: ModelSettings) -> Parsed:
    _check_served(call.body, body)
    prompts, is_batch = _prompts(body)
    size = len(prompts) if is_batch else None
    samplings = _spread("sampling_params", params, size)
    num_samples = _num_samples(samplings)
    for wire in samplings:
        check(wire, model.vocab_size)
    _check_lists(body, num_samples, size)
    logprobs = _logprobs(body, size)
    ids = _request_ids(call, body, len(prompts), is_batch, num_samples)
    asks = tuple(
        Ask(
            request_id=ids[index],
            prompt=prompt,
            sampling=sampling_of(wire),
            limits=limits_of(wire),
            form=TextForm(skip_special_tokens=wire.skip_special_tokens, keep_stop=wire.no_stop_trim),
            num_choices=num_samples,
            stream=body.stream,
            logprobs=logprobs[index] is not None,
            num_top_logprobs=logprobs[index] or 0,
            priority=body.priority,
        )
        for index, (prompt, wire) in enumerate(zip(prompts, samplings, strict=True))
    )
    encoder = GenerateEncoder(
        call,
        asks,
        is_list=is_batch or num_samples > 1,
        incremental=model.incremental_streaming_output,
        with_text=body.return_text_in_logprobs,
        with_prompt=body.return_prompt_token_ids,
        intervals=tuple(wire.stream_interval or 1 for wire in samplings),
    )
    return Parsed(asks, body.stream, encoder, errors_in_stream=True)


def _check_served(raw: Mapping[str, Any], body: GenerateBody) -> None:
    for name in _NOT_SERVED:
        if raw.get(name) not in _NOTHING:
            raise InvalidRequest(f"{name} is not supported by this server.", name)
    if body.max_thinking_tokens is not None:
        text = "max_thinking_tokens requires the server to be launched with --enable-strict-thinking"
        raise InvalidRequest(text, "max_thinking_tokens")


def _prompts(body: GenerateBody) -> tuple[list[str | tuple[int, ...]], bool]:
    """Return the prompts, and whether the answer is a list: text decides that where both are given, ids the tokens."""
    if body.text is None and body.input_ids is None:
        raise InvalidRequest("Either text, input_ids or input_embeds should be provided.", "text")
    ids: Any = body.input_ids
    if ids is not None and not ids:
        raise InvalidRequest("input_ids cannot be empty.", "input_ids")
    are_lists = ids is not None and isinstance(ids[0], list)
    is_batch = are_lists if body.text is None else isinstance(body.text, list)
    if ids is not None and are_lists != is_batch:
        raise InvalidRequest("text and input_ids must both be single or both be a batch.", "input_ids")
    chosen: Any = body.text if ids is None else ids
    given: list[Any] = chosen if is_batch else [chosen]
    prompts = [tuple(item) if isinstance(item, list) else item for item in given]
    if () in prompts:
        raise InvalidRequest("input_ids cannot be empty.", "input_ids")
    if not prompts:
        raise InvalidRequest("text cannot be empty.", "text")
    if len(prompts) > MAX_BATCH:
        raise InvalidRequest(f"at most {MAX_BATCH} prompts are allowed in a batch, got {len(prompts)}", "text")
    if is_batch and ids is not None and isinstance(body.text, list) and len(body.text) != len(prompts):
        raise InvalidRequest("The length of text should be equal to the batch size.", "text")
    return prompts, is_batch


def _spread(name: str, value: T | list[T], size: int | None) -> list[T]:
    """Return one value for each prompt: a scalar goes to all; size is None for a single prompt, which takes no list."""
    if not isinstance(value, list):
        return [value] * (size or 1)
    if size is None:
        raise InvalidRequest(f"{name} cannot be a list for a single prompt.", name)
    if len(value) != size:
        raise InvalidRequest(f"The length of {name} should be equal to the batch size.", name)
    return value


def _num_samples(samplings: Sequence[WireSampling]) -> int:
    counts = {wire.n for wire in samplings}
    if len(counts) != 1:
        text = "The parallel_sample_num should be the same for all samples in sample params."
        raise InvalidRequest(text, "sampling_params.n")
    return counts.pop()


def _check_lists(body: GenerateBody, num_samples: int, size: int | None) -> None:
    for name in ("return_logprob", "logprob_start_len", "top_logprobs_num"):
        if num_samples > 1 and isinstance(getattr(body, name), list):
            raise InvalidRequest(f"Cannot use list {name} with parallel_sample_num > 1", name)
    for name in ("extra_key", "cache_salt"):  # no prefix cache yet, so no namespaces of it to keep apart
        if isinstance(getattr(body, name), list):
            _spread(name, getattr(body, name), size)


def _logprobs(body: GenerateBody, size: int | None) -> list[int | None]:
    """Return for each prompt how many alternatives go with each logprob, None for no logprobs."""
    wanted = _spread("return_logprob", body.return_logprob or False, size)
    starts = _spread("logprob_start_len", -1 if body.logprob_start_len is None else body.logprob_start_len, size)
    tops = _spread("top_logprobs_num", body.top_logprobs_num or Unsigned(0), size)
    for is_wanted, start, top in zip(wanted, starts, tops, strict=True):
        if start < -1:
            raise InvalidRequest(f"logprob_start_len must be at least -1, got {start}.", "logprob_start_len")
        if is_wanted and start >= 0:
            text = "logprob_start_len other than -1 (logprobs of the prompt) is not supported by this server."
            raise InvalidRequest(text, "logprob_start_len")
        if top > MAX_TOP_LOGPROBS:
            text = f"top_logprobs_num must be at most {MAX_TOP_LOGPROBS}, got {top}."
            raise InvalidRequest(text, "top_logprobs_num")
    return [top if is_wanted else None for is_wanted, top in zip(wanted, tops, strict=True)]


def _request_ids(call: Call, body: GenerateBody, size: int, is_batch: bool, num_samples: int) -> list[str]:
    """Return each ask's id: the client's own, or fresh ones where it gave none or several samples would share one."""
    rid = body.rid
    for given in rid if isinstance(rid, list) else [rid]:
        if given is not None and not 1 <= len(given) <= MAX_REQUEST_ID_CHARACTERS:
            raise InvalidRequest(f"rid must have between 1 and {MAX_REQUEST_ID_CHARACTERS} characters.", "rid")
    if isinstance(rid, list):
        if len(rid) != size or not is_batch:
            text = "The specified rids length mismatch with the batch_size for batch processing."
            raise InvalidRequest(text, "rid")
        if len(set(rid)) != len(rid):
            twice = sorted({one for one in rid if rid.count(one) > 1})
            raise InvalidRequest(f"Duplicate request IDs detected within the request: {twice}", "rid")
    if rid is None or num_samples > 1:
        return [call.request_id] if size == 1 else [derived_id(call.request_id, index) for index in range(size)]
    if isinstance(rid, list):
        return rid
    return [f"{rid}_{index}" for index in range(size)] if is_batch else [rid]


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


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
    samples: list[list[_Sample]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.samples = [[_Sample() for _ in range(ask.num_choices)] for ask in self.asks]

    def start(self) -> list[bytes]:
        """Return nothing: the first event comes with the first token."""
        return []

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
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
            "cached_tokens_details": {"device": usage.cached_tokens, "host": 0} if usage.cached_tokens else None,
            "weight_version": WEIGHT_VERSION,
            "num_retractions": 0,
            "dp_rank": None,
        }
        if ask.logprobs:
            meta |= self._logprobs(ask, sample)
        if sample.finish is not None and self.call.elapsed_s is not None:
            meta["e2e_latency"] = self.call.elapsed_s()
        return meta

    def _logprobs(self, ask: Ask, sample: _Sample) -> dict[str, Any]:
        entries = sample.logprobs[sample.sent_logprobs if self.incremental else 0 :]
        lists: dict[str, Any] = {
            "input_token_logprobs": [],
            "output_token_logprobs": [self._triple(e.logprob, e.token_id, e.token_bytes) for e in entries],
            "output_token_logprobs_length": len(sample.logprobs),
        }
        if ask.num_top_logprobs:
            lists["input_top_logprobs"] = []
            lists["output_top_logprobs"] = [
                [self._triple(logprob, i, text) for i, logprob, text in e.top[: ask.num_top_logprobs]] for e in entries
            ]
        return lists

    def _triple(self, logprob: float, token_id: int, token_bytes: bytes) -> tuple[float, int, str | None]:
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
    if finish is not None and finish.kind == "error":
        raise EngineFailure(finish.message or "the engine failed")


def _refusal(finish: Finish | None) -> tuple[int, object] | None:
    """Return status and body of an abort that carries a status; None for an ordinary end or a user's abort."""
    if finish is None or finish.kind != "abort" or finish.status is None:
        return None
    message = finish.message or "Aborted"
    if finish.status == HTTPStatus.BAD_REQUEST:
        return finish.status, {"error": {"message": message}}
    flat = {"object": "error", "message": message, "type": str(finish.status), "param": None, "code": finish.status}
    return finish.status, flat


def _error(error: Exception, status: int, request_id: str) -> dict[str, Any]:
    if isinstance(error, ContractError):
        return {"error": error.message}
    if isinstance(error, RequestError) and status == HTTPStatus.BAD_REQUEST:
        return {"error": {"message": error.message}}
    return cast(dict[str, Any], flat_error(error, status, request_id))


DIALECT = Dialect(
    name="sglang_generate",
    routes=(Route("/generate", ("POST", "PUT")),),
    parse=parse,
    error=_error,
    json_only=False,
    ping=None,
)
