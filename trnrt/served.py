"""Reads what a checkpoint folder says of itself, without torch: config, end tokens, sampling defaults, names."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from attrs import frozen

from stages.detokenizer.parsers.loading import load_reasoning_parser, load_tool_parser
from stages.errors import CheckpointError, ConfigError
from stages.messages import Sampling
from stages.settings import ModelSettings
from trnrt.config import Config
from trnrt.models import card_for, demo
from trnrt.models.card import ModelCard

DEMO_FILES = Path(demo.__file__).parent / "demo_files"
DEMO_NAME = demo.CARD.name

T = TypeVar("T")


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
    file = folder / "config.json"
    raw = read_json(file)
    text = _need(raw, "text_config", dict, file) if "text_config" in raw else raw
    card = card_for(_need(raw, "model_type", str, file))
    _check_parsers(config)
    tokenizer_folder = Path(config.tokenizer_path) if config.tokenizer_path else folder
    if not (tokenizer_folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{tokenizer_folder}: tokenizer.json is missing")
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    longest = _need(text, "max_position_embeddings", int, file)
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
            architectures=tuple(raw.get("architectures") or ()),
            context_length_tokens=config.context_length or longest,
            vocab_size=_need(text, "vocab_size", int, file),
            eos_token_ids=_ids(text, file) | _ids(generation, generation_file),
            reasoning_parser=_parser(config.reasoning_parser, card.reasoning_parser),
            tool_call_parser=_parser(config.tool_call_parser, card.tool_call_parser),
            default_sampling=_sampling(generation, generation_file)
            if config.sampling_defaults == "model"
            else Sampling(),
            incremental_streaming_output=config.incremental_streaming_output,
            refuses_priority=config.abort_on_priority_when_disabled and not config.enable_priority_scheduling,
            queue_timeout_s=config.queue_timeout,
            aliases=tuple(filter(None, (name.strip() for name in config.model_alias.split(",")))),
            structured_outputs=config.structured_outputs,
            penalties=config.penalties,
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


def _need(table: Mapping[str, Any], key: str, kind: type[T], file: Path) -> T:
    """Return table[key]; raises CheckpointError when it is missing or of another kind."""
    if key not in table:
        raise CheckpointError(f"{file}: {key} is missing")
    value = table[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CheckpointError(f"{file}: {key} is {value!r}, which makes no sense")
    return value


def _ids(table: Mapping[str, Any], file: Path) -> frozenset[int]:
    value = table.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise CheckpointError(f"{file}: eos_token_id is {value!r}, which makes no sense")
    return frozenset(ids)


def _check_parsers(config: Config) -> None:
    """Raise ConfigError for a parser there is no file of, before a checkpoint is loaded in vain."""
    if config.reasoning_parser not in (None, "auto", "none"):
        load_reasoning_parser(config.reasoning_parser)
    if config.tool_call_parser not in (None, "auto", "none"):
        load_tool_parser(config.tool_call_parser)


def _parser(wanted: str | None, card: str | None) -> str | None:
    return card if wanted == "auto" else None if wanted in (None, "none") else wanted


def _sampling(generation: Mapping[str, Any], file: Path) -> Sampling:
    """Return the defaults of generation_config.json; null is as good as absent, a value out of range is refused."""
    if generation.get("do_sample") is False:
        return Sampling(temperature=0.0)

    def number(key: str, default: float, is_valid: Callable[[float], bool]) -> float:
        value = default if generation.get(key) is None else generation[key]
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_valid(value):
            raise CheckpointError(f"{file}: {key} is {value!r}, which makes no sense")
        return value

    return Sampling(
        temperature=float(number("temperature", 1.0, lambda value: 0 <= value < math.inf)),
        top_p=float(number("top_p", 1.0, lambda value: 0 < value <= 1)),
        top_k=max(0, int(number("top_k", 0, lambda value: value >= -1))),
        min_p=float(number("min_p", 0.0, lambda value: 0 <= value <= 1)),
    )
