"""Calls of MiniMax M3: every tag behind a prefix, each parameter a tag of its own name. Core.

An object's members are tags inside of its tag, and a list's items tags named item; the schema tells what is empty.
"""

from collections.abc import Mapping
from typing import Any

from stages.detokenizer.parsers.arguments import json_string
from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps
from stages.detokenizer.parsers.schema import parameter_kinds, resolved
from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.typed import Arguments, typed_json
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import checked_name

PREFIX, ITEM = "]<]minimax[>[", "item"
INVOKE, END_INVOKE = f"{PREFIX}<invoke name=", f"{PREFIX}</invoke>"
WRAPPER = Wrapper((f"{PREFIX}<tool_call>",), (f"{PREFIX}</tool_call>",), (INVOKE,), (END_INVOKE,))
MAX_NESTED = 64

_TAG, _END_TAG = markers(f"{PREFIX}<"), markers(">")

Schema = Mapping[str, Any]


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    name, _ = yield from reader.until(_END_TAG)
    arguments = Arguments(calls, checked_name(name))
    tool = calls.tools.get(arguments.name)
    root = tool.parameters or {} if tool is not None else {}
    while True:
        yield from reader.until(_TAG)
        key, _ = yield from reader.until(_END_TAG)
        if key == "/invoke":
            break
        arguments.add_as_is(key, (yield from _value(reader, key, root, root, MAX_NESTED)))
    arguments.end()


def _value(reader: Reader, key: str, schema: Schema, root: Schema, depth: int) -> Steps[str]:
    """Read an element of an object's schema up to and over its end, giving its JSON."""
    if not depth:
        raise Malformed
    own = _member(schema, key, root)
    found: list[tuple[str, str]] = []
    text = ""
    while True:
        passed, _ = yield from reader.until(_TAG)
        tag, _ = yield from reader.until(_END_TAG)
        text = text if found else passed
        if tag == f"/{key}":
            break
        if tag.startswith("/"):
            raise Malformed
        # A list's items are described as if they were a member of that name.
        inner = {"properties": {ITEM: own["items"]}} if tag == ITEM and "items" in own else own
        found.append((tag, (yield from _value(reader, tag, inner, root, depth - 1))))
    if not found:
        return typed_json(text, parameter_kinds({**root, **schema}, key))
    if all(name == ITEM for name, _ in found):
        return "[" + ",".join(value for _, value in found) + "]"
    return "{" + ",".join(f"{json_string(name)}:{value}" for name, value in found) + "}"


def _member(schema: Schema, key: str, root: Schema) -> Schema:
    properties = schema.get("properties")
    own = resolved(properties.get(key), root) if isinstance(properties, Mapping) else None
    return own if isinstance(own, Mapping) else {}


PARSER = text_tool_parser("minimax_m3", (PREFIX,), wrapped(WRAPPER, _body))
