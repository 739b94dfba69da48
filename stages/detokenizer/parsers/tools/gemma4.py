"""Calls of Gemma 4: an object with bare keys and strings in a quote of their own. Core."""

import re
from collections.abc import Sequence

from stages.detokenizer.parsers.arguments import json_string
from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.json_calls import compact, is_json, tagged
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps
from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.xml_calls import checked_name

CALL, END_CALL, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
TOKEN = re.compile(
    r'<\|"\|>(?P<string>.*?)<\|"\|>|(?P<mark>[{}\[\]:,])|(?P<bare>(?:(?!<\|"\|>)[^{}\[\]:,])+)', re.DOTALL
)
MAX_NESTED = 64

_HEAD, _INSIDE = markers("{", END_CALL), markers(QUOTE, "{", "}")


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    head, mark = yield from reader.until(_HEAD)
    if mark == END_CALL:
        reader.unread(mark)
        raise Malformed
    name = checked_name(head.strip().removeprefix("call:"))
    parts, depth, in_string = ["{"], 1, False
    while depth:
        text, mark = yield from reader.until(_INSIDE)
        parts += (text, mark)
        if mark == QUOTE:
            in_string = not in_string
        elif not in_string:
            depth += 1 if mark == "{" else -1
    tokens = [match for match in TOKEN.finditer("".join(parts)) if match[0].strip()]
    try:
        calls.call(name, _value(tokens, 0, MAX_NESTED)[0])
    except IndexError:
        raise Malformed from None


def _value(tokens: Sequence[re.Match[str]], at: int, depth: int) -> tuple[str, int]:
    """Return the JSON of the value that begins at a token, and where the next begins."""
    token = tokens[at]
    if depth == 0 or token[0] in "}]:,":
        raise Malformed
    if token["mark"] is None:
        return _scalar(token), at + 1
    closing, is_object = ("}", True) if token[0] == "{" else ("]", False)
    found: list[str] = []
    at += 1
    while tokens[at][0] != closing:
        if tokens[at][0] == ",":
            at += 1
            continue
        key = ""
        if is_object:
            if tokens[at]["mark"] is not None or tokens[at + 1][0] != ":":
                raise Malformed
            key = json_string(_text(tokens[at])) + ":"
            at += 2
        value, at = _value(tokens, at, depth - 1)
        found.append(key + value)
    return token[0] + ",".join(found) + closing, at + 1


def _text(token: re.Match[str]) -> str:
    return token["bare"].strip() if token["string"] is None else token["string"]


def _scalar(token: re.Match[str]) -> str:
    text = _text(token)
    return compact(text) if token["string"] is None and is_json(text) else json_string(text)


PARSER = text_tool_parser("gemma4", (CALL, END_CALL, QUOTE), tagged((CALL,), (END_CALL,), _body))
