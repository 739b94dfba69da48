"""Parses and writes large JSON in pieces, so that a thread which does it lets the event loop run in between; core.

orjson holds the interpreter's lock for a whole call, and a call for 30 MB of small objects takes a second. So a large
text is read piece by piece: one pass over its brackets, strings and commas finds runs of whole elements of about
PIECE_BYTES, and orjson parses each as an array or an object of its own. A container that lies within a run is never
looked into; one that a run ends in is put together from its runs. What is accepted, and as which value, is what orjson
makes of the whole: every byte goes through it, but for the brackets, commas and blanks between runs.

One string is never cut: orjson reads 1 MB of it in 2 ms.
"""

import re
from collections.abc import Iterator
from typing import Any

import orjson
from attrs import define

PIECE_BYTES = 32 * 1024
PIECE_ITEMS = 4096
# Lists in an answer stand so deep; those of more containers than this are cut, not looked into.
WRITTEN_LEVELS = 6
NUM_LOOKED_INTO = 16

# Only single characters are repeated possessively: of groups, Python before 3.11.5 makes matches that are none. What a
# group may take back is bounded by its count.
_STRING = rb'"[^"\\]{0,2048}+(?:\\.[^"\\]{0,2048}+){0,64}"'
# A short container without containers in it is one token, and so are several with their commas, as in a list of
# messages; so is a short string. A quote that begins none of these is one too.
_FLAT = rb'[\[{][^\[\]{}"]{0,128}+(?:' + _STRING + rb'[^\[\]{}"]{0,128}+){0,16}[\]}]'
_FLATS = rb"(?:[ \t\n\r]*+" + _FLAT + rb"[ \t\n\r]*+,){1,32}"
_TOKEN = re.compile(b"|".join((_FLATS, _FLAT, _STRING, rb'[\[\]{},"]')), re.DOTALL)
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*', re.DOTALL)
_STRUCTURE = re.compile(rb'[\[\]{}"]')
_BLANKS = b" \t\n\r"
_QUOTE, _COMMA, _BRACKET = b'",['
_NOT_PLAIN = b'[]{}", \t\n\r'
_CLOSING = {"[": b"]", "{": b"}"}


class InvalidJson(Exception):
    """The text is not JSON; says what is wrong and at which byte."""

    def __init__(self, what: str, at_bytes: int) -> None:
        super().__init__(f"{what} (byte {at_bytes})")


class NestedTooDeep(Exception):
    """Containers nest deeper than is allowed."""


@define
class _Open:
    """A container that is not closed yet; `value` is None until a run has ended in it."""

    kind: str
    # Behind its bracket, behind its last comma, behind what `value` holds.
    begin: int
    element: int
    done: int
    value: Any = None
    key: str = ""
    # Whether its last element was put together from runs; whether another must follow, since a comma was taken.
    has_child: bool = False
    owes: bool = False


def parse_in_pieces(data: bytes, max_depth: int, piece_bytes: int = PIECE_BYTES) -> object:
    """Return the value of a JSON text; raises InvalidJson, or NestedTooDeep."""
    return _Reader(data, max_depth, piece_bytes).read()


class _Reader:
    """One text; what is left of `_taken` was given to orjson."""

    def __init__(self, data: bytes, max_depth: int, piece_bytes: int) -> None:
        self._data = data
        self._max_depth = max_depth
        self._piece_bytes = piece_bytes
        self._stack: list[_Open] = []
        self._root: Any = None
        self._taken = 0

    def read(self) -> object:
        """Return the value."""
        begin: int | None = 0
        while begin is not None:
            begin = self._scan(begin)
        if self._stack:
            raise InvalidJson("unexpected end of data", len(self._data))
        return self._parsed(b"", 0, len(self._data), b"") if self._root is None else self._root

    def _scan(self, begin: int) -> int | None:
        """Go through the tokens from `begin`, giving where to go on behind what was skipped, None at the end."""
        data, stack = self._data, self._stack
        for match in _TOKEN.finditer(data, begin):
            at, end = match.span()
            first, last = data[at], data[end - 1]
            if end - at > 1 and first != _QUOTE and len(stack) == self._max_depth:
                raise NestedTooDeep
            if last == _COMMA:
                if not stack:
                    raise InvalidJson("unexpected character", at)
                top = stack[-1]
                if top.has_child or end - self._taken > self._piece_bytes:
                    self._take(top, end - 1, is_last=False)
                top.element = end
                if top.kind == "[" and (after := self._skip_plain(top)) is not None:
                    return after
            elif end - at > 1:  # a string or a flat container: the comma or bracket behind it counts
                continue
            elif first in b"[{":
                if len(stack) == self._max_depth:
                    raise NestedTooDeep
                stack.append(_Open(chr(first), end, end, end))
                if first == _BRACKET and (after := self._skip_plain(stack[-1])) is not None:
                    return after
            elif first in b"]}" and stack:
                if self._close(at):
                    return None
            elif first == _QUOTE:
                return self._string_end(end)
            else:
                raise InvalidJson("unexpected character", at)
        return None

    def _string_end(self, begin: int) -> int:
        """Return where a long string ends that began before `begin`."""
        while True:
            end = _IN_STRING.match(self._data, begin, begin + self._piece_bytes).end()  # type: ignore[union-attr]
            if self._data[end : end + 1] == b'"':
                return end + 1
            if end == begin:
                raise InvalidJson("unterminated string", begin)
            begin = end

    def _skip_plain(self, top: _Open) -> int | None:
        """Go over an array's next numbers and names, a piece at a time; gives where the last of their commas ends."""
        data, begin = self._data, top.element
        while top.element < len(data) and data[top.element] not in _NOT_PLAIN:
            end = top.element + self._piece_bytes
            found = _STRUCTURE.search(data, top.element, end)
            cut = data.rfind(b",", top.element, found.start() if found else end)
            if cut < 0:
                break
            if cut + 1 - self._taken > self._piece_bytes:
                self._take(top, cut, is_last=False)
            top.element = cut + 1
            if found:
                break
        return None if top.element == begin else top.element

    def _close(self, at: int) -> bool:
        """End the innermost container; says whether it was the whole text's and had been read in runs."""
        top = self._stack.pop()
        if top.value is None:
            return False
        if self._data[at : at + 1] != _CLOSING[top.kind]:
            raise InvalidJson("unexpected character", at)
        self._take(top, at, is_last=True)
        if not self._stack:
            self._root = top.value
            if self._data[at + 1 :].strip(_BLANKS):
                raise InvalidJson("unexpected content after document", at + 1)
            return True
        outer = self._stack[-1]
        if outer.kind == "[":
            outer.value.append(top.value)
        else:
            outer.value[top.key] = top.value
        outer.done, outer.has_child, outer.owes = at + 1, True, False
        return False

    def _take(self, top: _Open, at: int, *, is_last: bool) -> None:
        """Move what lies between the elements that `top` has and `at`, a comma or the end, into its value."""
        if top.value is None:
            self._put_together()
        if top.has_child:
            if self._data[top.done : at].strip(_BLANKS):
                raise InvalidJson("unexpected character", top.done)
        else:
            part = self._parsed(top.kind.encode(), top.done, at, _CLOSING[top.kind])
            if not part and (top.owes or not is_last):
                raise InvalidJson("unexpected character", at)
            if top.kind == "[":
                top.value.extend(part)
            else:
                top.value.update(part)
        top.has_child, top.owes, top.done, self._taken = False, not is_last, at + 1, at + 1

    def _put_together(self) -> None:
        """Give every open container its value so far, from the outermost in, and a place in the one around it."""
        outer: _Open | None = None
        for one in self._stack:
            if one.value is None:
                one.value = [] if one.kind == "[" else {}
                if outer is None:
                    if self._data[: one.begin - 1].strip(_BLANKS):
                        raise InvalidJson("unexpected character", 0)
                else:
                    self._place(outer, one)
            outer = one

    def _place(self, outer: _Open, inner: _Open) -> None:
        if outer.has_child:
            raise InvalidJson("unexpected character", inner.begin - 1)
        if outer.element > outer.done:
            self._take(outer, outer.element - 1, is_last=False)
        # An empty container in place of the inner one: a key before it in an object, nothing before it in an array.
        lead = self._parsed(outer.kind.encode(), outer.element, inner.begin - 1, b"{}" + _CLOSING[outer.kind])
        if outer.kind == "{":
            (inner.key,) = lead

    def _parsed(self, before: bytes, begin: int, end: int, after: bytes) -> Any:
        try:
            return orjson.loads(b"".join((before, memoryview(self._data)[begin:end], after)))
        except orjson.JSONDecodeError as error:
            raise InvalidJson(error.msg, begin + max(error.pos - len(before), 0)) from None


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


def write_in_pieces(value: object, num_items: int = PIECE_ITEMS) -> Iterator[bytes]:
    """Yield the JSON text of `value` in parts of about num_items items each; joined, it is what orjson writes."""
    return _written(value, num_items, WRITTEN_LEVELS)


def _written(value: object, num_items: int, levels: int) -> Iterator[bytes]:
    if levels and isinstance(value, dict) and any(isinstance(item, list | tuple | dict) for item in value.values()):
        lead = b"{"
        for key, item in value.items():
            yield lead + orjson.dumps(key) + b":"
            yield from _written(item, num_items, levels - 1)
            lead = b","
        yield b"}"
    elif levels and isinstance(value, list | tuple) and value:
        yield from _written_list(value, num_items, levels)
    else:
        yield orjson.dumps(value)


def _written_list(value: "list[Any] | tuple[Any, ...]", num_items: int, levels: int) -> Iterator[bytes]:
    are_containers = isinstance(value[0], list | tuple | dict)
    lead = b"["
    if are_containers and len(value) <= NUM_LOOKED_INTO:
        for item in value:
            yield lead
            yield from _written(item, num_items, levels - 1)
            lead = b","
    else:
        size = max(1, num_items // NUM_LOOKED_INTO) if are_containers else num_items
        for at in range(0, len(value), size):
            yield lead + orjson.dumps(value[at : at + size])[1:-1]
            lead = b","
    yield b"]"
