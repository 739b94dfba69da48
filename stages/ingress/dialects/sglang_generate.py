"""`POST|PUT /generate`: SGLang's native API; text or ids, one prompt or a batch, n samples of each.

A body passes two checks. The contract gate (keys and types) answers 400 with one plain string. What comes after it
(ranges, combinations, a prompt beyond the context) answers 400 with {"error": {"message"}}, and in a stream 200 with an
error event, as SGLang does. Samples are numbered prompt by prompt: index = prompt index x n + sample.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar, cast

from attrs import evolve, field, frozen

from stages.errors import InvalidRequest, RequestError
from stages.ingress.dialect import BodyForm, Call, Dialect, Parsed, Route
from stages.ingress.dialects.common import (
    MAX_PROMPTS,
    MAX_REQUEST_ID_CHARACTERS,
    MAX_TOP_LOGPROBS,
    derived_id,
    repeated,
)
from stages.ingress.dialects.constraints import need
from stages.ingress.dialects.fields import FieldError, Unsigned, read, shown
from stages.ingress.dialects.placement import PlacementFields, place
from stages.ingress.dialects.prompt_logprobs import MAX_LOGPROB_IDS
from stages.ingress.dialects.sglang_answer import GenerateEncoder, RefusedStream
from stages.ingress.dialects.sglang_sampling import (
    NOT_SERVED as SAMPLING_NOT_SERVED,
)
from stages.ingress.dialects.sglang_sampling import (
    ContractError,
    WireSampling,
    check,
    constrain,
    limits_of,
    read_wire,
    sampling_of,
)
from stages.ingress.error_bodies import flat_error
from stages.messages import Ask, TextForm
from stages.settings import ModelSettings

T = TypeVar("T")

# Fields that change the answer and are not served; any value but these asks for them.
NOT_SERVED = (
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
class GenerateBody(PlacementFields):
    """The body of /generate."""

    text: str | list[str] | None = field(default=None, metadata=shown(minItems=1, maxItems=MAX_PROMPTS))
    input_ids: list[int] | list[list[int]] | None = field(default=None, metadata=shown(minItems=1))
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = field(
        default=None, metadata=shown(items=WireSampling)
    )
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: Unsigned | list[Unsigned] | None = None
    token_ids_logprob: list[int] | list[list[int]] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    return_prompt_token_ids: bool = False
    require_reasoning: bool = False
    max_thinking_tokens: int | None = field(default=None, metadata=shown(needs="structured_outputs"))


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
    _check_served(call.body)
    prompts, is_batch = _prompts(body)
    size = len(prompts) if is_batch else None
    samplings = _spread("sampling_params", params, size)
    num_samples = _num_samples(samplings)
    for wire in samplings:
        check(wire, model.vocab_size)
    _check_lists(body, num_samples, size)
    wanted_ids = _token_ids_logprob(body.token_ids_logprob, size, model.vocab_size)
    logprobs = _logprobs(body, size)
    budget = _thinking_budget(body, model)
    ids = _request_ids(call, body, len(prompts), is_batch, num_samples)
    asks = tuple(
        _ask(
            Ask(
                request_id=ids[index],
                prompt=prompt,
                sampling=sampling_of(wire),
                form=TextForm(skip_special_tokens=wire.skip_special_tokens, keep_stop=wire.no_stop_trim),
                num_choices=num_samples,
                stream=body.stream,
                thinking_budget_tokens=budget,
            ),
            wire,
            logprobs[index],
            wanted_ids[index],
            model,
            after_reasoning=body.require_reasoning,
        )
        for index, (prompt, wire) in enumerate(zip(prompts, samplings, strict=True))
    )
    asks = place(asks, body, call)
    encoder = GenerateEncoder(
        call,
        asks,
        is_list=is_batch or num_samples > 1,
        incremental=model.incremental_streaming_output,
        with_text=body.return_text_in_logprobs,
        with_prompt=body.return_prompt_token_ids,
        intervals=tuple(wire.stream_interval or 1 for wire in samplings),
        are_scoring=tuple(wire.max_new_tokens == 0 for wire in samplings),
    )
    return Parsed(asks, body.stream, encoder, errors_in_stream=True)


def _ask(
    ask: Ask,
    wire: WireSampling,
    logprobs: "Logprobs | None",
    wanted_ids: tuple[int, ...],
    model: ModelSettings,
    *,
    after_reasoning: bool,
) -> Ask:
    """Return the ask with what its own sampling_params and logprobs say.

    One that only scores its prompt samples one token all the same: its logprob is told, as SGLang tells it.
    """
    limits = limits_of(wire)
    if logprobs is not None:
        if limits.max_new_tokens == 0:
            limits = evolve(limits, max_new_tokens=1)
        ask = evolve(
            ask,
            logprobs=True,
            num_top_logprobs=logprobs.num_top,
            logprob_token_ids=wanted_ids,
            prompt_logprobs_from=logprobs.start,
        )
    return constrain(evolve(ask, limits=limits), wire, model, after_reasoning=after_reasoning)


def _check_served(raw: Mapping[str, Any]) -> None:
    for name in NOT_SERVED:
        if raw.get(name) not in _NOTHING:
            raise InvalidRequest(f"{name} is not supported by this server.", name)


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
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"at most {MAX_PROMPTS} prompts are allowed in a batch, got {len(prompts)}", "text")
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
    for name in ("extra_key", "cache_salt"):
        if isinstance(getattr(body, name), list):
            _spread(name, getattr(body, name), size)


def _thinking_budget(body: GenerateBody, model: ModelSettings) -> int | None:
    name, budget = "max_thinking_tokens", body.max_thinking_tokens
    if budget is None:
        return None
    if budget < 0:
        raise InvalidRequest(f"{name} must be at least 0, got {budget}.", name)
    need("structured_outputs", name, model)
    return budget


def _token_ids_logprob(
    given: list[int] | list[list[int]] | None, size: int | None, vocab_size: int
) -> list[tuple[int, ...]]:
    """Return the ids to score with each prompt: a list goes to all prompts, a list of lists has one for each.

    Raises InvalidRequest, in SGLang's words where it would too.
    """
    name = "token_ids_logprob"
    values: list[Any] = given or []
    are_lists = bool(values) and isinstance(values[0], list)
    if are_lists and size is None:
        raise InvalidRequest(f"{name} must be a flat list of integers.", name)
    if are_lists and len(values) != size:
        raise InvalidRequest(f"The length of {name} should be equal to the batch size.", name)
    ids = [token_id for ids in values for token_id in ids] if are_lists else values
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            text = f"{name} contains out-of-vocabulary token id {token_id}; valid range is [0, {vocab_size})."
            raise InvalidRequest(text, name)
    lists = values if are_lists else [values] * (size or 1)
    if (longest := max(map(len, lists))) > MAX_LOGPROB_IDS:
        raise InvalidRequest(f"at most {MAX_LOGPROB_IDS} {name} are allowed, got {longest}", name)
    return [tuple(one) for one in lists]


@frozen
class Logprobs:
    """What logprobs a prompt gets: where in it they begin, None for none of it, and how many alternatives they have."""

    start: int | None
    num_top: int


def _logprobs(body: GenerateBody, size: int | None) -> list[Logprobs | None]:
    """Return what logprobs each prompt gets, None for none at all."""
    wanted = _spread("return_logprob", body.return_logprob or False, size)
    starts = _spread("logprob_start_len", -1 if body.logprob_start_len is None else body.logprob_start_len, size)
    tops = _spread("top_logprobs_num", body.top_logprobs_num or Unsigned(0), size)
    for start, top in zip(starts, tops, strict=True):
        if start < -1:
            raise InvalidRequest(f"logprob_start_len must be at least -1, got {start}.", "logprob_start_len")
        if top > MAX_TOP_LOGPROBS:
            text = f"top_logprobs_num must be at most {MAX_TOP_LOGPROBS}, got {top}."
            raise InvalidRequest(text, "top_logprobs_num")
    return [
        Logprobs(start if start >= 0 else None, top) if is_wanted else None
        for is_wanted, start, top in zip(wanted, starts, tops, strict=True)
    ]


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
            raise InvalidRequest(f"Duplicate request IDs detected within the request: {repeated(rid)}", "rid")
    if rid is None or num_samples > 1:
        return [call.request_id] if size == 1 else [derived_id(call.request_id, index) for index in range(size)]
    if isinstance(rid, list):
        return rid
    return [f"{rid}_{index}" for index in range(size)] if is_batch else [rid]


def _error(error: Exception, status: int, request_id: str) -> dict[str, Any]:
    if isinstance(error, ContractError):
        return {"error": error.message}
    if isinstance(error, RequestError) and status == HTTPStatus.BAD_REQUEST:
        return {"error": {"message": error.message}}
    return cast(dict[str, Any], flat_error(error, status, request_id))


FORM = BodyForm(
    (GenerateBody,),
    dict.fromkeys(NOT_SERVED, _NOTHING),
    refused_in={WireSampling: SAMPLING_NOT_SERVED},
    any_of=("text", "input_ids"),
    closed=(WireSampling,),
)

SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"text": "a"},
    {"text": ["a", "b"]},
    *(
        {
            "text": text,
            "return_logprob": True,
            "top_logprobs_num": 2,
            "return_text_in_logprobs": with_text,
            "return_prompt_token_ids": True,
        }
        for with_text in (False, True)
        for text in ("a", ["a"])
    ),
    {"text": "a", "return_logprob": True},
    *(
        {
            "text": "a",
            "return_logprob": True,
            "logprob_start_len": start,
            "top_logprobs_num": 1,
            "token_ids_logprob": [5],
            "return_text_in_logprobs": start == 0,
        }
        for start in (0, 1)
    ),
)

DIALECT = Dialect(
    name="sglang_generate",
    routes=(Route("/generate", ("POST", "PUT"), FORM, samples=SAMPLES),),
    parse=parse,
    error=_error,
    json_only=False,
    ping=None,
)
