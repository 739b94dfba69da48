"""sampling_params of SGLang's /generate: its fields, its defaults and its exact complaints."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs import evolve, field, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialects.common import MAX_CHOICES, MAX_STOP_STRINGS, make_sampling, read_stop_patterns
from stages.ingress.dialects.constraints import biases, key_id, need
from stages.ingress.dialects.fields import INT64_MAX, INT64_MIN, FieldError, Unsigned, read, shown
from stages.ingress.dialects.grammars import json_text
from stages.messages import Ask, Limits, Penalties, Sampling, TextGrammar
from stages.settings import ModelSettings
from stages.stop_patterns import PatternError

ONE = Unsigned(1)
GRAMMARS: tuple[Literal["json_schema", "regex", "ebnf", "structural_tag"], ...] = (
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
)
PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
THINKING_BUDGET = "thinking_budget"

# What is checked as SGLang does and then refused: name -> the values that ask for nothing.
NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "beam_width": (1,),
    "spaces_between_special_tokens": (True,),
    "watermark": (False,),
    "choice": (),
}


class ContractError(InvalidRequest):
    """A key or type the contract gate refuses: its body is one plain string, and its status 400 even in a stream."""


@frozen(kw_only=True)
class WireSampling:
    """sampling_params as sent; the order of the fields is the order the gate lists them in."""

    max_new_tokens: int | None = 128
    stop: str | list[str] | None = None
    stop_token_ids: list[int | None] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = field(default=0.0, metadata=shown(needs="penalties"))
    presence_penalty: float = field(default=0.0, metadata=shown(needs="penalties"))
    repetition_penalty: float = field(default=1.0, metadata=shown(needs="penalties"))
    min_new_tokens: int = 0
    n: Unsigned = ONE
    json_schema: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    regex: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    ebnf: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    structural_tag: str | None = field(default=None, metadata=shown(needs="structured_outputs"))
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: Unsigned | None = None
    logit_bias: dict[str, float] | None = field(default=None, metadata=shown(needs="penalties"))
    sampling_seed: Any = None
    custom_params: dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    beam_width: Unsigned | None = None
    watermark: Any = None
    choice: Any = None


_KNOWN = tuple(field.name for field in attrs.fields(WireSampling))


def read_wire(raw: Mapping[str, Any], path: tuple[str, ...]) -> WireSampling:
    """Return sampling_params with every key known and every type right; raises ContractError."""
    for name in raw:
        if name not in _KNOWN:
            expected = ", ".join(f"`{known}`" for known in _KNOWN)
            raise ContractError(f"unknown field `{name}`, expected one of {expected}", ".".join((*path, name)))
    try:
        wire = read(WireSampling, raw, path)
    except FieldError as error:
        raise ContractError(error.in_serde(), error.param) from None
    if "max_new_tokens" in raw and raw["max_new_tokens"] is None:
        return attrs.evolve(wire, max_new_tokens=None)
    return wire


def check(wire: WireSampling, vocab_size: int) -> None:
    """Raise InvalidRequest for a value out of range, in SGLang's words, or one that is not served."""
    _check_ranges(wire)
    _check_lengths(wire)
    _check_stops(wire, vocab_size)
    _check_seed(wire.sampling_seed)
    if sum(bool(getattr(wire, name)) for name in GRAMMARS) > 1:
        raise _wrong("json_schema", "Only one of json_schema, regex, ebnf, or structural_tag can be set.")
    for key, bias in (wire.logit_bias or {}).items():
        if key_id(key, vocab_size) is None:
            raise _wrong("logit_bias", f"logit_bias must has keys in [0, {vocab_size - 1}], got {key}.")
        if not math.isfinite(bias):
            raise _wrong("logit_bias", f"logit_bias must have finite values, got {bias}.")
    _check_served(wire)


def sampling_of(wire: WireSampling) -> Sampling:
    """Return how tokens are drawn."""
    return make_sampling(wire.temperature, wire.top_k, wire.top_p, wire.min_p, wire.sampling_seed)


def constrain(ask: Ask, wire: WireSampling, model: ModelSettings, *, after_reasoning: bool) -> Ask:
    """Return the ask with what sampling_params ask of tokens; raises InvalidRequest naming the flag one needs."""
    penalties = Penalties(float(wire.frequency_penalty), float(wire.presence_penalty), float(wire.repetition_penalty))
    bias = biases({key_id(key, model.vocab_size) or 0: value for key, value in (wire.logit_bias or {}).items()})
    for name in PENALTIES:
        if getattr(wire, name) != getattr(WireSampling(), name):
            need("penalties", f"sampling_params.{name}", model)
    if bias:
        need("penalties", "sampling_params.logit_bias", model)
    grammar = _grammar(wire)
    if grammar is not None:
        need("structured_outputs", f"sampling_params.{grammar[0]}", model)
    if (budget := _thinking_budget(wire)) is not None:
        need("structured_outputs", "sampling_params.custom_params.thinking_budget", model)
    return evolve(
        ask,
        constraint=None if grammar is None else evolve(grammar[1], after_reasoning=after_reasoning),
        constraint_field=None if grammar is None else f"sampling_params.{grammar[0]}",
        penalties=penalties,
        logit_bias=bias,
        thinking_budget_tokens=ask.thinking_budget_tokens if budget is None else budget,
    )


def _grammar(wire: WireSampling) -> tuple[str, TextGrammar] | None:
    for name in GRAMMARS:
        if text := getattr(wire, name):
            return name, TextGrammar(name, _json(name, text) if name in ("json_schema", "structural_tag") else text)
    return None


def _json(name: str, text: str) -> str:
    """Return JSON text as it stands; raises InvalidRequest in SGLang's words where it is none."""
    try:
        return json_text(text, f"sampling_params.{name}")
    except InvalidRequest as error:
        kind = name.removesuffix("_schema")
        raise _wrong(name, f"Failed to compile {kind} grammar: {error.message}") from None


def _thinking_budget(wire: WireSampling) -> int | None:
    """Return custom_params.thinking_budget; raises InvalidRequest for a bad one and for any other parameter."""
    for name, value in (wire.custom_params or {}).items():
        field = f"custom_params.{name[:64]}"
        if value is None:
            continue
        if name != THINKING_BUDGET:
            raise _wrong(field, f"{field} is not supported by this server.")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _wrong(field, f"{field} must be an integer that is not negative.")
        return value
    return None


def limits_of(wire: WireSampling) -> Limits:
    """Return when generation ends."""
    return Limits(
        max_new_tokens=wire.max_new_tokens,
        min_new_tokens=wire.min_new_tokens,
        stop=_strings(wire.stop),
        stop_token_ids=frozenset(token_id for token_id in wire.stop_token_ids or () if token_id is not None),
        stop_regex=read_stop_patterns(wire.stop_regex),
        ignore_eos=wire.ignore_eos,
    )


def _check_ranges(wire: WireSampling) -> None:
    if wire.temperature < 0 or not math.isfinite(wire.temperature):
        raise _wrong("temperature", f"temperature must be a non-negative finite number, got {wire.temperature}.")
    if not 0 < wire.top_p <= 1:
        raise _wrong("top_p", f"top_p must be in (0, 1], got {wire.top_p}.")
    if wire.top_k != -1 and wire.top_k < 1:
        raise _wrong("top_k", f"top_k must be -1 (disable) or at least 1, got {wire.top_k}.")
    if not 0 <= wire.min_p <= 1:
        raise _wrong("min_p", f"min_p must be in [0, 1], got {wire.min_p}.")
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= (penalty := getattr(wire, name)) <= 2:
            raise _wrong(name, f"{name} must be in [-2, 2], got {penalty}.")
    if not 0 < wire.repetition_penalty <= 2:
        text = f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {wire.repetition_penalty}."
        raise _wrong("repetition_penalty", text)
    for name in ("n", "stream_interval", "beam_width"):
        if getattr(wire, name) == 0:
            raise _wrong(name, f"{name} must be at least 1, got 0.")
    if wire.n > MAX_CHOICES:
        raise _wrong("n", f"n must be at most {MAX_CHOICES}, got {wire.n}.")


def _check_lengths(wire: WireSampling) -> None:
    most, least = wire.max_new_tokens, wire.min_new_tokens
    if most is not None and most < 0:
        raise _wrong("max_new_tokens", f"max_new_tokens must be at least 0, got {most}.")
    if least < 0:
        raise _wrong("min_new_tokens", f"min_new_tokens must be in [0, max_new_tokens], got {least}.")
    if most is not None and least > most:
        raise _wrong("min_new_tokens", f"min_new_tokens must be in [0, max_new_tokens({most})], got {least}.")


def _check_stops(wire: WireSampling, vocab_size: int) -> None:
    stop = _strings(wire.stop)
    if len(stop) > MAX_STOP_STRINGS:
        raise _wrong("stop", f"at most {MAX_STOP_STRINGS} stop strings are allowed, got {len(stop)}")
    if "" in stop:
        raise _wrong("stop", "stop must not contain an empty string.")
    try:
        read_stop_patterns(wire.stop_regex)
    except PatternError as error:
        raise _wrong("stop_regex", str(error)) from None
    for token_id in wire.stop_token_ids or ():
        if token_id is not None and not 0 <= token_id < vocab_size:
            raise _wrong("stop_token_ids", f"stop_token_ids must be in [0, {vocab_size - 1}], got {token_id}.")


def _check_seed(seed: object) -> None:
    if seed is None:
        return
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise _wrong("sampling_seed", f"sampling_seed must be an integer, got {type(seed).__name__}.")
    if not INT64_MIN <= seed <= INT64_MAX:
        raise _wrong("sampling_seed", "sampling_seed must be in [-2**63, 2**63 - 1].")


def _check_served(wire: WireSampling) -> None:
    for name, nothing in NOT_SERVED.items():
        value = getattr(wire, name)
        if value is not None and value not in nothing:
            raise _wrong(name, f"{name} is not supported by this server.")


def _strings(value: str | list[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _wrong(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, f"sampling_params.{name}")
