"""Wire classes to JSON Schema, as `fields.read` takes them; core.

Every class becomes a component, named after its module, since several dialects have a class of one name. A field that
is not served stays in the schema, marked x-not-served, with the values that ask for nothing as its only ones; one that
needs a flag of the server names it as x-needs-flag.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from attrs import define, field

from stages.ingress.dialect import BodyForm, Values
from stages.ingress.dialects.fields import INT64_MAX, INT64_MIN, UINT64_MAX, Unsigned, flag_name

Schema = dict[str, Any]

NEEDS_FLAG = "x-needs-flag"
COMPONENTS = "#/components/schemas/"
NOT_SERVED = "Not served: refused, unless it asks for nothing."

_PLAIN: Mapping[Any, Schema] = {
    int: {"type": "integer", "minimum": INT64_MIN, "maximum": INT64_MAX},
    Unsigned: {"type": "integer", "minimum": 0, "maximum": UINT64_MAX},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
}
_KINDS: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}


@define(eq=False)
class Schemas:
    """The components of one document; `model_name` is an example of what goes into a field named model."""

    model_name: str
    components: dict[str, Schema] = field(factory=dict)

    def body(self, form: BodyForm) -> Schema:
        """Return a reference to the schema of a body."""
        first = form.classes[0]
        schema = self._object(form.classes, form, form.refused)
        if form.any_of:
            schema["anyOf"] = [{"required": [name]} for name in form.any_of]
        return self.add(_name(first), schema)

    def has_required(self, form: BodyForm) -> bool:
        """Say whether a body of this form has a field that must be there."""
        return bool(form.any_of) or any(_is_required(one) for cls in form.classes for one in attrs.fields(cls))

    def add(self, name: str, schema: Schema) -> Schema:
        """Return a reference to a component of that name."""
        known = self.components.setdefault(name, schema)
        # Invariant: one name is one schema, whichever route it is met under.
        assert known == schema, name
        return {"$ref": COMPONENTS + name}

    def _object(self, classes: Iterable[type], form: BodyForm, refused: Values) -> Schema:
        (first, *_) = classes
        known = {one.name: one for cls in reversed(list(classes)) for one in attrs.fields(cls)}
        properties = {name: self._field(one, form) for name, one in known.items()}
        properties |= {name: _refused(passing) for name, passing in refused.items()}
        schema: Schema = {"type": "object", "description": inspect.cleandoc(first.__doc__ or "").splitlines()[0]}
        schema["properties"] = dict(sorted(properties.items()))
        if required := sorted(name for name, one in known.items() if _is_required(one)):
            schema["required"] = required
        if first in form.closed:
            schema["additionalProperties"] = False
        return schema

    def _field(self, one: Any, form: BodyForm) -> Schema:
        schema = self._type(one.type, one.metadata.get("items"), form)
        if one.name == "model":
            schema["examples"] = [self.model_name]
        if isinstance(one.default, bool | int | float | str):
            schema["default"] = one.default
        if (flag := one.metadata.get("needs")) is not None:
            schema[NEEDS_FLAG] = flag_name(flag)
        keywords: Schema = one.metadata.get("keywords", {})
        return schema | keywords

    def _type(self, type_: Any, items: type | None, form: BodyForm) -> Schema:
        if items is not None and (type_ is Any or type_ == dict[str, Any]):
            type_ = items
        if type_ is Any:
            return {}
        if type_ in _PLAIN:
            return dict(_PLAIN[type_])
        origin, arguments = typing.get_origin(type_), typing.get_args(type_)
        if origin in (typing.Union, types.UnionType):
            return _any_of([self._type(arm, items, form) for arm in arguments])
        if type_ is types.NoneType:
            return {"type": "null"}
        if origin in (list, tuple):
            return {"type": "array", "items": self._type(arguments[0], items, form)}
        if origin is dict:
            return {"type": "object", "additionalProperties": self._type(arguments[1], items, form)}
        return self.add(_name(type_), self._object([type_], form, form.refused_in.get(type_, {})))


def schema_of(values: Iterable[object], data_keyed: frozenset[str] = frozenset()) -> Schema:
    """Return a schema of JSON values, as far as these show one: what every object has is required.

    Objects of several `type`s are told apart by that. Of a field in data_keyed only the kind is told.
    """
    given = list(values)
    objects = [value for value in given if isinstance(value, dict)]
    tags = list(dict.fromkeys(str(value.get("type")) for value in objects))
    if len(tags) > 1 and all(isinstance(value.get("type"), str) for value in objects):
        arms = [_tagged(tag, [one for one in objects if one["type"] == tag], data_keyed) for tag in tags]
        others = [value for value in given if not isinstance(value, dict)]
        return {"anyOf": [*arms, schema_of(others, data_keyed)] if others else arms}
    schema = _kinds_of(given)
    if any(objects):
        names = list(dict.fromkeys(name for value in objects for name in value))
        schema["properties"] = {
            name: (_kinds_of if name in data_keyed else _schema_under(data_keyed))(
                [value[name] for value in objects if name in value]
            )
            for name in names
        }
        schema["required"] = [name for name in names if all(name in value for value in objects)]
    items = [item for value in given if isinstance(value, list) for item in value]
    if items:
        schema["items"] = schema_of(items, data_keyed)
    return schema


def _schema_under(data_keyed: frozenset[str]) -> Callable[[list[object]], Schema]:
    return lambda values: schema_of(values, data_keyed)


def _tagged(tag: str, objects: list[dict[str, Any]], data_keyed: frozenset[str]) -> Schema:
    schema = schema_of(objects, data_keyed)
    schema["properties"]["type"]["enum"] = [tag]
    return schema


def _kinds_of(values: Iterable[object]) -> Schema:
    kinds = {"null" if value is None else _KINDS[type(value)] for value in values}
    if "number" in kinds:
        kinds.discard("integer")
    told = sorted(kinds)
    return {"type": told[0] if len(told) == 1 else told} if told else {}


def _any_of(arms: list[Schema]) -> Schema:
    """Return one schema of several; null goes into the type of a plain one."""
    wanted = [arm for arm in arms if arm != {"type": "null"}]
    if len(wanted) == len(arms):
        return {"anyOf": arms}
    if len(wanted) == 1 and isinstance(kind := wanted[0].get("type"), str):
        return {**wanted[0], "type": [kind, "null"]}
    return {"anyOf": [*wanted, {"type": "null"}]}


def _refused(passing: tuple[object, ...]) -> Schema:
    values = [None, *(value for value in passing if value is not None)]
    return {"enum": values, "description": NOT_SERVED, "x-not-served": True}


def _is_required(one: Any) -> bool:
    return bool(one.default is attrs.NOTHING or one.metadata.get("required"))


def _name(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
