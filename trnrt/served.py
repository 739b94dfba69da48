"""Reads what a checkpoint folder says of itself, without torch: config, end tokens, sampling defaults, names."""

from pathlib import Path

from attrs import frozen

from stages.errors import CheckpointError, ConfigError
from stages.messages import Penalties, Sampling
from stages.settings import ModelSettings, TemplateSource
from trnrt.chat_templates import choose_template
from trnrt.config import Config
from trnrt.folder_files import end_ids, need, read_json
from trnrt.hub import WITH_WEIGHTS, local_folder
from trnrt.model_folder import chosen_parsers
from trnrt.models import card_for, demo
from trnrt.models.card import ModelCard
from trnrt.sampling_defaults import SamplingDefaults, of_table

DEMO_FILES = Path(demo.__file__).parent / "demo_files"
DEMO_NAME = demo.CARD.name
GREEDY = Sampling(temperature=0.0)


@frozen
class ServedModel:
    """The folder to load, its card, and what the stages need to know of it."""

    folder: Path
    tokenizer_folder: Path
    card: ModelCard
    settings: ModelSettings
    template: TemplateSource


def read_served_model(config: Config) -> ServedModel:
    """Return the model that `config` names; raises CheckpointError naming a file or key, ConfigError naming a flag."""
    folder = DEMO_FILES
    if config.model_path:
        folder = local_folder(config.model_path, "--model-path", config.revision, WITH_WEIGHTS)
    file = folder / "config.json"
    raw = read_json(file)
    text = need(raw, "text_config", dict, file) if "text_config" in raw else raw
    card = card_for(need(raw, "model_type", str, file))
    reasoning, tools = chosen_parsers(config.reasoning_parser, config.tool_call_parser, card)
    tokenizer_folder = folder
    if config.tokenizer_path:
        tokenizer_folder = local_folder(config.tokenizer_path, "--tokenizer-path", config.revision)
    if not (tokenizer_folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{tokenizer_folder}: tokenizer.json is missing")
    template = TemplateSource({}, native=card.template)
    if config.chat_template is not None:
        template = choose_template(tokenizer_folder, config.chat_template)
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    defaults = SamplingDefaults()
    if config.sampling_defaults == "model":
        is_greedy = generation.get("do_sample") is False
        defaults = SamplingDefaults(GREEDY) if is_greedy else of_table(generation, str(generation_file))
    longest = need(text, "max_position_embeddings", int, file)
    if config.context_length is not None and config.context_length > longest:
        raise ConfigError(f"--context-length: the model's longest is {longest}, got {config.context_length}")
    return ServedModel(
        folder=folder,
        tokenizer_folder=tokenizer_folder,
        card=card,
        template=template,
        settings=ModelSettings(
            served_model_name=config.served_model_name or _name(config.model_path),
            model_path=str(config.model_path or DEMO_NAME),
            model_type=raw["model_type"],
            architectures=tuple(raw.get("architectures") or ()),
            context_length_tokens=config.context_length or longest,
            vocab_size=need(text, "vocab_size", int, file),
            eos_token_ids=end_ids(text, file) | end_ids(generation, generation_file),
            reasoning_parser=reasoning,
            tool_call_parser=tools,
            default_sampling=defaults.sampling,
            # Without the flag the graphs have none, whatever the model would like.
            default_penalties=defaults.penalties if config.penalties else Penalties(),
            incremental_streaming_output=config.incremental_streaming_output,
            refuses_priority=config.abort_on_priority_when_disabled and not config.enable_priority_scheduling,
            queue_timeout_s=config.queue_timeout,
            chat_stop=template.stop,
            aliases=tuple(filter(None, (name.strip() for name in config.model_alias.split(",")))),
            structured_outputs=config.structured_outputs,
            penalties=config.penalties,
        ),
    )


def _name(model_path: str | None) -> str:
    """Return what a model is called that nobody has given a name: its folder's, or the one it has on the hub."""
    if model_path is None:
        return DEMO_NAME
    path = Path(model_path).expanduser()
    return path.resolve().name if path.exists() else model_path
