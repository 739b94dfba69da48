"""Finds parsers by name: each file of the four folders exports one PARSER."""

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from stages.detokenizer.parsers import aliases, id_reasoning, id_tools, reasoning, tools
from stages.detokenizer.parsers.port import (
    ReasoningParser,
    TextReasoningParser,
    TextToolParser,
    ToolParser,
)
from stages.detokenizer.vocabulary import Vocabulary
from stages.errors import CheckpointError, ConfigError

NUM_NEAREST = 3


def names(folder: ModuleType) -> list[str]:
    """Return the names of the parsers in a folder."""
    return sorted(module.name for module in pkgutil.iter_modules(folder.__path__))


def load_reasoning_parser(name: str) -> TextReasoningParser:
    """Return the reasoning parser that a name or alias means; raises ConfigError naming the nearest ones there are."""
    parser: TextReasoningParser = _load(reasoning, reasoning_name(name))
    return parser


def load_tool_parser(name: str) -> TextToolParser:
    """Return the tool parser that a name or alias means; raises ConfigError naming the nearest ones there are."""
    parser: TextToolParser = _load(tools, tool_name(name))
    return parser


def load_id_reasoning_parser(name: str) -> ReasoningParser | None:
    """Return the reasoning parser that reads ids, or None where that format has none; raises ConfigError."""
    found = reasoning_name(name)
    return _load(id_reasoning, found) if found in names(id_reasoning) else None


def load_id_tool_parser(name: str) -> ToolParser | None:
    """Return the tool parser that reads ids, or None where that format has none; raises ConfigError."""
    found = tool_name(name)
    return _load(id_tools, found) if found in names(id_tools) else None


def reasoning_name(name: str) -> str:
    """Return the name of the file that a name or alias means; raises ConfigError."""
    return _resolved(name, "--reasoning-parser", names(reasoning), aliases.REASONING, aliases.REFUSED_REASONING)


def tool_name(name: str) -> str:
    """Return the name of the file that a name or alias means; raises ConfigError."""
    return _resolved(name, "--tool-call-parser", names(tools), aliases.TOOLS, aliases.REFUSED_TOOLS)


def tag_ids(parser: ReasoningParser | ToolParser, vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of a parser's tags; raises CheckpointError naming a tag that is not one token."""
    for tag in parser.tags:
        if tag not in vocabulary.added:
            raise CheckpointError(f"parser {parser.name} needs the token {tag}, which the tokenizer has not")
    return {tag: vocabulary.added[tag] for tag in parser.tags}


def _resolved(name: str, flag: str, known: list[str], others: Mapping[str, str], refused: Collection[str]) -> str:
    plain = name.replace("-", "_")
    found = others.get(name) or others.get(plain, plain)
    if found in known:
        return found
    if plain in refused:
        raise ConfigError(f"{flag}: the format of {name!r} is not supported")
    nearest = get_close_matches(plain, [*known, *others], NUM_NEAREST)
    hint = f" (did you mean {' or '.join(nearest)}?)" if nearest else ""
    raise ConfigError(f"{flag}: there is no {name!r}{hint}; there are: {', '.join(known)}")


def _load(folder: ModuleType, name: str) -> Any:
    return importlib.import_module(f"{folder.__name__}.{name}").PARSER
