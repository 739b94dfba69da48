"""One answer's text taken apart: reasoning, visible text and calls, in order. Core.

Theory of operation. Text goes to the reasoning parser, and what that leaves to the tool parser. Inside a call all of it
is the tool parser's alone: an argument that spells a thinking tag is an argument. So that this does not depend on where
the text was cut, it goes on in runs that end where a reasoning tag could begin.

# Invariant: the events joined depend on the text alone, not on its pieces.
"""

import re
from collections.abc import Iterable

from attrs import define, frozen

from stages.detokenizer.parsers.port import TextReasoning, TextToolCalls
from stages.messages import ToolCallDelta


@frozen
class Thought:
    """A piece of reasoning."""

    text: str


Part = Thought | str | ToolCallDelta


@define(eq=False)
class Answer:
    """One choice's way through its text; parsers are None where off."""

    _reasoning: TextReasoning | None
    _tools: TextToolCalls | None
    # Runs that end where a tag of the reasoning parser could begin.
    _runs: re.Pattern[str]

    def push(self, text: str) -> list[Part]:
        """Move over text and return what is decided of it."""
        parts: list[Part] = []
        for run in self._runs.findall(text) if self._reasoning is not None and self._tools is not None else (text,):
            if self._reasoning is None or (self._tools is not None and self._tools.active):
                parts += self._visible(run)
            else:
                parts += self._split(self._reasoning.push(run))
        return parts

    def flush(self) -> list[Part]:
        """Return what was held back, at the end."""
        parts = self._split(self._reasoning.flush()) if self._reasoning is not None else []
        return parts + list(self._tools.flush()) if self._tools is not None else parts

    def _split(self, runs: Iterable[tuple[bool, str]]) -> list[Part]:
        parts: list[Part] = []
        for is_reasoning, text in runs:
            parts += [Thought(text)] if is_reasoning else self._visible(text)
        return parts

    def _visible(self, text: str) -> Iterable[Part]:
        return self._tools.push(text) if self._tools is not None else (text,)


def answer_of(reasoning: TextReasoning | None, markers: Iterable[str], tools: TextToolCalls | None) -> Answer:
    """Return the automaton of one choice; markers are the reasoning parser's."""
    firsts = "".join(map(re.escape, sorted({marker[0] for marker in markers})))
    return Answer(reasoning, tools, re.compile(f"[{firsts}]|[^{firsts}]+" if firsts else r".+", re.DOTALL))
