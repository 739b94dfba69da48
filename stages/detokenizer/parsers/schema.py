"""Which JSON types a tool's schema lets a parameter have. Core."""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field

Kinds = frozenset[str]

KINDS: Kinds = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})
STRING: Kinds = frozenset({"string"})
MAX_DEPTH = 16

IMPLIED = {"properties": "object", "additionalProperties": "object", "items": "array", "prefixItems": "array"}


@define(eq=False)
class _Reading:
    """One reading of a schema: a part that is referred to again and again is looked at once at each depth."""

    root: Mapping[str, Any]
    # By a part's identity, which its schema keeps, and depth.
    kinds: "dict[tuple[int, int], Kinds | None]" = field(factory=dict)
    searched: set[tuple[int, int]] = field(factory=set)


def parameter_kinds(parameters: Mapping[str, Any] | None, key: str) -> Kinds | None:
    """Return the types a parameter may have, or None when the schema leaves it open or does not name it.

    A schema made of alternatives allows what any of them does.
    """
    if parameters is None:
        return None
    reading = _Reading(parameters)
    found = [_kinds(schema, reading, MAX_DEPTH) for schema in _declarations(parameters, reading, key, MAX_DEPTH)]
    if not found or any(kinds is None for kinds in found):
        return None
    return frozenset().union(*(kinds for kinds in found if kinds is not None))


def kind_of(value: object) -> str:
    """Return the JSON type of a Python value."""
    if isinstance(value, bool):
        return "boolean"
    for kind, types in (
        ("string", str),
        ("integer", int),
        ("number", float),
        ("object", Mapping),
        ("null", type(None)),
    ):
        if isinstance(value, types):
            return kind
    return "array"


def _declarations(schema: Any, reading: _Reading, key: str, depth: int) -> Iterator[Any]:
    """Yield every schema that declares the parameter, through references and alternatives."""
    schema = resolved(schema, reading.root)
    place = id(schema), depth
    if depth == 0 or not isinstance(schema, Mapping) or place in reading.searched:
        return
    reading.searched.add(place)
    properties = schema.get("properties")
    alternatives = [part for word in ("anyOf", "oneOf", "allOf") for part in _list(schema.get(word))]
    declared = [properties[key]] if isinstance(properties, Mapping) and key in properties else []
    declared += [each for part in alternatives for each in _declarations(part, reading, key, depth - 1)]
    if not declared and isinstance(schema.get("additionalProperties"), Mapping):
        declared.append(schema["additionalProperties"])
    yield from declared


def _kinds(schema: Any, reading: _Reading, depth: int) -> Kinds | None:
    schema = resolved(schema, reading.root)
    if depth == 0 or not isinstance(schema, Mapping):
        return None
    place = id(schema), depth
    if place not in reading.kinds:
        reading.kinds[place] = _kinds_here(schema, reading, depth)
    return reading.kinds[place]


def _kinds_here(schema: Mapping[str, Any], reading: _Reading, depth: int) -> Kinds | None:
    limits = [kinds for kinds in _limits(schema, reading, depth) if kinds is not None]
    if not limits:
        return None
    allowed = frozenset.intersection(*limits)
    return allowed | {"null"} if schema.get("nullable") is True else allowed


def _limits(schema: Mapping[str, Any], reading: _Reading, depth: int) -> Iterator[Kinds | None]:
    """Yield what each word of a schema limits the type to; None where it does not."""
    declared = schema.get("type")
    if declared is not None:
        # A reference may lead to where nobody has looked for types that are none.
        names = declared if isinstance(declared, list) else [declared]
        yield frozenset(name for name in names if isinstance(name, str) and name in KINDS) or None
    if "const" in schema:
        yield frozenset({kind_of(schema["const"])})
    if _list(schema.get("enum")):
        yield frozenset(kind_of(value) for value in schema["enum"])
    for word in ("anyOf", "oneOf"):
        if _list(schema.get(word)):
            yield _union([_kinds(part, reading, depth - 1) for part in schema[word]])
    for part in _list(schema.get("allOf")):
        yield _kinds(part, reading, depth - 1)
    if declared is None:
        yield from (frozenset({kind}) for word, kind in IMPLIED.items() if word in schema)


def _union(parts: list[Kinds | None]) -> Kinds | None:
    known = [part for part in parts if part is not None]
    return frozenset().union(*known) if len(known) == len(parts) else None


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Follow local references; one that leads nowhere, or round in a circle, is an open schema."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            return schema
        schema = root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            schema = schema.get(step) if isinstance(schema, Mapping) else None
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
