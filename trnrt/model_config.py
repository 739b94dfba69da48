"""What a config.json of any architecture says of context and vocabulary: nested configs, scaled positions. Core."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trnrt.folder_files import senseless

CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
# Of a model that says nothing, as SGLang has it.
UNSAID_CONTEXT = 2048


def text_tables(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return where a text model's keys stand, first the config of its text part, last the root."""
    names = config.get("architectures")
    is_llava = isinstance(names, list) and any(
        str(name).startswith("Llava") and str(name).endswith("ForCausalLM") for name in names
    )
    thinker = config.get("thinker_config")
    candidates: list[object] = [thinker.get("text_config"), thinker] if isinstance(thinker, Mapping) else []
    candidates += [config.get(name) for name in ("llm_config", "language_config", "text_config")]
    inner = next((table for table in candidates if isinstance(table, Mapping)), None)
    return (config,) if inner is None or is_llava else (inner, config)


def context_length(config: Mapping[str, Any], file: Path) -> int | None:
    """Return the longest context a config derives, None where it says nothing; raises CheckpointError with the key."""
    for table in text_tables(config):
        for key in CONTEXT_KEYS:
            value = table.get(key)
            if value is None:
                continue
            if not _is_number(value) or not 1 <= value < 2**53:
                raise senseless(file, key, value)
            return int(value * _factor(table, file))
    return None


def vocab_size(config: Mapping[str, Any], file: Path) -> int | None:
    """Return the number of ids, None where a config says nothing; raises CheckpointError when it is no number."""
    for table in text_tables(config):
        value = table.get("vocab_size")
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise senseless(file, "vocab_size", value)
            return value
    return None


def _factor(table: Mapping[str, Any], file: Path) -> float:
    """Return by how much positions are stretched beyond those the key counts."""
    key = next((key for key in ("rope_scaling", "rope_parameters") if isinstance(table.get(key), Mapping)), None)
    if key is None:
        return 1
    rope = table[key]
    kind = rope.get("rope_type", rope.get("type"))
    # These count the stretched positions already.
    if rope.get("original_max_position_embeddings") is not None or kind == "llama3":
        return 1
    factor = rope.get("factor")
    if factor is None:
        return 1
    if not _is_number(factor) or not 0 < factor < 2**20:
        raise senseless(file, f"{key}.factor", factor)
    return float(factor)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
