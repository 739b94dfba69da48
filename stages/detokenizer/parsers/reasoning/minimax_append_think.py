"""No reasoning told apart, for clients that do it: all is text, behind the tag that opened it. Core."""

from attrs import define

from stages.detokenizer.parsers.port import TextReasoningParser

OPENING = "<think>"


@define(eq=False)
class AppendThink:
    """One choice's text; the tag comes with the first of it."""

    _has_begun: bool = False
    active: bool = False

    def push(self, text: str) -> tuple[tuple[bool, str], ...]:
        """Return the text, the first behind the tag."""
        if not text:
            return ()
        lead = "" if self._has_begun else OPENING
        self._has_begun = True
        return ((False, lead + text),)

    def flush(self) -> tuple[tuple[bool, str], ...]:
        """Return nothing: nothing is held back."""
        return ()


def _make(_in_reasoning: bool | None) -> AppendThink:
    return AppendThink()


PARSER = TextReasoningParser("minimax_append_think", (), _make)
