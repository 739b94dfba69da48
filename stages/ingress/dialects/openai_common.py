"""What the OpenAI dialects share: the fields of both completions APIs, refusals by name, ids, usage and frames.

Golden rule: a field that constrains the output is either done or refused, never ignored. Fields about billing, routing
and telemetry, and unknown ones, are ignored.
"""

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from attrs import field, frozen

from stages.errors import ContextOverflow, EngineFailure, InvalidRequest, NotFound, RemoteFailure, Unavailable
from stages.ingress.dialect import Call
from stages.ingress.dialects.choices import cached_details
from stages.ingress.dialects.common import (
    DONE,
    MAX_PROMPTS,
    MAX_REQUEST_ID_CHARACTERS,
    MAX_STOP_STRINGS,
    derived_id,
    frame,
    make_sampling,
    read_stop_patterns,
)
from stages.ingress.dialects.constraints import ConstraintFields
from stages.ingress.dialects.fields import FieldError, read, shown
from stages.ingress.dialects.placement import PlacementFields
from stages.ingress.error_bodies import openai_error
from stages.messages import Finish, Limits, Sampling, Usage
from stages.settings import Bounds, ModelSettings
from stages.stop_patterns import PatternError

T = TypeVar("T")


@frozen(kw_only=True)
class StreamOptions:
    """stream_options; include_obfuscation and other keys are ignored."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


@frozen(kw_only=True)
class CommonBody(PlacementFields, ConstraintFields):
    """Fields of /v1/chat/completions and /v1/completions alike, OpenAI's own first, then vLLM's and SGLang's."""

    model: str = ""
    n: int = field(default=1, metadata=shown(minimum=1))
    stream: bool = False
    stream_options: StreamOptions | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = field(default=None, metadata=shown(minimum=1))
    top_k: int | None = field(default=None, metadata=shown(minimum=-1))
    min_p: float | None = field(default=None, metadata=shown(minimum=0, maximum=1))
    min_tokens: int = field(default=0, metadata=shown(minimum=0))
    stop_token_ids: list[int | None] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    include_stop_str_in_output: bool = False
    request_id: str | None = None
    return_cached_tokens_details: bool = False

    def keep_stop(self) -> bool:
        """Say whether a matched stop string or pattern stays in the text, under either of its names."""
        return self.no_stop_trim or self.include_stop_str_in_output


# Fields that constrain the output or add to it and are not served: name -> the values that ask for nothing.
NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "spaces_between_special_tokens": (True,),
    "bad_words": ([],),
    "return_tokens_as_token_ids": (False,),
    "return_prompt_text": (False,),
    "return_prompt_token_ids": (False,),
    "return_meta_info": (False,),
    "return_spec_tokens_details": (False,),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "return_input_ids_in_sglext": (False,),
    "return_output_ids_in_sglext": (False,),
    "custom_params": ({},),
    "documents": ([],),
    **dict.fromkeys(("custom_logit_processor", "lora_path"), ("",)),
    **dict.fromkeys(("guided_whitespace_pattern", "truncate_prompt_tokens", "repetition_detection"), ()),
}


def read_body(cls: type[T], value: object, path: str = "") -> T:
    """Return a body, or what stands at a dotted path of one, as a wire class; raises InvalidRequest naming a field."""
    try:
        return read(cls, value, tuple(path.split(".")) if path else ())
    except FieldError as error:
        raise invalid(error.param, error.in_words()) from None


def invalid(param: str, message: str, code: str = "invalid_value") -> InvalidRequest:
    """Return the error of a bad value."""
    return InvalidRequest(message, param, code)


def refuse_unserved(body: Mapping[str, Any], more: Mapping[str, tuple[object, ...]] | None = None) -> None:
    """Raise InvalidRequest, code unsupported_parameter, for the first field that asks for what is not served."""
    for table in (NOT_SERVED, more or {}):
        refuse_listed(body, table)


def refuse_listed(given: Mapping[str, Any], table: Mapping[str, tuple[object, ...]], prefix: str = "") -> None:
    """Raise InvalidRequest, code unsupported_parameter, for the first field whose value `table` does not allow."""
    for name, value in given.items():
        if value is not None and value not in table.get(name, (value,)):
            text = f"{prefix}{name} is not supported by this server."
            raise invalid(f"{prefix}{name}", text, "unsupported_parameter")


def check_model(name: str, model: ModelSettings) -> str:
    """Return the model name to answer with: the client's own, or the served one for none; raises NotFound."""
    if name in ("", "default"):
        return name or model.served_model_name
    if model.answers_to(name):
        return name
    raise NotFound(f"The model `{name}` does not exist.", "model", "model_not_found")


def read_sampling(body: CommonBody, defaults: Sampling, bounds: Bounds) -> Sampling:
    """Return how tokens are drawn, absent fields from `defaults`; raises InvalidRequest for a value out of range."""
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_p = defaults.top_p if body.top_p is None else body.top_p
    min_p = defaults.min_p if body.min_p is None else body.min_p
    top_k = defaults.top_k if body.top_k is None else body.top_k
    if not 0 <= temperature <= bounds.max_temperature or temperature == math.inf:
        raise invalid("temperature", f"temperature must be {_up_to(bounds.max_temperature)}, got {temperature}.")
    if not 0 < top_p <= 1:
        raise invalid("top_p", f"top_p must be in (0, 1], got {top_p}.")
    if not 0 <= min_p <= 1:
        raise invalid("min_p", f"min_p must be in [0, 1], got {min_p}.")
    if top_k < -1:
        raise invalid("top_k", f"top_k must be -1 or 0 (off) or at least 1, got {top_k}.")
    seed = None if body.seed == -1 else body.seed
    return make_sampling(temperature, top_k, top_p, min_p, seed)


def read_limits(body: CommonBody, max_new_tokens: int | None, model: ModelSettings) -> Limits:
    """Return when generation ends; raises InvalidRequest for a value out of range."""
    if body.min_tokens < 0:
        raise invalid("min_tokens", f"min_tokens must not be negative, got {body.min_tokens}.")
    if max_new_tokens is not None and body.min_tokens > max_new_tokens:
        raise invalid("min_tokens", f"min_tokens must be at most {max_new_tokens} (max_tokens), got {body.min_tokens}.")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stop) > MAX_STOP_STRINGS:
        raise invalid("stop", f"at most {MAX_STOP_STRINGS} stop strings are allowed, got {len(stop)}")
    if "" in stop:
        raise invalid("stop", "stop must not contain an empty string.")
    stop_token_ids = frozenset(token_id for token_id in body.stop_token_ids or () if token_id is not None)
    if wrong := [token_id for token_id in sorted(stop_token_ids) if not 0 <= token_id < model.vocab_size]:
        raise invalid("stop_token_ids", f"stop_token_ids must be in [0, {model.vocab_size - 1}], got {wrong[0]}.")
    try:
        patterns = read_stop_patterns(body.stop_regex)
    except PatternError as error:
        raise invalid("stop_regex", str(error)) from None
    return Limits(max_new_tokens, body.min_tokens, stop, stop_token_ids, patterns, body.ignore_eos)


def check_choices(n: int, bounds: Bounds, num_prompts: int = 1) -> int:
    """Return n; raises InvalidRequest for a number out of bounds, or for more choices in all than one call may have."""
    if not 1 <= n <= bounds.max_choices:
        raise invalid("n", f"n must be between 1 and {bounds.max_choices}, got {n}.")
    if n * num_prompts > MAX_PROMPTS:
        raise invalid("n", f"{num_prompts} prompts with n of {n} are more than {MAX_PROMPTS} choices.")
    return n


def check_top(name: str, wanted: int | None, bounds: Bounds) -> int:
    """Return how many alternatives go with each logprob; raises InvalidRequest for a number out of bounds."""
    if not 0 <= (wanted or 0) <= bounds.max_top_logprobs:
        raise invalid(name, f"{name} must be between 0 and {bounds.max_top_logprobs}, got {wanted}.")
    return wanted or 0


def _up_to(most: float) -> str:
    return "a number not below 0" if most == math.inf else f"between 0 and {most:g}"


def check_stream_options(body: CommonBody) -> StreamOptions:
    """Return the stream options, all off when absent; raises InvalidRequest when given without stream."""
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "stream_options is only allowed when stream is true.")
    return body.stream_options or StreamOptions()


def check_request_id(name: str, request_id: str) -> str:
    """Return a client's request id; raises InvalidRequest when it is too long to carry around."""
    if not 1 <= len(request_id) <= MAX_REQUEST_ID_CHARACTERS:
        raise invalid(name, f"{name} must have between 1 and {MAX_REQUEST_ID_CHARACTERS} characters.")
    return request_id


def call_id(nonce: str, choice: int, index: int) -> str:
    """Return the id of a choice's tool call: call_ and 24 hex digits."""
    return f"call_{derived_id(nonce, choice, index)[:24]}"


@frozen
class Head:
    """What is the same in every chunk and body of an answer."""

    id: str
    created: int
    model: str

    def chunk(self, kind: str, choices: Sequence[object]) -> dict[str, object]:
        """Return an answer object of this head."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def head(call: Call, kind: str, model_name: str, rid: str | None, request_id: str | None) -> Head:
    """Return the head of an answer; its id is the client's rid as it stands, else `kind` and an id.

    The answer's id is also the id the engine knows the request by, so that whoever reads it can abort it.
    """
    if rid:
        return Head(check_request_id("rid", rid), call.created_s, model_name)
    name = check_request_id("request_id", request_id) if request_id else call.request_id
    return Head(f"{kind}-{name}", call.created_s, model_name)


def usage_json(usage: Usage) -> dict[str, object]:
    """Return OpenAI's usage object, always with both details."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "reasoning_tokens": usage.reasoning_tokens,
    }


def sglext_json(usage: Usage) -> dict[str, object]:
    """Return SGLang's extras of an answer, for return_cached_tokens_details."""
    return {"sglext": {"cached_tokens_details": cached_details(usage)}}


def last_frames(head: Head, kind: str, usage: Usage, options: StreamOptions, *, with_details: bool) -> list[bytes]:
    """Return the frames after the last choice's end: SGLang's extras and usage if asked for, and [DONE]."""
    extras = [{**head.chunk(kind, []), **sglext_json(usage)}] if with_details else []
    if options.include_usage:
        extras.append({**head.chunk(kind, []), "usage": usage_json(usage)})
    return [*map(frame, extras), DONE]


def raise_refusal(finish: Finish) -> None:
    """Raise what a finish with a status, or of kind error, stands for; an ordinary end or a user's abort passes."""
    raise_failure(finish)
    if finish.kind != "abort" or finish.status is None:
        return
    message = finish.message or "Aborted"
    if finish.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise Unavailable(message)
    if finish.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise InvalidRequest(message)
    raise EngineFailure(message)


def raise_failure(finish: Finish) -> None:
    """Raise what a finish of kind error stands for: the engine's failure, or an answer its request made impossible."""
    if finish.kind != "error":
        return
    if finish.status == HTTPStatus.BAD_REQUEST and finish.message:
        raise InvalidRequest(finish.message)
    if finish.is_remote:
        status = finish.status or int(HTTPStatus.INTERNAL_SERVER_ERROR)
        raise RemoteFailure(finish.message or "the engine failed", status, finish.retry_after_s)
    raise EngineFailure(finish.message or "the engine failed")


def stop_reason(finish: Finish, model: ModelSettings) -> int | str | None:
    """Return vLLM's stop_reason: the matched stop string or token id; None for the model's own end and for length."""
    is_own = finish.matched in model.eos_token_ids or finish.matched in model.chat_stop
    return None if finish.kind != "stop" or is_own else finish.matched


def error_frames(error: Exception, param: str) -> list[bytes]:
    """Return the frames that end a stream which cannot go on."""
    status = getattr(error, "status", HTTPStatus.INTERNAL_SERVER_ERROR)
    return [frame(error_json(error, status, "", param)), DONE]


def error_json(error: Exception, status: int, request_id: str, param: str) -> dict[str, object]:
    """Return OpenAI's error body; a prompt beyond the context is told in the words agents look for, naming `param`."""
    if isinstance(error, ContextOverflow):
        error = ContextOverflow(
            _overflow_text(error, param),
            prompt_tokens=error.prompt_tokens,
            requested_tokens=error.requested_tokens,
            context_tokens=error.context_tokens,
            param=param,
        )
    return openai_error(error, status, request_id)


def _overflow_text(error: ContextOverflow, param: str) -> str:
    limit = f"This model's maximum context length is {error.context_tokens} tokens."
    if error.requested_tokens is None:
        return f"{limit} However, your {param} resulted in {error.prompt_tokens} tokens. Please shorten the {param}."
    total = error.prompt_tokens + error.requested_tokens
    return (
        f"{limit} However, you requested {total} tokens ({error.prompt_tokens} in the {param}, "
        f"{error.requested_tokens} in the completion). Please shorten the {param} or the completion."
    )
