"""Stop strings in text that arrives in pieces: nothing of a possible stop is shown before it is decided. Core.

Theory of operation. Each stop string has a cursor: how many of its characters the text seen so far ends with (the
state of a Knuth-Morris-Pratt automaton, so a piece costs its own length whatever the stops are). The text the longest
cursor covers is held back; the rest can be shown. A cursor at its string's end is a match.

# Invariant: which stop matches does not depend on how the tokens were grouped into steps, because the caller pushes
# token by token; among stops completed by one token the first of the list wins.
"""

from attrs import define, field


@define(eq=False)
class Cursor:
    """How far the text ends with one stop string."""

    stop: str
    fallback: tuple[int, ...]
    length: int = 0

    def find(self, text: str) -> int | None:
        """Move over text and return where in it the first match ends, or None."""
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
                return position
        self.length = length
        return None


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
    """Passes text through until a stop string occurs; with keep_stop the stop itself passes too."""

    keep_stop: bool
    _cursors: tuple[Cursor, ...]
    matched: str | None = None
    _held: str = field(default="", init=False)

    def push(self, text: str) -> str:
        """Return what can be shown after one more token's text; after a match nothing more is."""
        if self.matched is not None:
            return ""
        ends = [(each, each.find(text)) for each in self._cursors]
        window = self._held + text
        for each, end in ends:
            if end is not None:
                self.matched = each.stop
                cut = len(self._held) + end - (0 if self.keep_stop else len(each.stop))
                self._held = ""
                return window[:cut]
        shown = len(window) - max((each.length for each in self._cursors), default=0)
        self._held = window[shown:]
        return window[:shown]

    def flush(self) -> str:
        """Return the text held back, and start anew."""
        held, self._held = self._held, ""
        for each in self._cursors:
            each.length = 0
        return held


def stop_finder(stops: tuple[str, ...], keep_stop: bool) -> StopFinder:
    """Return the finder of these stop strings; empty ones are no stops."""
    return StopFinder(keep_stop, tuple(cursor(stop) for stop in stops if stop))
