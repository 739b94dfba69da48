"""Finds the first of some markers in text that comes in pieces. Core.

# Invariant: which marker is found where depends on the text alone, not on its pieces: the earliest, then the longest.
"""

import re
from functools import cache

from attrs import frozen


@frozen(eq=False)
class Markers:
    """Some markers, and all that one of them may begin with."""

    texts: tuple[str, ...]
    pattern: re.Pattern[str]
    beginnings: frozenset[str]
    firsts: frozenset[str]
    longest: int

    def find(self, text: str, is_whole: bool) -> tuple[int, str]:
        """Return where the first marker begins, and which; without one, up to where text is surely none, and "".

        With is_whole nothing follows, so nothing is held back.
        """
        match = self.pattern.search(text)
        held = len(text) if is_whole else self._held(text)
        if match is not None and match.start() < held:
            return match.start(), match[0]
        return held, ""

    def is_cut(self, text: str) -> bool:
        """Say whether text is the beginning of a marker and no whole one."""
        return text in self.beginnings

    def _held(self, text: str) -> int:
        size = len(text)
        for start in range(max(0, size - self.longest + 1), size):
            if text[start] in self.firsts and text[start:] in self.beginnings:
                return start
        return size


@cache
def markers(*texts: str) -> Markers:
    """Return the finder of at least one marker, none of them empty."""
    longest_first = sorted(texts, key=len, reverse=True)
    return Markers(
        texts,
        re.compile("|".join(map(re.escape, longest_first))),
        frozenset(text[:size] for text in texts for size in range(1, len(text))),
        frozenset(text[0] for text in texts),
        len(longest_first[0]),
    )
