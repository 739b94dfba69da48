"""Types of tool arguments: what a schema allows, and the JSON a value comes to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.parsers.arguments import argument_json, json_characters
from stages.detokenizer.parsers.schema import KINDS, parameter_kinds

text = st.text(st.characters(codec="utf-8"))


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"enum": ["a", 1]}, {"string", "integer"}),
        ({"type": "string", "enum": ["a"]}, {"string"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"anyOf": [{"type": "string"}, {}]}, None),
        ({"oneOf": [{"const": None}, {"type": "number"}]}, {"null", "number"}),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, {"integer"}),
        ({"$ref": "#/$defs/c~1d"}, {"object"}),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": "#/nowhere"}, None),
        ({"items": {}}, {"array"}),
        ({}, None),
        (True, None),
        ({"type": 3}, None),
        ({"type": "text"}, None),
    ],
)
def test_a_schema_says_which_types_a_parameter_may_have(schema: Any, kinds: set[str] | None) -> None:
    root = {
        "properties": {"p": schema},
        "$defs": {"c/d": {"properties": {}}, "loop": {"$ref": "#/$defs/loop"}},
    }
    assert parameter_kinds(root, "p") == kinds


@pytest.mark.parametrize(
    ("parameters", "kinds"),
    [
        (None, None),
        ({}, None),
        ({"properties": {"q": {"type": "string"}}}, None),
        ({"properties": {}, "additionalProperties": {"type": "string"}}, {"string"}),
        ({"properties": {}, "additionalProperties": False}, None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"p": {"type": "string"}}}}}, {"string"}),
        (
            {"anyOf": [{"properties": {"p": {"type": "string"}}}, {"properties": {"p": {"type": "null"}}}]},
            {"string", "null"},
        ),
    ],
)
def test_a_parameter_is_looked_for_wherever_it_may_be_declared(parameters: Any, kinds: set[str] | None) -> None:
    assert parameter_kinds(parameters, "p") == kinds


@pytest.mark.parametrize(
    ("value", "kinds", "expected"),
    [
        ("5", {"integer"}, "5"),
        (' "5" ', {"integer"}, "5"),
        ("5.0", {"integer"}, "5"),
        ("1.5", {"integer"}, "1.5"),
        ("abc", {"integer"}, '"abc"'),
        ("9007199254740993", {"integer"}, "9007199254740993"),
        ("9" * 5000, {"integer"}, "9" * 5000),
        ("1e999", {"integer"}, "1e999"),
        ("1e300", {"integer"}, "1e300"),
        ("3.14159265358979323846", {"number"}, "3.14159265358979323846"),
        ("5", {"number"}, "5"),
        ("true", {"boolean"}, "true"),
        ("True", {"boolean"}, "true"),
        ('"true"', {"boolean"}, "true"),
        ("1", {"boolean"}, "1"),
        ("None", {"null"}, "null"),
        ('{"a": [1, "x\\"y"]}', {"object"}, '{"a": [1, "x\\"y"]}'),
        ("{'a': (1, True)}", {"object"}, '{"a": [1, true]}'),
        ("[1,]", {"array"}, "[1]"),
        ("a, b", {"array"}, '"a, b"'),
        ("{1, 2}", {"array"}, '"{1, 2}"'),
        ("NaN", {"number"}, '"NaN"'),
        ("float", {"number"}, '"float"'),
        ("123", {"string", "integer"}, "123"),
        ("1.5", {"string", "integer"}, '"1.5"'),
        ("null", {"string", "null"}, "null"),
        (" x ", {"string", "null"}, '" x "'),
        ("123", None, "123"),
        ("x y", None, '"x y"'),
        ("", None, '""'),
        ("", {"integer"}, '""'),
        ('"\\d"', {"array"}, '"\\\\d"'),
        ("[" * 100_000, {"array"}, json.dumps("[" * 100_000)),
        ("-" * 9_000 + "1", {"integer"}, json.dumps("-" * 9_000 + "1")),
    ],
)
def test_a_value_becomes_json_of_an_allowed_type(value: str, kinds: set[str] | None, expected: str) -> None:
    assert argument_json(value, None if kinds is None else frozenset(kinds)) == expected


@given(text, st.none() | st.frozensets(st.sampled_from(sorted(KINDS))))
def test_any_text_becomes_valid_json(value: str, kinds: frozenset[str] | None) -> None:
    json.loads(argument_json(value, kinds))


@given(st.recursive(st.none() | st.booleans() | st.integers() | text, lambda inner: st.lists(inner), max_leaves=5))
def test_json_of_an_allowed_type_is_kept_as_it_is(value: Any) -> None:
    written = json.dumps(value, ensure_ascii=False)
    assert argument_json(written, None) == written


@given(text, text)
def test_text_escaped_in_pieces_is_the_text_escaped_whole(one: str, two: str) -> None:
    assert json.loads(f'"{json_characters(one)}{json_characters(two)}"') == one + two


@pytest.mark.parametrize("kind", [{}, [{}], [[]], 3, ["string", {}]])
def test_a_reference_to_what_is_no_type_leaves_the_parameter_open_or_at_the_types_that_are(kind: object) -> None:
    root = {"elsewhere": {"type": kind}, "properties": {"a": {"$ref": "#/elsewhere"}}}
    assert parameter_kinds(root, "a") == (frozenset({"string"}) if kind == ["string", {}] else None)


@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_a_schema_that_refers_to_itself_many_times_is_read_in_no_more_than_its_size(word: str) -> None:
    # Looked at anew each time, these would be 20 ** 16 looks.
    itself = [{"$ref": "#"}] * 20
    assert parameter_kinds({word: itself, "properties": {"a": {"type": "string"}}}, "a") == frozenset({"string"})
    assert parameter_kinds({"properties": {"a": {word: [{"$ref": "#/properties/a"}] * 20}}}, "a") is None
