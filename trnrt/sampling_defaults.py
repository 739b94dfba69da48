"""Sampling where a request says nothing: of generation_config.json, or of a JSON object given instead. Core."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from stages.errors import CheckpointError, ConfigError
from stages.messages import Penalties, Sampling


@frozen
class SamplingDefaults:
    """What an answer is drawn with unless its request says otherwise."""

    sampling: Sampling = field(factory=Sampling)
    penalties: Penalties = field(factory=Penalties)


_RANGES: Mapping[str, tuple[float, Callable[[float], bool]]] = {
    "temperature": (1.0, lambda value: 0 <= value < math.inf),
    "top_p": (1.0, lambda value: 0 < value <= 1),
    "top_k": (0, lambda value: value >= -1),
    "min_p": (0.0, lambda value: 0 <= value <= 1),
    "repetition_penalty": (1.0, lambda value: 0 < value <= 2),
}
# SGLang's way to say all of them.
EVERY_TOKEN = 1 << 30


def of_table(table: Mapping[str, Any], where: str) -> SamplingDefaults:
    """Return the defaults of a table; null is as good as absent; raises CheckpointError for a value out of range."""
    values: dict[str, float] = {}
    for key, (default, is_valid) in _RANGES.items():
        value = table.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_valid(value):
            raise CheckpointError(f"{where}: {key} is {value!r}, which makes no sense")
        values[key] = value
    top_k = int(min(values["top_k"], EVERY_TOKEN))
    return SamplingDefaults(
        Sampling(
            temperature=float(values["temperature"]),
            top_k=0 if top_k in (-1, EVERY_TOKEN) else top_k,
            top_p=float(values["top_p"]),
            min_p=float(values["min_p"]),
        ),
        Penalties(repetition=float(values["repetition_penalty"])),
    )


def of_flag(text: str) -> SamplingDefaults:
    """Return the defaults that --resolved-sampling-params has as JSON; raises ConfigError."""
    flag = "--resolved-sampling-params"
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise ConfigError(f"{flag}: expected a JSON object, got {text[:80]!r}")
    unknown = sorted(table.keys() - _RANGES.keys())
    if unknown:
        raise ConfigError(f"{flag}: knows {', '.join(_RANGES)}, not {', '.join(map(repr, unknown))}")
    try:
        return of_table(table, flag)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
