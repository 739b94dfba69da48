"""Tool calls written as JSON objects, in tags, in lists or bare. Core.

A call is whole when its object is: it is said then, whatever becomes of the tag behind it. Arguments keep the model's
own JSON. An object that is no call, and what is no JSON where a call had to stand, is dropped up to the end's tag.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from attrs import frozen

from stages.detokenizer.parsers.calls import Calls, Format, prose
from stages.detokenizer.parsers.markers import Markers, markers
from stages.detokenizer.parsers.reader import SPACE, Malformed, Reader, Steps, Truncated

Body = Callable[[Reader, Calls, str], Steps[None]]

_SPACES = re.compile(r'("(?:[^"\\]|\\.)*")|\s+', re.DOTALL)
_DECODER = json.JSONDecoder(parse_int=len)


@frozen
class Keys:
    """What a call's object calls its name and its arguments."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")


NAMED = Keys()
MAX_NESTED = 4
# What a bare object begins with that may be a call; any other is shown as it comes.
BARE = re.compile(r'\[?\s*\{\s*"(name|arguments|parameters|type|id|function)"\s*:')
MAX_BARE_LEAD = 64


def compact(json_text: str) -> str:
    """Return JSON without the whitespace between its tokens, every token as it was."""
    return _SPACES.sub(lambda match: match[1] or "", json_text)


def is_json(text: str) -> bool:
    """Say whether text is JSON."""
    try:
        json.loads(text, parse_int=len)
    except (ValueError, RecursionError):
        return False
    return True


def members(text: str) -> dict[str, str]:
    """Return an object's members, each value as its own text; raises Malformed when it is no JSON object."""
    try:
        return dict(_members(text))
    except (ValueError, RecursionError, IndexError):
        raise Malformed from None


def _members(text: str) -> Iterator[tuple[str, str]]:
    at = _past_space(text, 0)
    _need(text[at] == "{")
    at = _past_space(text, at + 1)
    is_first = True
    while text[at] != "}":
        if not is_first:
            _need(text[at] == ",")
            at = _past_space(text, at + 1)
        is_first = False
        key, at = _DECODER.raw_decode(text, at)
        _need(isinstance(key, str))
        at = _past_space(text, at)
        _need(text[at] == ":")
        start = _past_space(text, at + 1)
        _, at = _DECODER.raw_decode(text, start)
        yield key, text[start:at]
        at = _past_space(text, at)
    _need(not text[at + 1 :].strip())


def _past_space(text: str, at: int) -> int:
    while text[at] in SPACE:
        at += 1
    return at


def _need(is_so: bool) -> None:
    if not is_so:
        raise ValueError


def call_of(text: str, keys: Keys = NAMED, depth: int = MAX_NESTED) -> tuple[str, str]:
    """Return the name and the arguments of an object's text; raises Malformed when it is no call.

    Arguments that are absent or null are {}, and a string that holds an object is that object.
    """
    found = members(text)
    if keys.name not in found and "function" in found and depth:
        return call_of(found["function"], keys, depth - 1)
    name = json.loads(found.get(keys.name, "null"))
    if not isinstance(name, str) or not name.strip():
        raise Malformed
    arguments = next((found[key] for key in keys.arguments if key in found), "{}")
    if arguments.startswith('"'):
        arguments = json.loads(arguments).strip() or "{}"
    if arguments == "null":
        arguments = "{}"
    members(arguments)
    return name.strip(), arguments


def json_body(keys: Keys = NAMED, separators: str = ",;") -> Body:
    """Return a body of one object, of several with separators between, or of a list."""

    def read(reader: Reader, calls: Calls, tag: str) -> Steps[None]:
        in_list = tag.endswith("[") or bool((yield from reader.next_is("[")))
        num_objects = 0
        while True:
            reader.mark()
            space = SPACE + separators if num_objects else SPACE
            following = yield from reader.peek(space)
            if following != "{":
                break
            reader.skip(space)
            calls.call(*call_of((yield from reader.json_text()), keys))
            num_objects += 1
        if in_list and (yield from reader.next_is("]", space=SPACE + separators)):
            return
        if in_list or not num_objects:
            raise Malformed if following else Truncated

    return read


def tagged(starts: tuple[str, ...], ends: tuple[str, ...], body: Body, *, is_bare: bool = False) -> Format:
    """Return the format of calls between tags; with is_bare an answer may be such a call without them."""
    ends_of, all_tags = markers(*ends) if ends else None, markers(*starts, *ends)

    def read(reader: Reader, calls: Calls) -> Steps[None]:
        if is_bare:
            yield from bare_call(reader, calls)
        while True:
            tag = yield from prose(reader, calls, all_tags)
            while tag in starts:
                tag = yield from _block(reader, calls, body, tag, ends_of, all_tags)

    return read


def _block(reader: Reader, calls: Calls, body: Body, tag: str, ends: Markers | None, all_tags: Markers) -> Steps[str]:
    """Read what a tag begins, giving the next tag where it follows a broken call, or ""."""
    reader.mark()
    try:
        yield from body(reader, calls, tag)
        if ends is not None:
            yield from reader.close(ends)
    except Malformed:
        return (yield from reader.until(all_tags))[1]
    except Truncated:
        if ends is None or not reader.go_back_past(ends):
            raise
    return ""


def bare_call(reader: Reader, calls: Calls) -> Steps[None]:
    """Read an answer that begins with a call's object, or a list of them; nothing is read of any other.

    Only tools there are may be called so: an answer may well be JSON of its own.
    """
    while not reader.ended and _may_be_bare(reader.text):
        yield
    if not BARE.match(reader.text.lstrip()):
        return
    calls.is_inside = True
    following = "{"
    try:
        while following == "{":
            reader.mark()
            reader.skip(SPACE + ";")
            for name, arguments in _tools_called((yield from reader.json_text()), calls):
                calls.call(name, arguments)
            following = yield from reader.peek(SPACE + ";")
    except (Malformed, Truncated):
        reader.go_back()


def required_calls(reader: Reader, calls: Calls) -> Steps[None]:
    """Read an answer that was held to a JSON list of calls; nothing is read of any other."""
    if (yield from reader.peek(SPACE + "[")) != "{":
        return
    calls.is_inside = True
    with suppress(Malformed):
        yield from json_body()(reader, calls, "")
        return
    reader.go_back()


def _may_be_bare(text: str) -> bool:
    """Say whether more text is needed to tell what an answer begins with."""
    text = text.lstrip()
    return not text or (text[0] in "[{" and len(text) < MAX_BARE_LEAD and ":" not in text)


def _tools_called(text: str, calls: Calls) -> list[tuple[str, str]]:
    """Return the calls of a bare object or list; raises Malformed when one of them is none, or of no tool."""
    found = [call_of(item) for item in items(text)] if text.startswith("[") else [call_of(text)]
    if not found or any(name not in calls.tools for name, _ in found):
        raise Malformed
    return found


def items(text: str) -> list[str]:
    """Return a list's items, each as its own text; raises Malformed when it is no JSON list."""
    try:
        return list(_items(text))
    except (ValueError, RecursionError, IndexError):
        raise Malformed from None


def _items(text: str) -> Iterator[str]:
    at = _past_space(text, _past_space(text, 0) + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield text[at:end]
        at = _past_space(text, end)
        _need(text[at] in ",]")
        if text[at] == ",":
            at = _past_space(text, at + 1)
