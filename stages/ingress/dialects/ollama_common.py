"""What Ollama's routes share: model names, options, thinking and refusals by name.

Options are mapped to sampling and limits. Those about the machine (num_gpu, num_thread, ...) and num_ctx, which is the
server's to choose, are ignored, as unknown ones are; one that would change the answer and is not served is refused.
"""

import math
from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from stages.errors import NotFound
from stages.ingress.dialects.common import MAX_STOP_STRINGS, MAX_TOP_LOGPROBS, make_sampling
from stages.ingress.dialects.constraints import need, read_penalties
from stages.ingress.dialects.fields import shown
from stages.ingress.dialects.grammars import json_text
from stages.ingress.dialects.openai_common import invalid, refuse_listed
from stages.ingress.dialects.placement import PlacementFields
from stages.messages import Ask, Limits, Sampling, TextGrammar
from stages.settings import ModelSettings

# The version of Ollama whose API these routes follow: clients read it to see which fields they may send.
API_VERSION = "0.13.0"
TAG = ":latest"
EFFORTS = ("low", "medium", "high")
NDJSON = "application/x-ndjson"

# Fields of a body, and options, that are not served: name -> the values that ask for nothing.
NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "template": ("",),
    "suffix": ("",),
    "images": ([],),
    "context": ([],),
}
OPTIONS_NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1,),
    "typical_p": (1,),
}


@frozen(kw_only=True)
class Options:
    """The options that are served."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = field(default=None, metadata=shown(needs="penalties"))
    presence_penalty: float = field(default=0.0, metadata=shown(needs="penalties"))
    frequency_penalty: float = field(default=0.0, metadata=shown(needs="penalties"))


@frozen(kw_only=True)
class OllamaBody(PlacementFields):
    """The fields of /api/chat and /api/generate alike; keep_alive, truncate and shift have nothing to change here."""

    model: str = ""
    stream: bool = True
    think: bool | str | None = None
    format: str | dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    options: Options | None = None
    logprobs: bool = False
    top_logprobs: int = 0


def check_name(name: str, model: ModelSettings) -> str:
    """Return the model's name to answer with, the client's own; raises NotFound for a model that is not served."""
    if (bare := name.removesuffix(TAG)) == "" or model.answers_to(bare):
        return name or model.served_model_name + TAG
    raise NotFound(f"model '{name:.256}' not found", "model", "model_not_found")


def refuse_unserved(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest naming the first field or option that asks for what is not served."""
    options = body.get("options")
    refuse_listed(body, NOT_SERVED)
    refuse_listed(options if isinstance(options, dict) else {}, OPTIONS_NOT_SERVED, "options.")


def read_sampling(options: Options, defaults: Sampling) -> Sampling:
    """Return how tokens are drawn, absent options from `defaults`; raises InvalidRequest for a value out of range."""
    temperature = defaults.temperature if options.temperature is None else options.temperature
    top_p = defaults.top_p if options.top_p is None else options.top_p
    min_p = defaults.min_p if options.min_p is None else options.min_p
    top_k = defaults.top_k if options.top_k is None else options.top_k
    if not 0 <= temperature < math.inf:
        raise invalid("options.temperature", f"options.temperature must not be negative, got {temperature}.")
    if not 0 < top_p <= 1:
        raise invalid("options.top_p", f"options.top_p must be in (0, 1], got {top_p}.")
    if not 0 <= min_p <= 1:
        raise invalid("options.min_p", f"options.min_p must be in [0, 1], got {min_p}.")
    seed = None if options.seed is None or options.seed < 0 else options.seed
    return make_sampling(temperature, top_k, top_p, min_p, seed)


def constrain(ask: Ask, body: OllamaBody, model: ModelSettings, *, after_reasoning: bool = True) -> Ask:
    """Return the ask with its format and penalties; raises InvalidRequest naming the field, and the flag it needs."""
    options = body.options or Options()
    names = ("options.frequency_penalty", "options.presence_penalty", "options.repeat_penalty")
    given = options.frequency_penalty, options.presence_penalty, options.repeat_penalty
    grammar = _grammar(body.format, model)
    return evolve(
        ask,
        # No tool call can stand in JSON.
        form=ask.form if grammar is None else evolve(ask.form, parse_tools=False),
        constraint=None if grammar is None else evolve(grammar, after_reasoning=after_reasoning),
        constraint_field=None if grammar is None else "format",
        penalties=read_penalties(*given, model, names, ask.penalties.repetition),
    )


def _grammar(form: str | Mapping[str, Any] | None, model: ModelSettings) -> TextGrammar | None:
    if form is None or form == "":
        return None
    if form != "json" and isinstance(form, str):
        raise invalid("format", "format must be json or a JSON schema.")
    need("structured_outputs", "format", model)
    return TextGrammar("json_object") if form == "json" else TextGrammar("json_schema", json_text(form, "format"))


def read_limits(options: Options) -> Limits:
    """Return when generation ends: with the context at the latest; num_predict 0 and below mean no other limit."""
    stop = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    if len(stop) > MAX_STOP_STRINGS:
        raise invalid("options.stop", f"options.stop may hold at most {MAX_STOP_STRINGS} strings, got {len(stop)}.")
    if "" in stop:
        raise invalid("options.stop", "options.stop must not contain an empty string.")
    budget = options.num_predict
    return Limits(max_new_tokens=budget if budget is not None and budget > 0 else None, stop=stop, may_shrink=True)


def read_think(think: bool | str | None, model: ModelSettings) -> dict[str, Any]:
    """Return the template's switches of `think`; raises InvalidRequest for a value that is none."""
    if think is None:
        return {}
    if isinstance(think, str) and think not in EFFORTS:
        raise invalid("think", f"think must be true, false, {', '.join(EFFORTS)}.")
    if think and model.reasoning_parser is None:
        raise invalid("think", f'"{model.served_model_name}" does not support thinking', "unsupported_parameter")
    if isinstance(think, bool):
        return {"enable_thinking": think}
    return {"enable_thinking": True, "reasoning_effort": think}


def check_top_logprobs(body: OllamaBody) -> int:
    """Return how many alternatives go with each logprob; raises InvalidRequest outside 0..MAX_TOP_LOGPROBS."""
    if not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, got {body.top_logprobs}")
    return body.top_logprobs if body.logprobs else 0


def details(model: ModelSettings) -> dict[str, object]:
    """Return what /api/tags and /api/show tell of the model's make."""
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": model.model_type,
        "families": [model.model_type],
        "parameter_size": "",
        "quantization_level": "",
    }
