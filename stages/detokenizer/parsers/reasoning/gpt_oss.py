"""Reasoning of gpt-oss: the analysis channel; other channels are text, and messages to functions stay whole. Core.

No vocabulary is needed: the channels' markers are read as the text they are.
"""

from attrs import define, field

from stages.detokenizer.parsers.harmony import CHANNEL, MARKERS, MESSAGE, START, header_of
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.port import TextReasoningParser
from stages.detokenizer.parsers.thinking import Runs

ANALYSIS = "analysis"

_EVERY, _MESSAGE = markers(*MARKERS), markers(MESSAGE)


@define(eq=False)
class Channels:
    """One choice's way through its messages."""

    active: bool
    _held: str = field(default="", init=False)
    # The beginning of the header being read, "" in a message's text.
    _header: str = field(default="", init=False)

    def push(self, text: str) -> Runs:
        """Move over text and return what is decided of it."""
        return self._runs(self._held + text, False)

    def flush(self) -> Runs:
        """Return what was held back, at the end; a header that was cut off is no text."""
        return self._runs(self._held, True)

    def _runs(self, text: str, is_whole: bool) -> Runs:
        runs: list[tuple[bool, str]] = []
        marker = START
        while marker:
            at, marker = (_MESSAGE if self._header else _EVERY).find(text, is_whole)
            passed, text = text[:at], text[at + len(marker) :]
            if not self._header:
                runs.append((self.active, passed))
                self._leave(marker)
            else:
                self._header += passed
                if marker:
                    runs.append((False, self._enter()))
        self._held = text
        return tuple(run for run in runs if run[1])

    def _leave(self, marker: str) -> None:
        """Move over a marker in a message's text: most end it."""
        if marker:
            self.active = False
            self._header = marker if marker in (START, CHANNEL) else ""

    def _enter(self) -> str:
        """Move to a message's text, giving the header where the parser of tool calls needs it."""
        header, whole = header_of(self._header), self._header + MESSAGE
        self._header = ""
        self.active = header.channel == ANALYSIS and header.tool is None
        return whole if header.tool is not None else ""


def _make(in_reasoning: bool | None) -> Channels:
    return Channels(bool(in_reasoning))


PARSER = TextReasoningParser("gpt_oss", MARKERS, _make)
