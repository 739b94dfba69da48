"""The input of a custom tool, out of the JSON arguments the model was made to put it in."""

import json
import re

from attrs import define, field

from stages.ingress.dialects.openai_responses_tools import CUSTOM_INPUT

LEAD = "{" + json.dumps(CUSTOM_INPUT) + ": " + '"'
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
REPLACEMENT = "\ufffd"
PLAIN = re.compile(r'[^"\\]+')


@define(eq=False)
class InputReading:
    """Reads the text in arguments that come in pieces.

    Arguments of the form the model was shown are read as they come. Any others wait for their end and are the input as
    they are, or the one string they hold.
    """

    arguments: list[str] = field(factory=list)
    is_as_shown: bool | None = None
    is_closed: bool = False
    # What was not read yet: the lead, or an escape that is not all there.
    _unread: str = ""

    def push(self, piece: str) -> str:
        """Take in a piece and return the text that is certain by now."""
        self.arguments.append(piece)
        if self.is_as_shown is False or self.is_closed:
            return ""
        self._unread += piece
        if self.is_as_shown is None:
            if len(self._unread) < len(LEAD) and LEAD.startswith(self._unread):
                return ""
            self.is_as_shown = self._unread.startswith(LEAD)
            self._unread = self._unread.removeprefix(LEAD)
        return self._unescape() if self.is_as_shown else ""

    def rest(self) -> str:
        """Return the text that is left at the end of the arguments."""
        if self.is_as_shown:
            return ""
        text = "".join(self.arguments)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return "" if LEAD.startswith(text) else text
        if value == {}:
            return ""
        named = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
        only = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else None
        return next((found for found in (named, only) if isinstance(found, str)), text)

    def _unescape(self) -> str:
        """Return the text up to the closing quote, or to an escape that is not all there."""
        text: list[str] = []
        unread, at = self._unread, 0
        while at < len(unread):
            if unread[at] == '"':
                self.is_closed = True
                break
            if unread[at] != "\\":
                run = PLAIN.match(unread, at)
                text.append(run[0] if run else "")
                at += len(text[-1])
                continue
            character, length = _escape(unread[at : at + 12])
            if not length:
                break
            text.append(character)
            at += length
        self._unread = unread[at:]
        return "".join(text)


def _escape(text: str) -> tuple[str, int]:
    """Return the character of the escape that `text` begins with and its length; 0 for one that is not all there."""
    if len(text) < 2:
        return "", 0
    if text[1] != "u":
        return ESCAPES.get(text[1], text[1]), 2
    if len(text) < 6:
        return "", 0
    code = _hex(text[2:6])
    if not 0xD800 <= code < 0xDC00:
        return (REPLACEMENT if 0xDC00 <= code < 0xE000 else chr(code)), 6
    if not "\\u".startswith(text[6:8]):
        return REPLACEMENT, 6
    if len(text) < 12:
        return "", 0
    low = _hex(text[8:12])
    if not 0xDC00 <= low < 0xE000:
        return REPLACEMENT, 6
    return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12


def _hex(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return ord(REPLACEMENT)
