"""Reads text that comes in pieces as if it were whole: a parser is a generator that yields when it needs more. Core.

Theory of operation. Every read waits until what has come decides it, or the text has ended; so what a parser does
depends on the text alone, never on where it was cut. A read that the end leaves undone raises Truncated.

What was read since `mark` is kept, so that a parser that took the end of a call for part of a broken value can go back
to it (`go_back_past`) once it is clear that the value never ends.
"""

import re
from collections.abc import Generator
from typing import TypeVar

from attrs import define, field

from stages.detokenizer.parsers.markers import Markers

T = TypeVar("T")
Steps = Generator[None, None, T]

SPACE = " \t\r\n"
_JSON_TOKEN = re.compile(r'\\.|\\|["{}\[\]]', re.DOTALL)


class Truncated(Exception):
    """The text ended inside of what was being read."""


class Malformed(Exception):
    """What was read is not what had to stand there."""


@define(eq=False)
class Reader:
    """The text that was not read yet, and whether more can come."""

    text: str = ""
    ended: bool = False
    _since_mark: list[str] = field(factory=list, init=False)

    def mark(self) -> None:
        """Remember this place."""
        self._since_mark.clear()

    def go_back(self) -> None:
        """Go back to the marked place."""
        self.text = "".join((*self._since_mark, self.text))
        self._since_mark.clear()

    def go_back_past(self, ends: Markers) -> bool:
        """Go back to behind the first end there is since the marked place; False where there is none."""
        self.go_back()
        at, end = ends.find(self.text, True)
        self.take(at + len(end))
        return bool(end)

    def take(self, size: int) -> str:
        """Return the next characters, read."""
        taken, self.text = self.text[:size], self.text[size:]
        self._since_mark.append(taken)
        return taken

    def unread(self, text: str) -> None:
        """Put back the text that was read last."""
        self.text = text + self.text
        kept = "".join(self._since_mark).removesuffix(text)
        self._since_mark[:] = [kept]

    def skip(self, space: str = SPACE) -> None:
        """Read over space that has come."""
        self.take(len(self.text) - len(self.text.lstrip(space)))

    def more(self) -> Steps[None]:
        """Wait for more text; raises Truncated when there is none."""
        if self.ended:
            raise Truncated
        yield

    def until(self, stops: Markers) -> Steps[tuple[str, str]]:
        """Read over the first of the markers, giving what stands before it, and it."""
        parts: list[str] = []
        while True:
            at, marker = stops.find(self.text, self.ended)
            parts.append(self.take(at))
            if marker:
                self.take(len(marker))
                return "".join(parts), marker
            yield from self.more()

    def peek(self, space: str = SPACE) -> Steps[str]:
        """Return the next character that is no space, reading nothing; "" at the end."""
        while True:
            rest = self.text.lstrip(space)
            if rest or self.ended:
                return rest[:1]
            yield

    def next_is(self, *texts: str, space: str = SPACE) -> Steps[str]:
        """Read space and one of the texts behind it, giving which; "", and nothing read, where it is none of them."""
        while True:
            rest = self.text.lstrip(space)
            for text in texts:
                if rest.startswith(text):
                    self.take(len(self.text) - len(rest) + len(text))
                    return text
            if self.ended or (rest and not any(text.startswith(rest) for text in texts)):
                return ""
            yield

    def close(self, ends: Markers) -> Steps[None]:
        """Read an end where one comes next, also one that the end of the text cuts off."""
        if not (yield from self.next_is(*ends.texts)) and self.ended and ends.is_cut(self.text.lstrip(SPACE)):
            self.take(len(self.text))

    def json_text(self) -> Steps[str]:
        """Read a JSON object or array from its bracket to the one that closes it, which is not to say it is valid."""
        parts: list[str] = []
        depth = 0
        in_string = False
        while True:
            size = len(self.text)
            for match in _JSON_TOKEN.finditer(self.text):
                token = match[0]
                if token == "\\":
                    size = match.start()
                elif token == '"':
                    in_string = not in_string
                elif len(token) == 1 and not in_string:
                    depth += 1 if token in "{[" else -1
                    if depth <= 0:
                        parts.append(self.take(match.end()))
                        return "".join(parts)
            parts.append(self.take(size))
            yield from self.more()
