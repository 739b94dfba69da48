"""Keeps what people write from becoming a control token in a text template. Core.

A text template joins everybody's words and its own control tokens to one string. So that they can be told apart after
it, every control text in somebody's words is broken by a mark, one character that occurs nowhere else, behind its
first character; a text broken so looks the same to nearly everything a template asks of it, and is mended when the
string has been cut at the control tokens that are whole.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from attrs import define, field, frozen

# Private use: no tokenizer, template or language gives these a meaning.
MARKS = tuple(map(chr, range(0xF0000, 0xF0040)))


@frozen(eq=False)
class ControlTexts:
    """The texts of added tokens, and what finds them, or the halves of one, in a string."""

    whole: "re.Pattern[str] | None"
    # Beginnings and ends, by which two neighbours could spell one between them.
    heads: frozenset[str]
    tails: frozenset[str]
    longest: int

    def cuts(self, text: str, kept: tuple[str, ...] = ()) -> set[int]:
        """Return where text is to be cut so that it spells none of them, whatever it is put beside."""
        found: set[int] = set()
        if self.whole is not None:
            starts = (match.start() for match in self.whole.finditer(text))
            found = {start + 1 for start in starts if not text.startswith(kept, start)}
        size = min(self.longest, len(text))
        for length in range(2, size + 1):
            if text[-length:] in self.heads:
                found.add(len(text) - length + 1)
            if text[:length] in self.tails:
                found.add(1)
        return found


def control_texts(texts: Iterable[str]) -> ControlTexts:
    """Return the finder of these texts; whitespace and single characters are nobody's control."""
    known = {text for text in texts if len(text) > 1 and not text.isspace()}
    return ControlTexts(
        # A look-ahead finds those that overlap, too.
        whole=re.compile(f"(?={_pattern(known)})") if known else None,
        heads=frozenset(text[:length] for text in known for length in range(2, len(text))),
        tails=frozenset(text[-length:] for text in known for length in range(2, len(text))),
        longest=max(map(len, known), default=0),
    )


def _pattern(texts: Iterable[str]) -> str:
    """Return a pattern of any of the texts that looks at each character once: of a thousand texts most begin alike."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[:1], []).append(text[1:])
    if "" in by_first:
        return ""
    parts = [re.escape(first) + _pattern(rests) for first, rests in sorted(by_first.items())]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


@define(eq=False)
class Marker:
    """Breaks control texts in values, with one mark for all; `mark` is None while nothing had to be broken."""

    texts: ControlTexts
    _free: str
    mark: str | None = field(default=None, init=False)

    def value(self, value: Any, kept: tuple[str, ...] = ()) -> Any:
        """Return a JSON value with its strings broken, keys too; a text in `kept` stays whole."""
        if isinstance(value, str):
            return self.text(value, kept)
        if isinstance(value, Mapping):
            return {self.text(key) if isinstance(key, str) else key: self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def switch(self, value: Any) -> Any:
        """Return a value that a template compares: a single word in it stays whole, even one that is a token."""
        if isinstance(value, str):
            return value if _WORD.fullmatch(value) else self.text(value)
        if isinstance(value, Mapping):
            return {self.switch(key): self.switch(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.switch(item) for item in value]
        return value

    def text(self, text: str, kept: tuple[str, ...] = ()) -> str:
        """Return text with the mark behind the first character of every control text, and of halves at its edges."""
        cuts = self.texts.cuts(text, kept)
        if not cuts:
            return text
        self.mark = self._free
        edges = [0, *sorted(cuts), len(text)]
        return self._free.join(text[start:end] for start, end in pairwise(edges))


def free_mark(values: Iterable[object]) -> str:
    """Return a mark that occurs in none of the values' strings; raises ValueError when all of them do."""
    used: set[str] = set()
    for value in values:
        used |= _private(value)
    for mark in MARKS:
        if mark not in used:
            return mark
    raise ValueError("every mark occurs in the text")


_WORD = re.compile(r"[\w.-]*")
_PRIVATE = re.compile(f"[{MARKS[0]}-{MARKS[-1]}]")


def _private(value: object) -> set[str]:
    if isinstance(value, str):
        return set(_PRIVATE.findall(value))
    if isinstance(value, Mapping):
        return set().union(*(_private(part) for pair in value.items() for part in pair))
    if isinstance(value, list | tuple):
        return set().union(*map(_private, value))
    return set()
