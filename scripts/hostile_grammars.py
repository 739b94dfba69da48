"""Grammars that someone might send to hurt a server, by name: the field, its text, and the beginning of an answer."""

import json
from typing import Any

CLOSED = {"additionalProperties": False}


def _nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


def _properties(count: int, **extra: Any) -> str:
    properties = {f"property_{n}": {"type": "string"} for n in range(count)}
    return json.dumps({"type": "object", "properties": properties, **extra})


def _tag(pattern: str) -> str:
    return json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": pattern}})


def _rules(count: int) -> str:
    chain = "".join(f'r{n} ::= "a" r{n + 1} | "b"\n' for n in range(count))
    return f'root ::= r0\n{chain}r{count} ::= "c"'


_ANY_OF = [{"anyOf": [{"minimum": n + k} for n in range(4)]} for k in range(12)]
_CIRCLE = '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}'
_SELF = '{"type":"array","items":{"$ref":"#"},"minItems":1}'
_TREE = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3}},
    "required": ["value"],
    **CLOSED,
}

HOSTILE: dict[str, tuple[str, str, str]] = {
    "a plain schema": ("json_schema", '{"type": "array", "items": {"type": "integer"}}', "[1, 2, 3"),
    "schema nested 50 deep": ("json_schema", _nested(50), "[" * 40),
    "schema nested 400 deep": ("json_schema", _nested(400), ""),
    "schema nested 100,000 deep": ("json_schema", _nested(100_000), ""),
    "1,000 optional properties": ("json_schema", _properties(1000), '{"property_1": "a", "property_5'),
    "1,000 closed optional properties": ("json_schema", _properties(1000, **CLOSED), '{"property_1'),
    "schema of 0.9 MB": ("json_schema", _properties(20_000), '{"property_1'),
    "schema of 2 MB": ("json_schema", _properties(45_000), ""),
    "enum of 9,000": ("json_schema", json.dumps({"enum": [f"value {n}" for n in range(9000)]}), '"value 1'),
    "enum of 100,000": ("json_schema", json.dumps({"enum": list(range(100_000))}), ""),
    "$ref to itself": ("json_schema", '{"$ref": "#"}', ""),
    "$refs in a circle": ("json_schema", _CIRCLE, ""),
    "arrays of themselves, none empty": ("json_schema", _SELF, "[" * 200),
    "recursive schema": ("json_schema", json.dumps(_TREE), '{"value": 1, "children": [' * 20),
    "allOf of 12 anyOf of 4": ("json_schema", json.dumps({"allOf": _ANY_OF}), "1234"),
    "minLength 1,000,000": ("json_schema", '{"type":"string","minLength":1000000,"pattern":"a"}', '"abab'),
    "regex a{1,100} four times over": ("regex", "(((a{1,100}){1,100}){1,100}){1,100}", "a" * 200),
    "regex (.{0,5000}[a-z]){3}": ("regex", "(.{0,5000}[a-z]){3}", "ab" * 100),
    "regex ([a-z]+ ?)*\\.": ("regex", r"([a-z]+ ?)*\.", "ab " * 200),
    "regex (a*)*b": ("regex", "(a*)*b", "a" * 400),
    "regex (a|aa)+$ with look-ahead": ("regex", "(?=a)(a|aa)+$", ""),
    "regex of 50,000 words": ("regex", "|".join(f"word{n}x" for n in range(50_000)), "word1"),
    "EBNF a{1,100} five times over": (
        "ebnf",
        'root ::= ((((("a"{1,100}){1,100}){1,100}){1,100}){1,100})',
        "a" * 200,
    ),
    "EBNF of nested stars": ("ebnf", 'root ::= ((("a"* "b"?)* "c"?)* "d"?)* "."', "abacad" * 40),
    "EBNF ([a-z]+ ' '?)* '.'": ("ebnf", 'root ::= ([a-z]+ " "?)* "."', "ab " * 200),
    "EBNF that calls itself first": ("ebnf", 'root ::= root root | "a"', "a" * 200),
    "EBNF of 5,000 rules": ("ebnf", _rules(5000), "a" * 100),
    "structural tag with a slow regex": ("structural_tag", _tag(r"([a-z]+ ?)*\."), "ab " * 200),
    "structural tag with a{1,100} four times over": (
        "structural_tag",
        _tag("(((a{1,100}){1,100}){1,100}){1,100}"),
        "a" * 200,
    ),
}
