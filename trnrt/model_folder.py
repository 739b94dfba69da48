"""Reads any model folder, or a model's name on the hub, for text work: no torch, and nothing known of its architecture.

What a folder must have is a tokenizer; context, vocabulary, end tokens, sampling defaults and chat template come from
its files where it has them, and from flags where it has not.
"""

import json
import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from stages.detokenizer.parsers.loading import load_reasoning_parser, load_tool_parser
from stages.errors import CheckpointError, ConfigError
from stages.settings import ModelSettings, TemplateSource
from stages.tiktoken_file import find_ranks
from stages.tokenizer_file import FILE_NAME, read_tokenizer_file
from trnrt import model_config
from trnrt.chat_templates import choose_template, special_tokens
from trnrt.folder_files import end_ids, read_json, read_optional, senseless
from trnrt.hub import local_folder
from trnrt.model_config import UNSAID_CONTEXT
from trnrt.models import find_card
from trnrt.models.card import ModelCard
from trnrt.sampling_defaults import SamplingDefaults, of_flag, of_table

# SGLang's, for contexts that a model was not trained for.
LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
# Ends an answer wherever a tokenizer has it, as engines know by themselves.
ADDED_END = "<|eom_id|>"

log = logging.getLogger("trnrt")


@frozen
class ModelFolder:
    """A model as text work needs it: its files, what the stages know of it, its chat template."""

    folder: Path
    tokenizer_folder: Path
    settings: ModelSettings
    template: TemplateSource


@frozen
class _Facts:
    """What config.json and generation_config.json say, or the flags that stand in for them."""

    model_type: str
    architectures: tuple[str, ...]
    context_length: int
    vocab_size: int
    end_ids: frozenset[int]
    defaults: SamplingDefaults
    config: Mapping[str, Any]


def read_model_folder(
    model: str,
    *,
    tokenizer_path: str | None = None,
    revision: str | None = None,
    served_model_name: str | None = None,
    chat_template: str | None = None,
    context_length: int | None = None,
    vocab_size: int | None = None,
    sampling_defaults: str = "model",
    resolved_sampling_params: str | None = None,
    default_chat_template_kwargs: str | Mapping[str, Any] | None = None,
    trusts_special_tokens: bool = False,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ModelFolder:
    """Return what a folder, or a name on the hub, has; a parser "auto" is the model card's, where there is one.

    Raises ConfigError naming a flag, CheckpointError naming a file, its key and the flag that would replace it.
    """
    kwargs = _template_kwargs(default_chat_template_kwargs)
    resolved = None if resolved_sampling_params is None else of_flag(resolved_sampling_params)
    folder = local_folder(model, "MODEL", revision)
    tokenizer = folder if tokenizer_path is None else local_folder(tokenizer_path, "--tokenizer-path", revision)
    if resolved is not None:
        facts = _of_flags(resolved, context_length, vocab_size)
    else:
        facts = _of_files(folder, context_length, vocab_size, sampling_defaults, environ)
    card = find_card(facts.model_type)
    reasoning, tools = chosen_parsers(reasoning_parser, tool_call_parser, card)
    template = _template(model, tokenizer, folder, facts, card, chat_template, kwargs, trusts_special_tokens)
    return ModelFolder(
        folder=folder,
        tokenizer_folder=tokenizer,
        settings=ModelSettings(
            served_model_name=served_model_name or model,
            model_path=model,
            model_type=facts.model_type,
            architectures=facts.architectures,
            context_length_tokens=facts.context_length,
            vocab_size=facts.vocab_size,
            eos_token_ids=facts.end_ids | _tokenizer_ends(tokenizer),
            reasoning_parser=reasoning,
            tool_call_parser=tools,
            default_sampling=facts.defaults.sampling,
            default_penalties=facts.defaults.penalties,
            chat_stop=template.stop,
        ),
        template=template,
    )


def _of_flags(defaults: SamplingDefaults, context_length: int | None, vocab_size: int | None) -> _Facts:
    if context_length is None or vocab_size is None:
        missing = "--context-length" if context_length is None else "--vocab-size"
        raise ConfigError(f"--resolved-sampling-params: needs {missing} too, since config.json is not read then")
    return _Facts("", (), context_length, vocab_size, frozenset(), defaults, {})


def _of_files(
    folder: Path, context: int | None, vocab: int | None, defaults: str, environ: Mapping[str, str]
) -> _Facts:
    file = folder / "config.json"
    if not file.is_file():
        text = "--resolved-sampling-params with --context-length and --vocab-size does without it"
        raise CheckpointError(f"{folder}: config.json is missing; {text}")
    config = read_json(file)
    model_type = config.get("model_type") or ""
    if not isinstance(model_type, str):
        raise senseless(file, "model_type", model_type)
    architectures = config.get("architectures") or ()
    if not isinstance(architectures, list | tuple) or not all(isinstance(name, str) for name in architectures):
        raise senseless(file, "architectures", architectures)
    ends = frozenset().union(*(end_ids(table, file) for table in model_config.text_tables(config)))
    generation_file = folder / "generation_config.json"
    generation = read_optional(generation_file)
    return _Facts(
        model_type=model_type,
        architectures=tuple(architectures),
        context_length=_context(config, file, context, environ),
        vocab_size=vocab or _vocabulary(config, file),
        end_ids=ends | end_ids(generation, generation_file),
        defaults=_defaults(generation, generation_file) if defaults == "model" else SamplingDefaults(),
        config=config,
    )


def _vocabulary(config: Mapping[str, Any], file: Path) -> int:
    try:
        size = model_config.vocab_size(config, file)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; give it with --vocab-size") from None
    if size is None:
        raise CheckpointError(f"{file}: vocab_size is missing; give it with --vocab-size")
    return size


def _context(config: Mapping[str, Any], file: Path, wanted: int | None, environ: Mapping[str, str]) -> int:
    try:
        longest = model_config.context_length(config, file)
    except CheckpointError as error:
        if wanted is not None:
            return wanted
        raise CheckpointError(f"{error}; give the context with --context-length") from None
    if longest is None:
        if wanted is None:
            log.warning("%s says no context length, so it is %d: see --context-length", file, UNSAID_CONTEXT)
        return wanted or UNSAID_CONTEXT
    if wanted is not None and wanted > longest:
        if environ.get(LONGER_CONTEXT, "").lower() not in ("1", "true", "yes", "on"):
            text = f"the model's longest is {longest}, got {wanted}; {LONGER_CONTEXT}=1 allows it"
            raise ConfigError(f"--context-length: {text}")
        log.warning("--context-length %d is beyond what the model was made for, %d", wanted, longest)
    return wanted or longest


def _defaults(generation: Mapping[str, Any], file: Path) -> SamplingDefaults:
    try:
        return of_table(generation, str(file))
    except CheckpointError as error:
        raise CheckpointError(f"{error}; --sampling-defaults openai does without it") from None


def _template_kwargs(given: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if given is None or isinstance(given, Mapping):
        return given or {}
    try:
        value = json.loads(given)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"--default-chat-template-kwargs: expected a JSON object, got {given[:80]!r}")
    return value


def _tokenizer_ends(folder: Path) -> frozenset[int]:
    """Return the ids of the tokenizer's own end token and of those that end answers wherever they exist."""
    if not (folder / FILE_NAME).is_file() and find_ranks(folder) is None:
        raise CheckpointError(f"{folder}: {FILE_NAME} is missing; --tokenizer-path names a folder that has one")
    file = read_tokenizer_file(str(folder))
    texts = {special_tokens(folder).get("eos_token"), ADDED_END}
    return frozenset(token.token_id for token in file.added if token.text in texts)


def chosen_parsers(reasoning: str | None, tools: str | None, card: ModelCard | None) -> tuple[str | None, str | None]:
    """Return the parsers that names, "none" and "auto" mean; raises ConfigError for one there is no file of."""
    chosen = (
        _parser(reasoning, None if card is None else card.reasoning_parser),
        _parser(tools, None if card is None else card.tool_call_parser),
    )
    if chosen[0] is not None:
        load_reasoning_parser(chosen[0])
    if chosen[1] is not None:
        load_tool_parser(chosen[1])
    return chosen


def _parser(wanted: str | None, card: str | None) -> str | None:
    return card if wanted == "auto" else None if wanted in (None, "none") else wanted


def _template(
    model: str,
    tokenizer: Path,
    folder: Path,
    facts: _Facts,
    card: ModelCard | None,
    chat_template: str | None,
    kwargs: Mapping[str, Any],
    trusts_special_tokens: bool,
) -> TemplateSource:
    """Return the card's template, which keeps everybody's words apart, or the folder's own."""
    if card is not None and chat_template is None and not trusts_special_tokens:
        return TemplateSource({}, native=card.template, defaults=kwargs)
    choose = partial(
        choose_template,
        model=model,
        model_type=facts.model_type,
        architectures=facts.architectures,
        defaults=kwargs,
        trusts_special_tokens=trusts_special_tokens,
    )
    # A tokenizer of its own brings its own template; one without is the model's.
    own = choose(tokenizer, chat_template)
    if own.texts or own.native or tokenizer == folder:
        return own
    other = choose(folder)
    return evolve(other, variables=own.variables or other.variables)
