"""What a parser is to the detokenizer: a small automaton over token ids, one for each choice. Core.

Parsers read ids, not text: the tags are single ids of the vocabulary, so an answer that merely spells a tag is text.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from attrs import frozen

from stages.messages import Tool, ToolCallDelta

TagIds = Mapping[str, int]


class Reasoning(Protocol):
    """One choice's way through its thinking blocks."""

    @property
    def active(self) -> bool:
        """Whether the next token is reasoning."""
        ...

    @property
    def num_tokens(self) -> int:
        """How many tokens were reasoning, the tags of its blocks included."""
        ...

    def take(self, token_id: int) -> bool:
        """Move over one id, counting it if it is reasoning; True when it is one of the block's own tags, not text."""
        ...


class ToolCalls(Protocol):
    """One choice's way through its tool calls."""

    @property
    def active(self) -> bool:
        """Whether the next token belongs to a call."""
        ...

    def take(self, token_id: int, piece: bytes) -> tuple[ToolCallDelta, ...] | None:
        """Move over one id with its bytes and return what it adds to a call; None when it is not part of one."""
        ...


@frozen
class ReasoningParser:
    """A reasoning format: the tags it needs, and how a choice's automaton is made."""

    name: str
    tags: tuple[str, ...]
    make: Callable[[TagIds, bool], Reasoning]


@frozen
class ToolParser:
    """A tool-call format: the tags it needs, and how a choice's automaton is made."""

    name: str
    tags: tuple[str, ...]
    make: Callable[[TagIds, tuple[Tool, ...]], ToolCalls]
