"""A value that was written as text, as compact JSON of a type its tool's schema allows. Core."""

import json

from attrs import define, field

from stages.detokenizer.parsers.arguments import argument_json, json_string
from stages.detokenizer.parsers.calls import Calls
from stages.detokenizer.parsers.json_calls import compact, is_json
from stages.detokenizer.parsers.schema import STRING, Kinds, parameter_kinds


def typed_json(text: str, kinds: Kinds | None) -> str:
    """Return text as compact JSON of one of the kinds; no text is an empty object or list where one must be."""
    if kinds == STRING:
        return json_string(text)
    if not text.strip() and kinds is not None and "string" not in kinds:
        return "[]" if "array" in kinds else "{}" if "object" in kinds else json_string(text)
    return compact(argument_json(text, kinds))


@define(eq=False)
class Arguments:
    """The arguments of one call as they are read; the last of several with one name counts."""

    calls: Calls
    name: str
    _values: dict[str, str] = field(factory=dict, init=False)

    def kinds(self, key: str) -> Kinds | None:
        """Return the types that the tool's schema allows the argument, None for any."""
        tool = self.calls.tools.get(self.name)
        return parameter_kinds(tool.parameters, key) if tool is not None else None

    def add(self, key: str, text: str) -> None:
        """Add an argument as the type its schema says."""
        self._values[key] = typed_json(text, self.kinds(key))

    def add_as_is(self, key: str, json_text: str) -> None:
        """Add an argument that is JSON."""
        self._values[key] = json_text

    def add_string(self, key: str, text: str) -> None:
        """Add an argument that is a string."""
        self._values[key] = json_string(text)

    def add_json(self, key: str, text: str) -> None:
        """Add an argument that was written as JSON; what is none is a string."""
        self._values[key] = compact(text.strip()) if is_json(text) else json_string(text)

    def end(self) -> None:
        """Say the call."""
        pairs = (f"{json.dumps(key, ensure_ascii=False)}:{value}" for key, value in self._values.items())
        self.calls.call(self.name, "{" + ",".join(pairs) + "}")
