"""Reasoning between tags, the form of most models. Core.

Theory of operation. Outside of a block an opening tag begins one and a closing tag is nothing; inside, an opening tag
is nothing, a closing tag ends it, and so does an exit: the beginning of a tool call, which stays in the text for the
parser of tool calls. `dropped` are markers that are no text outside. Blocks may follow each other.

# Invariant: the runs joined are all the text but for its tags.
"""

from attrs import define, field, frozen

from stages.detokenizer.parsers.markers import Markers, markers
from stages.detokenizer.parsers.port import TextReasoningParser

Runs = tuple[tuple[bool, str], ...]


@frozen
class Block:
    """A format's tags; begins_inside is where generation begins when the prompt does not say."""

    opens: tuple[str, ...] = ("<think>",)
    closes: tuple[str, ...] = ("</think>",)
    exits: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    begins_inside: bool = False


@define(eq=False)
class Thinking:
    """One choice's way through its blocks."""

    _block: Block
    _outside: Markers
    _inside: Markers
    active: bool
    _held: str = field(default="", init=False)

    def push(self, text: str) -> Runs:
        """Move over text and return what is decided of it."""
        return self._runs(self._held + text, False)

    def flush(self) -> Runs:
        """Return what was held back, at the end."""
        return self._runs(self._held, True)

    def _runs(self, text: str, is_whole: bool) -> Runs:
        runs: list[tuple[bool, str]] = []
        marker = "start"
        while marker:
            at, marker = (self._inside if self.active else self._outside).find(text, is_whole)
            if at:
                runs.append((self.active, text[:at]))
            text = text[at:]
            if marker in self._block.exits and self.active:
                self.active = False
            else:
                self.active = marker in self._block.opens or (self.active and marker not in self._block.closes)
                text = text[len(marker) :]
        self._held = text
        return tuple(runs)


def thinking_parser(name: str, block: Block = Block()) -> TextReasoningParser:
    """Return the reasoning parser of a format."""
    outside = markers(*block.opens, *block.closes, *block.dropped)
    inside = markers(*block.opens, *block.closes, *block.exits)
    every = (*block.opens, *block.closes, *block.exits, *block.dropped)

    def make(in_reasoning: bool | None) -> Thinking:
        return Thinking(block, outside, inside, block.begins_inside if in_reasoning is None else in_reasoning)

    return TextReasoningParser(name, every, make)
