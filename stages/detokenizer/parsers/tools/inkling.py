"""Calls of Inkling: a message block whose kind is a tool's JSON; goes with the reasoning parser of that name. Core."""

from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.json_calls import Keys, json_body, tagged
from stages.detokenizer.parsers.markers import markers
from stages.detokenizer.parsers.reader import Reader, Steps
from stages.detokenizer.parsers.text_tools import text_tool_parser

MESSAGE, INVOKE, END = "<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>"

_OBJECT = json_body(Keys("name", ("args", "arguments")))
_AFTER_NAME = markers(INVOKE)


def _body(reader: Reader, calls: Calls, tag: str) -> Steps[None]:
    if tag == MESSAGE:
        # The object says the name again.
        yield from reader.until(_AFTER_NAME)
    yield from _OBJECT(reader, calls, tag)


PARSER = text_tool_parser("inkling", (MESSAGE, INVOKE, END), tagged((MESSAGE, INVOKE), (END,), _body))
