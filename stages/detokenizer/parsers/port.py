"""What a parser is to the detokenizer: a small automaton, one for each choice, that reads ids or text. Core.

A parser of ids knows its tags as single ids of the vocabulary, so an answer that merely spells a tag is text to it: for
the model of one's own engine. A parser of text needs no vocabulary, and its tags may be several tokens: for any model.
What a parser of text says depends on the text alone, never on the pieces it came in.
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


class TextReasoning(Protocol):
    """One choice's way through its thinking blocks, as text."""

    @property
    def active(self) -> bool:
        """Whether the next character is reasoning."""
        ...

    def push(self, text: str) -> tuple[tuple[bool, str], ...]:
        """Move over text and return what is decided of it: runs of reasoning (True) and of other text, in order."""
        ...

    def flush(self) -> tuple[tuple[bool, str], ...]:
        """Return what was held back, at the end."""
        ...


class TextToolCalls(Protocol):
    """One choice's way through its tool calls, as text."""

    @property
    def active(self) -> bool:
        """Whether the next character belongs to a call."""
        ...

    def push(self, text: str) -> tuple[str | ToolCallDelta, ...]:
        """Move over text and return what is decided of it: visible text and calls, in order."""
        ...

    def flush(self) -> tuple[str | ToolCallDelta, ...]:
        """Return what was held back, at the end."""
        ...


@frozen
class TextReasoningParser:
    """A reasoning format in text: its markers, and how a choice's automaton is made.

    make takes whether generation begins inside of a block; None leaves that to the format.
    """

    name: str
    markers: tuple[str, ...]
    make: Callable[[bool | None], TextReasoning]


@frozen
class TextToolParser:
    """A tool-call format in text: its markers, and how a choice's automaton is made.

    make takes the tools, and whether calls are required: then they may come as a JSON list, whatever the format is.
    """

    name: str
    markers: tuple[str, ...]
    make: Callable[[tuple[Tool, ...], bool], TextToolCalls]
