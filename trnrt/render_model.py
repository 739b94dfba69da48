"""Reads the plainest model folders; stands in for the reader of any until that is here."""

from pathlib import Path
from typing import Any

from attrs import frozen

from stages.errors import CheckpointError, ConfigError
from stages.messages import Sampling
from stages.settings import ModelSettings, TemplateSource
from trnrt.chat_templates import choose_template
from trnrt.folder_files import read_json


@frozen
class ModelFolder:
    """A model as text work needs it: its files, what the stages know of it, its chat template."""

    folder: Path
    tokenizer_folder: Path
    settings: ModelSettings
    template: str | TemplateSource


def read_model_folder(model: str, **flags: Any) -> ModelFolder:
    """Return what a folder has; raises ConfigError or CheckpointError."""
    folder = Path(model)
    if not folder.is_dir():
        raise ConfigError(f"MODEL: there is no folder {folder}")
    raw = read_json(folder / "config.json")
    text = raw.get("text_config", raw)
    ends = text.get("eos_token_id")
    context = flags["context_length"] or text.get("max_position_embeddings")
    if context is None:
        raise CheckpointError(f"{folder}: config.json has no max_position_embeddings; give --context-length")
    model_type = str(raw.get("model_type", ""))
    settings = ModelSettings(
        served_model_name=flags["served_model_name"] or model,
        model_path=model,
        model_type=model_type,
        architectures=tuple(raw.get("architectures") or ()),
        context_length_tokens=context,
        vocab_size=flags["vocab_size"] or text["vocab_size"],
        eos_token_ids=frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends]),
        reasoning_parser=flags["reasoning_parser"],
        tool_call_parser=flags["tool_call_parser"],
        default_sampling=Sampling(),
    )
    template = "glm5" if model_type == "glm5_next" else choose_template(folder, flags["chat_template"])
    return ModelFolder(folder, folder, settings, template)
