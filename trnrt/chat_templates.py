"""Which chat template a model folder has, where there is no card of the model: files, spellings, built-in ones."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from stages.errors import CheckpointError, ConfigError
from stages.settings import TemplateSource
from trnrt.conversations import BUILT_IN, implied, is_description, read_conversation
from trnrt.folder_files import read_optional, read_text
from trnrt.native_formats import native_name, native_source

TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

log = logging.getLogger("trnrt")


def choose_template(
    folder: Path,
    chat_template: str | None = None,
    *,
    model: str = "",
    model_type: str = "",
    architectures: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
    trusts_special_tokens: bool = False,
) -> TemplateSource:
    """Return the template that --chat-template names or the folder has; one without texts says why it has none.

    Raises ConfigError for a --chat-template that cannot be had, CheckpointError naming a file that is not whole.
    """
    tokenizer_config = read_optional(folder / "tokenizer_config.json")
    source = evolve(
        _given(chat_template)
        if chat_template is not None
        else _found(folder, tokenizer_config, model, model_type, architectures),
        defaults=dict(defaults or {}),
        trusts_special_tokens=trusts_special_tokens,
    )
    return evolve(source, variables=special_tokens(folder))


def _given(chat_template: str) -> TemplateSource:
    if chat_template in BUILT_IN:
        return BUILT_IN[chat_template].source()
    path = Path(chat_template)
    if not path.is_file():
        known = ", ".join(sorted(BUILT_IN))
        raise ConfigError(f"--chat-template: there is no file {path}, nor a built-in template of that name ({known})")
    source = _of_file(path)
    if path.suffix == ".json":
        return source
    # As SGLang reads a file of the flag's: what was pasted out of JSON has its newlines spelled.
    return evolve(source, texts={name: text.strip("\n").replace("\\n", "\n") for name, text in source.texts.items()})


def _found(
    folder: Path, tokenizer_config: Mapping[str, Any], model: str, model_type: str, architectures: tuple[str, ...]
) -> TemplateSource:
    native = native_name(model_type, architectures)
    if native is not None:
        return native_source(native, folder)
    conversation = implied(model, model_type)
    if conversation is not None:
        log.info("%s is of the conversation format %s; --chat-template takes another", model, conversation)
        return BUILT_IN[conversation].source()
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).is_file():
            source = _of_file(folder / name)
            return evolve(source, texts={**source.texts, **_more(folder)})
    others = sorted(folder.glob("*.jinja"))
    if len(others) == 1:
        return _of_file(others[0])
    texts = _texts(tokenizer_config.get("chat_template"), folder / "tokenizer_config.json")
    if texts:
        return TemplateSource(texts)
    if others:
        names = ", ".join(path.name for path in others)
        return TemplateSource({}, f"it has several templates ({names}); give one with --chat-template")
    return TemplateSource({}, "the model has no chat_template.jinja and tokenizer_config.json has no chat_template")


def _more(folder: Path) -> dict[str, str]:
    """Return the named templates that stand beside chat_template.jinja in a folder of their own."""
    return {path.stem: read_text(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}


def _of_file(path: Path) -> TemplateSource:
    text = read_text(path)
    if path.suffix != ".json":
        return TemplateSource({"default": text})
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not JSON: {error}") from None
    if isinstance(value, dict) and is_description(value):
        return read_conversation(value, path).source()
    texts = _texts(value.get("chat_template") if isinstance(value, dict) else value, path)
    if not texts:
        raise CheckpointError(f"{path}: has no chat_template")
    return TemplateSource(texts)


def _texts(value: object, path: Path) -> dict[str, str]:
    """Return the templates of a chat_template entry: a text, named texts as a list of either form, or a table."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    pairs: list[tuple[object, object]] = []
    for entry in [value] if isinstance(value, dict) else value if isinstance(value, list) else [None]:
        if not isinstance(entry, dict):
            raise CheckpointError(f"{path}: chat_template is neither a text nor a list of named texts")
        pairs += [(entry["name"], entry["template"])] if {"name", "template"} <= entry.keys() else entry.items()
    texts = {str(name): text for name, text in pairs if isinstance(text, str)}
    if len(texts) != len(pairs) or "default" not in texts:
        raise CheckpointError(f"{path}: chat_template has no text named default, or one that is no text")
    return texts


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens' texts by name; an entry is the text, or an object that has it as its content."""
    files = ("special_tokens_map.json", "tokenizer_config.json")
    entries = {name: entry for file in files for name, entry in read_optional(folder / file).items()}
    tokens = {}
    for name in TOKENS:
        entry = entries.get(name)
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            tokens[name] = text
    return tokens
