"""Which JSON schemas are followed, and by which engine. Core.

A schema is followed wholly or refused: an answer that breaks it is worse than none. llguidance follows every keyword
it does not refuse itself; those it cannot follow are named here with their place, before it is asked. xgrammar's masks
cost a tenth, but it passes over what it does not know, so it gets only schemas made of what `_PLAIN` lists, in the
form it reads as the standard does: one type a place, and objects without other keys than those declared.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stages.errors import InvalidRequest

Schema = Mapping[str, Any]

ANY_JSON = "$$ANY$$"
MAX_DEPTH = 56
MAX_ENUM = 10_000
# Beyond these xgrammar compiles for seconds.
MAX_PLAIN_PROPERTIES = 100
MAX_PLAIN_ENUM = 500

# Keywords that no engine here follows.
UNFOLLOWED = frozenset(
    {"not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames"}
    | {"dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"}
    | {"$dynamicRef", "$recursiveRef"}
)
# Keywords that are followed.
FOLLOWED = frozenset(
    {"type", "enum", "const", "$ref", "$defs", "definitions", "allOf", "anyOf", "oneOf"}
    | {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"}
    | {"maxLength", "minLength", "pattern", "format"}
    | {"items", "prefixItems", "additionalItems", "maxItems", "minItems"}
    | {"properties", "required", "additionalProperties", "patternProperties", "maxProperties", "minProperties"}
)
FORMATS = frozenset({"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
# Keywords that hold one schema, a list of them, or schemas by name.
ONE = frozenset({"items", "additionalProperties", "additionalItems"})
MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "$schema", "$comment", "$id", "id", "nullable"}
    | {"readOnly", "writeOnly", "deprecated", "contentEncoding", "contentMediaType"}
)
_PLAIN: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    # With a length it lets raw control characters through, which no JSON string may hold.
    "string": frozenset(),
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_KINDS: Mapping[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float)}


def read_schema(text: str, param: str) -> Schema | bool:
    """Return the schema a text holds, or that of any JSON; raises InvalidRequest naming what is wrong with it."""
    if text == ANY_JSON:
        return {}
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"Failed to compile json grammar: not JSON: {error}", param) from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("Failed to compile json grammar: a schema is an object or a boolean.", param)
    return schema


def followed(schema: Schema | bool, param: str) -> Schema | bool:
    """Return a schema without what says nothing; raises InvalidRequest naming the keyword that cannot be followed."""
    try:
        wrong = next(_unfollowed(schema, "#", 0), None)
        cleaned: Schema | bool = _cleaned(schema)
    except RecursionError:
        wrong = "#: it is nested too deeply"
    if wrong is not None:
        raise InvalidRequest(f"Failed to compile json grammar: {wrong}", param)
    return cleaned


def resolved(schema: Any, root: Schema) -> Any:
    """Return what a schema's references lead to in `root`, one after another, or the last that leads nowhere."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        target: Any = root
        for name in schema["$ref"].removeprefix("#").strip("/").split("/"):
            target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if target is None:
            break
        schema = target
    return schema


def is_plain(schema: Schema | bool) -> bool:
    """Return whether xgrammar follows a schema wholly."""
    return isinstance(schema, Mapping) and _is_plain(schema)


def _unfollowed(schema: Any, path: str, depth: int) -> Iterator[str]:
    """Yield what cannot be followed in a schema and where."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield f"{path}: a schema is an object or a boolean"
        return
    if depth > MAX_DEPTH:
        yield f"{path}: schemas are followed {MAX_DEPTH} levels deep"
        return
    for keyword, value in schema.items():
        place = f"{path}/{keyword}"
        if keyword in UNFOLLOWED and not _says_nothing(keyword, value):
            yield f"{place}: the keyword {keyword} is not supported"
        elif keyword in NAMED and isinstance(value, Mapping):
            for name, each in value.items():
                yield from _unfollowed(each, f"{place}/{name}", depth + 1)
        elif keyword in MANY and isinstance(value, list):
            for index, each in enumerate(value):
                yield from _unfollowed(each, f"{place}/{index}", depth + 1)
        elif keyword in ONE:
            yield from _unfollowed(value, place, depth + 1)
    yield from _wrong_values(schema, path)


def _wrong_values(schema: Schema, path: str) -> Iterator[str]:
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        yield f"{path}/$ref: only references within the schema are followed, not {reference!r}"
    yield from _wrong_shapes(schema, path)
    form = schema.get("format")
    if isinstance(form, str) and form not in FORMATS and _may_be_string(schema):
        yield f"{path}/format: the format {form!r} is not supported; there are {', '.join(sorted(FORMATS))}"
    values = schema.get("enum", [None])
    if not isinstance(values, list) or not 0 < len(values) <= MAX_ENUM:
        yield f"{path}/enum: it must be a list of 1 to {MAX_ENUM} values"
    # A key may come twice, and then counts once for whoever reads the answer.
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    least = schema.get("minProperties", 0)
    if not is_closed and isinstance(least, int | float) and least > 1:
        yield f"{path}/minProperties: more than 1 is not supported where additionalProperties is not false"


def _wrong_shapes(schema: Schema, path: str) -> Iterator[str]:
    """Yield keywords whose value is not of the kind that is read further on: an engine may fall over them."""
    for keyword in ("allOf", "anyOf", "oneOf"):
        if not isinstance(schema.get(keyword, []), list):
            yield f"{path}/{keyword}: it must be a list of schemas"
    names = schema.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield f"{path}/required: it must be a list of strings"
    if not isinstance(schema.get("format", ""), str):
        yield f"{path}/format: it must be a string"


def _says_nothing(keyword: str, value: Any) -> bool:
    if keyword in ("uniqueItems",):
        return value is False
    return keyword in ("unevaluatedProperties", "unevaluatedItems", "propertyNames") and value in (True, {})


def _may_be_string(schema: Schema) -> bool:
    kinds = schema.get("type", "string")
    return "string" in kinds if isinstance(kinds, str | list) else True


def _cleaned(schema: Any) -> Any:
    """Return a schema without keywords that ask for nothing: those of other types, and the engine's own options."""
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in UNFOLLOWED or keyword == "x-guidance":
            continue
        if keyword == "format" and not _may_be_string(schema):
            continue
        if keyword in NAMED and isinstance(value, Mapping):
            result[keyword] = {name: _cleaned(each) for name, each in value.items()}
        elif keyword in MANY and isinstance(value, list):
            result[keyword] = [_cleaned(each) for each in value]
        elif keyword in ONE:
            result[keyword] = _cleaned(value)
        else:
            result[keyword] = value
    return result


def _is_plain(schema: Any, *, is_root: bool = True) -> bool:
    if not isinstance(schema, Mapping):
        return False
    asked = {keyword for keyword in schema if keyword not in ANNOTATIONS}
    if is_root:
        definitions = [each for name in ("$defs", "definitions") for each in _values(schema.get(name))]
        if not all(_is_plain(each, is_root=False) for each in definitions):
            return False
        asked -= {"$defs", "definitions"}
    if "$id" in schema or "id" in schema:
        return False
    if asked == {"$ref"}:
        return str(schema["$ref"]).startswith(("#/$defs/", "#/definitions/"))
    if asked == {"anyOf"}:
        return bool(schema["anyOf"]) and all(_is_plain(each, is_root=False) for each in schema["anyOf"])
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _PLAIN:
        return False
    asked.discard("type")
    if asked in ({"enum"}, {"const"}):
        return _are_of(kind, schema.get("enum", [schema.get("const")]))
    return asked <= _PLAIN[kind] and _has_plain_parts(kind, schema)


def _has_plain_parts(kind: str, schema: Schema) -> bool:
    if kind == "object":
        properties = schema.get("properties", {})
        return (
            schema.get("additionalProperties") is False
            and isinstance(properties, Mapping)
            and len(properties) <= MAX_PLAIN_PROPERTIES
            and set(schema.get("required", ())) <= set(properties)
            and all(_is_plain(each, is_root=False) for each in properties.values())
        )
    if kind == "array":
        return _is_plain(schema.get("items"), is_root=False)
    bounds = [schema[keyword] for keyword in _PLAIN[kind] if keyword in schema]
    return all(type(bound) is int and abs(bound) < 2**53 for bound in bounds)


def _are_of(kind: str, values: Any) -> bool:
    types = _KINDS.get(kind)
    if types is None or not isinstance(values, list) or len(values) > MAX_PLAIN_ENUM:
        return False
    return all(isinstance(value, types) and not isinstance(value, bool) for value in values)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else []
