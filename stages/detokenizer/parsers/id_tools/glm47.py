"""Tool calls of GLM-4.7 to 5.3, read by token id and streamed as JSON. Core.

    <tool_call> name  ( <arg_key> key </arg_key>  <arg_value> value </arg_value> )*  </tool_call>

Theory of operation. The tags move a small automaton (TRANSITIONS); what stands between them is text of the part it is
in, and text between two parts, newlines above all, is nothing. A name is sent when the tag after it arrives. A value
whose schema allows strings alone is sent as it comes, escaped; any other waits for its end, because only then its type
is known, and goes out whole.

What models get wrong is mended where the meaning is clear: a missing `<arg_value>` or `</arg_value>`, a call begun
before the last one was closed. A call cut off by the end of generation stays as far as it came.

# Invariant: the argument pieces of a call that was closed join to one JSON object.
"""

import json
from collections.abc import Callable
from enum import Enum
from typing import ClassVar

from attrs import define, field

from stages.detokenizer.parsers.arguments import argument_json, json_characters
from stages.detokenizer.parsers.port import TagIds, ToolParser
from stages.detokenizer.parsers.schema import STRING, Kinds, parameter_kinds
from stages.detokenizer.utf8 import Utf8
from stages.messages import Tool, ToolCallDelta

CALL, END_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"


class Part(Enum):
    """Where in a call the next token stands."""

    OUTSIDE = "outside"
    NAME = "name"
    KEY = "key"
    GAP = "gap between key and value"
    VALUE = "value"
    REST = "after a value"


@define(eq=False)
class Glm47ToolCalls:
    """One choice's calls; index counts the ones sent so far."""

    _tags: dict[int, str]
    _tools: dict[str, Tool]
    part: Part = Part.OUTSIDE
    index: int = -1
    _text: bytearray = field(factory=bytearray, init=False)
    _name: str = field(default="", init=False)
    _key: str = field(default="", init=False)
    _kinds: Kinds | None = field(default=None, init=False)
    _value: Utf8 = field(factory=Utf8, init=False)
    _num_arguments: int = field(default=0, init=False)
    _sent: list[ToolCallDelta] = field(factory=list, init=False)

    @property
    def active(self) -> bool:
        """Whether the next token belongs to a call."""
        return self.part is not Part.OUTSIDE

    def take(self, token_id: int, piece: bytes) -> tuple[ToolCallDelta, ...] | None:
        """Move over one id with its bytes, giving what it adds to a call; None outside of calls."""
        tag = self._tags.get(token_id)
        if tag is not None and (self.part, tag) in self.TRANSITIONS:
            actions, self.part = self.TRANSITIONS[self.part, tag]
            for action in actions:
                action(self)
        elif self.part is Part.OUTSIDE:
            return None
        else:
            self._take_text(piece)
        sent = tuple(self._sent)
        self._sent.clear()
        return sent

    def _take_text(self, piece: bytes) -> None:
        if self.part is Part.GAP and piece.strip():
            self._begin_value()
            self.part = Part.VALUE
            piece = piece.lstrip()
        if self.part is Part.VALUE and self._kinds == STRING:
            self._send(json_characters(self._value.push(piece)))
        elif self.part in (Part.NAME, Part.KEY, Part.VALUE):
            self._text += piece

    def _taken(self) -> str:
        text = self._text.decode("utf-8", "replace")
        self._text.clear()
        return text

    def _begin_call(self) -> None:
        self._text.clear()
        self._num_arguments = 0

    def _send_name(self) -> None:
        self._name = self._taken().strip()
        if self._name:
            self.index += 1
            self._sent.append(ToolCallDelta(self.index, name=self._name))

    def _end_key(self) -> None:
        self._key = self._taken().strip()

    def _begin_value(self) -> None:
        tool = self._tools.get(self._name)
        self._kinds = parameter_kinds(tool.parameters, self._key) if tool is not None else None
        if self._kinds == STRING:
            self._send(self._lead() + '"')

    def _end_value(self) -> None:
        if self._kinds == STRING:
            self._send(json_characters(self._value.flush()) + '"')
        else:
            self._send(self._lead() + argument_json(self._taken(), self._kinds))
        self._num_arguments += 1

    def _lead(self) -> str:
        key = json.dumps(self._key, ensure_ascii=False)
        return ("{" if self._num_arguments == 0 else ", ") + key + ": "

    def _end_call(self) -> None:
        self._text.clear()
        self._send("}" if self._num_arguments else "{}")
        self._name = ""

    def _send(self, arguments: str) -> None:
        # A call without a name cannot be sent: nobody could answer it.
        if self._name and arguments:
            self._sent.append(ToolCallDelta(self.index, arguments=arguments))

    # (part, tag) -> (what is done, next part); a pair that is not here is text of the part.
    TRANSITIONS: ClassVar[dict[tuple[Part, str], tuple[tuple[Callable[["Glm47ToolCalls"], None], ...], Part]]] = {
        (Part.OUTSIDE, CALL): ((_begin_call,), Part.NAME),
        (Part.NAME, CALL): ((_begin_call,), Part.NAME),
        (Part.NAME, KEY): ((_send_name,), Part.KEY),
        (Part.NAME, END_CALL): ((_send_name, _end_call), Part.OUTSIDE),
        (Part.KEY, END_KEY): ((_end_key,), Part.GAP),
        (Part.KEY, VALUE): ((_end_key, _begin_value), Part.VALUE),
        (Part.KEY, END_CALL): ((_end_call,), Part.OUTSIDE),
        (Part.GAP, VALUE): ((_begin_value,), Part.VALUE),
        (Part.GAP, END_VALUE): ((_begin_value, _end_value), Part.REST),
        (Part.GAP, END_CALL): ((_end_call,), Part.OUTSIDE),
        (Part.VALUE, END_VALUE): ((_end_value,), Part.REST),
        (Part.VALUE, END_CALL): ((_end_value, _end_call), Part.OUTSIDE),
        (Part.REST, KEY): ((), Part.KEY),
        (Part.REST, CALL): ((_end_call, _begin_call), Part.NAME),
        (Part.REST, END_CALL): ((_end_call,), Part.OUTSIDE),
    }


def _make(tags: TagIds, tools: tuple[Tool, ...]) -> Glm47ToolCalls:
    return Glm47ToolCalls({token_id: tag for tag, token_id in tags.items()}, {tool.name: tool for tool in tools})


PARSER = ToolParser("glm47", (CALL, END_CALL, KEY, END_KEY, VALUE, END_VALUE), _make)
