"""The visible answer of one choice: bytes in, text that may be shown out. Core.

bytes -> whole characters -> stops held back -> blanks around tool calls held back -> text
"""

from attrs import define, field

from stages.detokenizer.stops import StopFinder
from stages.detokenizer.utf8 import Utf8


@define(eq=False)
class Blanks:
    """Holds trailing whitespace until something follows it: before a tool call, or alone after one, it is no text."""

    _held: list[str] = field(factory=list, init=False)
    _after_call: bool = field(default=False, init=False)

    def push(self, text: str) -> str:
        """Return the text up to its trailing whitespace, what was held first."""
        shown = text.rstrip()
        if not shown:
            self._held.append(text)
            return ""
        released = "".join(self._held) + shown
        self._held = [text[len(shown) :]]
        self._after_call = False
        return released

    def begin_call(self) -> None:
        """Forget the whitespace in front of a call."""
        self._held.clear()
        self._after_call = True

    def flush(self) -> str:
        """Return the whitespace that ends the text, unless all there is since a call is whitespace."""
        held = "".join(self._held)
        self._held.clear()
        return "" if self._after_call else held


@define(eq=False)
class Visible:
    """Turns visible bytes into text; stops and blanks are None where there is nothing to hold back."""

    _stops: StopFinder | None
    _blanks: Blanks | None
    _utf8: Utf8 = field(factory=Utf8, init=False)

    @property
    def matched(self) -> str | None:
        """The stop string or pattern found; from then on nothing is shown."""
        return self._stops.matched if self._stops is not None else None

    def heed_stops(self, heeds: bool) -> None:
        """Let stops end the text from the next token on, or not yet."""
        if self._stops is not None:
            self._stops.heeds = heeds

    def push(self, piece: bytes) -> str:
        """Return what can be shown after one more token's bytes."""
        return self._shown(self._utf8.push(piece))

    def push_text(self, text: str) -> str:
        """Return what can be shown after more text."""
        return self._shown(text)

    def begin_call(self) -> str:
        """Return what was held back before a tool call; a stop string does not reach over one."""
        shown = self._flushed()
        if self._blanks is not None and self.matched is None:
            self._blanks.begin_call()
        return shown

    def flush(self) -> str:
        """Return all that is still held back, at the end."""
        shown = self._flushed()
        return shown + self._blanks.flush() if self._blanks is not None and self.matched is None else shown

    def _flushed(self) -> str:
        shown = self._shown(self._utf8.flush())
        if self._stops is None or self.matched is not None:
            return shown
        return shown + self._unblanked(self._stops.flush())

    def _shown(self, text: str) -> str:
        return self._unblanked(text if self._stops is None else self._stops.push(text))

    def _unblanked(self, text: str) -> str:
        if self._blanks is None:
            return text
        text = self._blanks.push(text)
        return text if self.matched is None else text + self._blanks.flush()
