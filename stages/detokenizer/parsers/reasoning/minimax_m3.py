"""Reasoning of MiniMax M3, which may have begun in the prompt. Core.

Where the prompt does not say, the first marker does: one that closes ends reasoning, any other ends text. All until
then is held back; without a marker it is text.
"""

from attrs import define, field

from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.port import TextReasoning, TextReasoningParser
from stages.detokenizer.parsers.thinking import Block, Runs, thinking_parser

OPEN, CLOSE, CALL = "<mm:think>", "</mm:think>", "]<]minimax[>["

_THINKING = thinking_parser("minimax_m3", Block((OPEN,), (CLOSE,), (CALL,)))
_EVERY = markers(OPEN, CLOSE, CALL)


@define(eq=False)
class Undecided:
    """One choice's way: what its beginning is, and then its blocks."""

    active: bool = False
    _held: str = field(default="", init=False)
    _blocks: TextReasoning | None = field(default=None, init=False)

    def push(self, text: str) -> Runs:
        """Move over text and return what is decided of it."""
        if self._blocks is None:
            self._held += text
            _, marker = _EVERY.find(self._held, False)
            if not marker:
                return ()
            self._blocks = _THINKING.make(marker == CLOSE)
            text = self._held
        runs = self._blocks.push(text)
        self.active = self._blocks.active
        return runs

    def flush(self) -> Runs:
        """Return what was held back, at the end."""
        if self._blocks is None:
            return ((False, self._held),) if self._held else ()
        return self._blocks.flush()


def _make(in_reasoning: bool | None) -> TextReasoning:
    return Undecided() if in_reasoning is None else _THINKING.make(in_reasoning)


PARSER = TextReasoningParser("minimax_m3", (OPEN, CLOSE, CALL), _make)
