"""Calls of Kimi K3: elements with attributes, each argument's type among them. Core."""

import re

from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Reader, Steps
from stages.detokenizer.parsers.text_tools import text_tool_parser
from stages.detokenizer.parsers.typed import Arguments
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped
from stages.detokenizer.parsers.xml_calls import checked_name

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
CALL, END_CALL = f"{OPEN}call ", f"{CLOSE}call{SEPARATOR}"
ARGUMENT, END_ARGUMENT = f"{OPEN}argument ", f"{CLOSE}argument{SEPARATOR}"
WRAPPER = Wrapper((f"{OPEN}tools{SEPARATOR}",), (f"{CLOSE}tools{SEPARATOR}",), (CALL,), (END_CALL,))
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')

_AFTER_HEAD, _BETWEEN, _AFTER_VALUE = markers(SEPARATOR), markers(ARGUMENT, END_CALL), markers(END_ARGUMENT)


def _body(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
    head, _ = yield from reader.until(_AFTER_HEAD)
    arguments = Arguments(calls, checked_name(dict(ATTRIBUTE.findall(head)).get("tool", "")))
    while True:
        _, mark = yield from reader.until(_BETWEEN)
        if mark == END_CALL:
            break
        head, _ = yield from reader.until(_AFTER_HEAD)
        value, _ = yield from reader.until(_AFTER_VALUE)
        attributes = dict(ATTRIBUTE.findall(head))
        add = arguments.add_string if attributes.get("type") == "string" else arguments.add_json
        add(attributes.get("key", ""), value)
    arguments.end()


PARSER = text_tool_parser("kimi_k3", (OPEN, CLOSE, SEPARATOR), wrapped(WRAPPER, _body))
