"""Reads what a checkpoint folder says of itself, without torch: config, end tokens, sampling defaults, names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from stages.errors import CheckpointError, ConfigError
from stages.messages import Sampling
from stages.settings import ModelSettings
from trnrt.config import Config
from trnrt.models import card_for, demo
from trnrt.models.card import ModelCard

DEMO_FILES = Path(demo.__file__).parent / "demo_files"
DEMO_NAME = demo.CARD.name


@frozen
class ServedModel:
    """The folder to load, its card, and what the stages need to know of it."""

    folder: Path
    tokenizer_folder: Path
    card: ModelCard
    settings: ModelSettings


def read_served_model(config: Config) -> ServedModel:
    """Return the model that `config` names; raises CheckpointError naming a file or key, ConfigError naming a flag."""
    folder = Path(config.model_path) if config.model_path else DEMO_FILES
    if not folder.is_dir():
        raise ConfigError(f"--model-path: there is no folder {folder}")
    raw = read_json(folder / "config.json")
    text = raw.get("text_config", raw)
    card = card_for(_need(raw, "model_type", folder))
    tokenizer_folder = Path(config.tokenizer_path) if config.tokenizer_path else folder
    if not (tokenizer_folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{tokenizer_folder}: tokenizer.json is missing")
    generation = read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    longest = _need(text, "max_position_embeddings", folder)
    if config.context_length is not None and config.context_length > longest:
        raise ConfigError(f"--context-length: the model's longest is {longest}, got {config.context_length}")
    return ServedModel(
        folder=folder,
        tokenizer_folder=tokenizer_folder,
        card=card,
        settings=ModelSettings(
            served_model_name=config.served_model_name or (folder.resolve().name if config.model_path else DEMO_NAME),
            model_path=str(config.model_path or DEMO_NAME),
            model_type=raw["model_type"],
            architectures=tuple(raw.get("architectures", ())),
            context_length_tokens=config.context_length or longest,
            vocab_size=_need(text, "vocab_size", folder),
            eos_token_ids=_ids(text.get("eos_token_id")) | _ids(generation.get("eos_token_id")),
            reasoning_parser=_parser(config.reasoning_parser, card.reasoning_parser),
            tool_call_parser=_parser(config.tool_call_parser, card.tool_call_parser),
            default_sampling=_sampling(generation) if config.sampling_defaults == "model" else Sampling(),
            incremental_streaming_output=config.incremental_streaming_output,
        ),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`; raises CheckpointError when it is missing or not one."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent}: {path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: is not a JSON object")
    return value


def _need(table: Mapping[str, Any], key: str, folder: Path) -> Any:
    if key not in table:
        raise CheckpointError(f"{folder / 'config.json'}: {key} is missing")
    return table[key]


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _parser(wanted: str | None, card: str | None) -> str | None:
    return card if wanted == "auto" else None if wanted in (None, "none") else wanted


def _sampling(generation: Mapping[str, Any]) -> Sampling:
    if generation.get("do_sample") is False:
        return Sampling(temperature=0.0)
    return Sampling(
        temperature=float(generation.get("temperature", 1.0)),
        top_p=float(generation.get("top_p", 1.0)),
        top_k=int(generation.get("top_k") or 0),
        min_p=float(generation.get("min_p") or 0.0),
    )
