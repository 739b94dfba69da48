"""Calls written as a tag for the call and one for each parameter, values untyped. Core.

name {after name}  ( {parameter} key {after key} value {end of parameter} )*  {end of call}
"""

import html
import re
from collections.abc import Callable

from attrs import frozen

from stages.detokenizer.parsers.calls import Calls, Format
from stages.detokenizer.parsers.json_calls import Body
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Malformed, Reader, Steps, Truncated
from stages.detokenizer.parsers.typed import Arguments
from stages.detokenizer.parsers.wrapped import Wrapper, wrapped

NAME = re.compile(r"[^\s<>{}\"'`]+")


@frozen
class Tags:
    """The texts around a call's names and values, and how a value was written."""

    after_name: str
    parameter: str
    after_key: str
    end_parameter: str
    end_call: str
    read_value: Callable[[str], str] = str.strip


def checked_name(text: str) -> str:
    """Return a tool's name without space and quotes around it; raises Malformed when it is none."""
    name = unquoted(text)
    if not NAME.fullmatch(name):
        raise Malformed
    return name


def unquoted(text: str) -> str:
    """Return text without space and quotes around it."""
    return text.strip().strip("\"'")


def xml_body(tags: Tags) -> Body:
    """Return the body of such a call; a value may lack its end in front of the next parameter or the call's end."""
    after_name, between = markers(tags.after_name, tags.end_call), markers(tags.parameter, tags.end_call)
    after_key, end_call = markers(tags.after_key, tags.end_call), markers(tags.end_call)
    after_value = markers(tags.end_parameter, tags.parameter)

    def read(reader: Reader, calls: Calls, _tag: str) -> Steps[None]:
        name, mark = yield from reader.until(after_name)
        arguments = Arguments(calls, checked_name(name))
        while mark != tags.end_call:
            if mark != tags.parameter:
                _, mark = yield from reader.until(between)
                continue
            key, mark = yield from reader.until(after_key)
            if mark == tags.after_key:
                text, mark = yield from value(reader)
                arguments.add(unquoted(key), tags.read_value(text))
        arguments.end()

    def value(reader: Reader) -> Steps[tuple[str, str]]:
        reader.mark()
        try:
            text, mark = yield from reader.until(after_value)
            if mark == tags.end_parameter or tags.end_call not in text:
                return text, mark
        except Truncated:
            pass
        # The end of the call is part of a value that has an end of its own; of this one it is the end.
        reader.go_back()
        return (yield from reader.until(end_call))

    return read


def decoded(text: str) -> str:
    """Return a value without the space around it, its entities decoded."""
    return html.unescape(text.strip())


QWEN_FUNCTION, QWEN_PARAMETER = "<function=", "<parameter="
QWEN_TAGS = Tags(">", QWEN_PARAMETER, ">", "</parameter>", "</function>", decoded)
QWEN_WRAPPER = Wrapper(("<tool_call>",), ("</tool_call>",), (QWEN_FUNCTION,), (QWEN_TAGS.end_call,))
QWEN_MARKERS = ("<tool_call>", "</tool_call>", QWEN_FUNCTION, "</function>", QWEN_PARAMETER, "</parameter>")


def qwen_calls() -> Format:
    """Return Qwen3-Coder's format, which other models have taken over."""
    return wrapped(QWEN_WRAPPER, xml_body(QWEN_TAGS))
