"""Finds parsers by name: each file of reasoning/ and tools/ exports one PARSER."""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from stages.detokenizer.parsers import reasoning, tools
from stages.detokenizer.parsers.port import ReasoningParser, ToolParser
from stages.detokenizer.vocabulary import Vocabulary
from stages.errors import CheckpointError, ConfigError


def names(folder: ModuleType) -> list[str]:
    """Return the names of the parsers in a folder."""
    return sorted(module.name for module in pkgutil.iter_modules(folder.__path__))


def load_reasoning_parser(name: str) -> ReasoningParser:
    """Return the reasoning parser of that name; raises ConfigError naming the ones there are."""
    parser: ReasoningParser = _load(reasoning, name, "--reasoning-parser")
    return parser


def load_tool_parser(name: str) -> ToolParser:
    """Return the tool parser of that name; raises ConfigError naming the ones there are."""
    parser: ToolParser = _load(tools, name, "--tool-call-parser")
    return parser


def tag_ids(parser: ReasoningParser | ToolParser, vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of a parser's tags; raises CheckpointError naming a tag that is not one token."""
    for tag in parser.tags:
        if tag not in vocabulary.added:
            raise CheckpointError(f"parser {parser.name} needs the token {tag}, which the tokenizer has not")
    return {tag: vocabulary.added[tag] for tag in parser.tags}


def _load(folder: ModuleType, name: str, flag: str) -> Any:
    if name not in names(folder):
        raise ConfigError(f"{flag}: there is no {name!r}; there are: {', '.join(names(folder))}")
    return importlib.import_module(f"{folder.__name__}.{name}").PARSER
