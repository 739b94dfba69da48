"""Stop strings in text that arrives in pieces: nothing of a possible stop is shown before it is decided. Core.

Theory of operation. Each stop string has a cursor: how many of its characters the text seen so far ends with (the
state of a Knuth-Morris-Pratt automaton, so a piece costs its own length whatever the stops are). The text the longest
cursor covers is held back; the rest can be shown. A cursor at its string's end is a match. A stop pattern's cursor
(stages.stop_patterns) does the same for a regular expression, and holds back what a match that has begun covers.

# Invariant: which stop matches does not depend on how the tokens were grouped into steps, because the caller pushes
# token by token; among stops completed by one token the first of the list wins, strings before patterns.
"""

from typing import Protocol

from attrs import define, field

from stages.stop_patterns import pattern_cursor


class AnyCursor(Protocol):
    """How far the text ends with one stop."""

    @property
    def stop(self) -> str:
        """The stop as the client wrote it."""

    @property
    def length(self) -> int:
        """How many characters are held back for it."""

    def find(self, text: str) -> tuple[int, int] | None:
        """Move over text and return where in it the first match ends and how long it is, or None."""

    def skip(self, text: str) -> None:
        """Move over text in which no match may end; one that begins there may end later."""

    def flush(self) -> tuple[int, int] | None:
        """Start anew; return a match that only waited for the text to end, as find does."""


@define(eq=False)
class Cursor:
    """How far the text ends with one stop string."""

    stop: str
    fallback: tuple[int, ...]
    length: int = 0

    def find(self, text: str) -> tuple[int, int] | None:
        """Move over text and return where in it the first match ends and how long it is, or None."""
        stop, fallback, length = self.stop, self.fallback, self.length
        if length == 0 and stop[0] not in text:
            return None
        for position, character in enumerate(text, start=1):
            while length and stop[length] != character:
                length = fallback[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                self.length = 0
                return position, len(stop)
        self.length = length
        return None

    def skip(self, text: str) -> None:
        """Move over text in which no match may end; one that begins there may end later."""
        for character in text:
            while self.length and self.stop[self.length] != character:
                self.length = self.fallback[self.length - 1]
            if self.stop[self.length] == character:
                self.length += 1
            if self.length == len(self.stop):
                self.length = self.fallback[-1]

    def flush(self) -> None:
        """Start anew; what the end of the text leaves of a string is no match."""
        self.length = 0


def cursor(stop: str) -> Cursor:
    """Return the cursor of a stop string of at least one character, with its fallback table."""
    fallback = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[length] != stop[index]:
            length = fallback[length - 1]
        if stop[length] == stop[index]:
            length += 1
        fallback[index] = length
    return Cursor(stop, tuple(fallback))


@define(eq=False)
class StopFinder:
    """Passes text through until a stop occurs; with keep_stop the stop itself passes too.

    While it does not heed them stops end nothing, but one that ends afterwards counts, wherever it began.
    """

    keep_stop: bool
    _cursors: tuple[AnyCursor, ...]
    matched: str | None = None
    heeds: bool = True
    _held: str = field(default="", init=False)

    def push(self, text: str) -> str:
        """Return what can be shown after one more token's text; after a match nothing more is."""
        if self.matched is not None:
            return ""
        window = self._held + text
        if self.heeds:
            for each, match in [(each, each.find(text)) for each in self._cursors]:
                if match is not None:
                    return self._cut(window, each.stop, *match)
        else:
            for each in self._cursors:
                each.skip(text)
        shown = len(window) - max((each.length for each in self._cursors), default=0)
        self._held = window[shown:]
        return window[:shown]

    def flush(self) -> str:
        """Return the text held back, at the end or in front of a tool call, and start anew."""
        found = [(each, each.flush()) for each in self._cursors]
        for each, match in found:
            if match is not None and self.matched is None and self.heeds:
                return self._cut(self._held, each.stop, *match)
        held, self._held = self._held, ""
        return held

    def _cut(self, window: str, stop: str, end: int, length: int) -> str:
        """Return what of a window is shown with a match that ends at `end` of its last piece."""
        self.matched = stop
        end += len(self._held)
        self._held = ""
        return window[: end if self.keep_stop else end - length]


def stop_finder(stops: tuple[str, ...], keep_stop: bool, patterns: tuple[str, ...] = ()) -> StopFinder:
    """Return the finder of these stop strings and patterns; empty ones are no stops."""
    strings = (cursor(stop) for stop in stops if stop)
    return StopFinder(keep_stop, (*strings, *(pattern_cursor(pattern) for pattern in patterns if pattern)))
