"""Which schemas are followed, by whom, and what the others are told."""

import json
from contextlib import suppress
from typing import Any

import pytest

from stages.errors import InvalidRequest
from stages.grammar.schemas import FOLLOWED, UNFOLLOWED, followed, is_plain, read_schema
from stages.grammar.sources import constraint_source
from stages.messages import TextGrammar, Tool, ToolGrammar
from tests.stages.grammar.small import accepts, engines

CLOSED = {"additionalProperties": False}


def source_of(schema: Any, **options: Any) -> Any:
    return constraint_source(TextGrammar("json_schema", json.dumps(schema), **options), engines().tokens)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"not": {}}, "#/not: the keyword not is not supported"),
        ({"properties": {"a": {"items": {"if": {}}}}}, "#/properties/a/items/if: the keyword if is not supported"),
        ({"anyOf": [{}, {"uniqueItems": True}]}, "#/anyOf/1/uniqueItems"),
        ({"$defs": {"x": {"contains": {}}}}, "#/$defs/x/contains"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"$ref": "https://example.com/s.json"}, "only references within the schema are followed"),
        ({"$ref": 3}, "only references within the schema are followed"),
        ({"type": "string", "format": "regex"}, "#/format: the format 'regex' is not supported; there are date, "),
        ({"format": "colour"}, "the format 'colour' is not supported"),
        ({"enum": []}, "#/enum: it must be a list of 1 to 10000 values"),
        ({"enum": list(range(10_001))}, "#/enum"),
        ({"properties": {"a": 3}}, "#/properties/a: a schema is an object or a boolean"),
        ({"anyOf": True}, "#/anyOf: it must be a list of schemas"),
        ({"items": {"oneOf": {"a": 1}}}, "#/items/oneOf: it must be a list of schemas"),
        ({"allOf": 5}, "#/allOf: it must be a list of schemas"),
        ({"type": "object", "required": None, **CLOSED}, "#/required: it must be a list of strings"),
        ({"type": "object", "required": [{}], **CLOSED}, "#/required: it must be a list of strings"),
        ({"type": "object", "required": [1, [2]], **CLOSED}, "#/required: it must be a list of strings"),
        ({"type": "string", "format": []}, "#/format: it must be a string"),
        ({"format": {}}, "#/format: it must be a string"),
        (False, "the schema false allows nothing"),
        ({"minProperties": 2}, "#/minProperties: more than 1 is not supported"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_keyword_and_place(schema: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        source_of(schema)
    assert caught.value.message.startswith("Failed to compile json grammar: ")
    assert told in caught.value.message
    assert caught.value.param == "json_schema"


JUNK: list[Any] = [None, True, 0, 1.5, "", "x", [], {}, [None], [[]], [{}], ["x"], {"a": None}, {"a": []}, {"": {}}]


@pytest.mark.parametrize("keyword", sorted(FOLLOWED | UNFOLLOWED))
@pytest.mark.parametrize("kind", ["object", "string", "array", "integer", None])
def test_a_schema_is_read_or_refused_whatever_a_keyword_is_given(keyword: str, kind: str | None) -> None:
    for value in JUNK:
        schema = {"type": kind, **CLOSED, keyword: value} if kind else {keyword: value}
        for whole in (schema, {"anyOf": [schema, {"type": "null"}]}, {"type": "object", "properties": {"a": schema}}):
            with suppress(InvalidRequest):
                source_of(whole)
            loose = Tool("f", {"name": "f"}, {"type": "object", "properties": {"a": whole}})
            constraint_source(ToolGrammar((loose,), True, ("f",)), engines().tokens)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "3"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Failed to compile json grammar"):
        read_schema(text, "json_schema")


def test_a_schema_deeper_than_any_is_refused_and_not_a_crash() -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest, match="levels deep"):
        followed(schema, "json_schema")
    with pytest.raises(InvalidRequest, match="not JSON"):
        read_schema('{"items":' * 100_000 + "{}" + "}" * 100_000, "json_schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": False},
        {"unevaluatedProperties": True},
        {"type": "integer", "format": "int32"},
        {"x-order": 3, "title": "t", "default": 3},
        {"minProperties": 2, "additionalProperties": False},
    ],
)
def test_what_asks_for_nothing_is_passed_over(schema: Any) -> None:
    cleaned = followed(schema, "json_schema")
    assert isinstance(cleaned, dict)
    assert not {"uniqueItems", "unevaluatedProperties", "format"} & set(cleaned)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], **CLOSED},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 3},
        {"anyOf": [{"type": "null"}, {"type": "string"}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, **CLOSED}}},
        {"type": "string", "enum": ["a", "b"], "description": "d"},
    ],
)
def test_a_schema_of_plain_parts_goes_to_the_quick_engine(schema: Any) -> None:
    assert is_plain(schema)
    assert source_of(schema).engine == "xgrammar"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"maxLength": 3},
        {"type": "string", "pattern": "a"},
        {"type": "string", "maxLength": 3},
        {"type": "string", "format": "date"},
        {"type": "number", "minimum": 1.5},
        {"type": "integer", "multipleOf": 3},
        {"type": "string", "enum": ["a", 1]},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}], "type": "string"},
        {"allOf": [{"type": "string"}]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {}, "required": ["a"], **CLOSED},
        {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(101)}, **CLOSED},
    ],
)
def test_any_other_schema_goes_to_the_engine_that_refuses_what_it_does_not_know(schema: Any) -> None:
    assert source_of(schema).engine == "llguidance"


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": "^a"}, '"ab"', '"ba"'),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, "4", "6"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "4", "true"),
        ({"maxLength": 2}, '"ab"', '"abc"'),
        ({"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}, '{"a": 7}', '{"a": 8}'),
        (True, "[1]", "x"),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "integer"}}}, "1", '"a"'),
    ],
)
def test_what_is_followed_is_followed(schema: Any, right: str, wrong: str) -> None:
    assert accepts(source_of(schema), right)
    assert not accepts(source_of(schema), wrong)


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "minLength": 1, "maxLength": 4}])
def test_no_string_holds_a_raw_control_character(schema: Any) -> None:
    assert accepts(source_of(schema), '"a\\n"')
    assert not any(accepts(source_of(schema), f'"a{chr(code)}"') for code in range(32))


def test_any_json_and_any_object_have_names_of_their_own() -> None:
    tokens = engines().tokens
    anything = constraint_source(TextGrammar("json_schema", "$$ANY$$"), tokens)
    assert all(accepts(anything, text) for text in ('"a"', "3", '{"a": [null]}', "[]"))
    an_object = constraint_source(TextGrammar("json_object"), tokens)
    assert accepts(an_object, '{"a": [null]}')
    assert not accepts(an_object, "[]")


@pytest.mark.parametrize("schema", [{"type": "array", "items": {"type": "integer"}}, {"items": {"type": "integer"}}])
def test_white_space_between_parts_of_json_is_free_or_there_is_none(schema: Any) -> None:
    loose, compact = source_of(schema), source_of(schema, any_whitespace=False)
    assert accepts(loose, "[ 1,\n    2 ]")
    assert accepts(compact, "[1,2]")
    assert not accepts(compact, "[1, 2]")


def test_a_choice_is_one_of_its_strings_whatever_signs_they_hold() -> None:
    source = constraint_source(TextGrammar("choice", '["a.b", "a", "(c|d)*", "x/y\\nz"]'), engines().tokens)
    assert all(accepts(source, text) for text in ("a.b", "a", "(c|d)*", "x/y\nz"))
    assert not any(accepts(source, text) for text in ("axb", "c", "", "x/y"))


@pytest.mark.parametrize("text", ["[]", "{}", '["a", 3]', '[""]', "x"])
def test_a_choice_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Failed to compile choice grammar"):
        constraint_source(TextGrammar("choice", text), engines().tokens)


def structural(tag: Any) -> Any:
    return constraint_source(TextGrammar("structural_tag", json.dumps(tag)), engines().tokens)


PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], **CLOSED}


def test_a_structural_tag_holds_in_its_new_form_and_in_its_legacy_form() -> None:
    tag = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": PLAIN}, "end": "</f>"}
    new = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag]}}
    legacy = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": PLAIN, "end": "</f>"}],
        "triggers": ["<f"],
    }
    for form in (new, legacy):
        assert accepts(structural(form), 'so <f>{"a": 1}</f> it is')
        assert not accepts(structural(form), 'so <f>{"b": 1}</f> it is')


def test_a_structural_tag_of_the_models_own_tags_means_their_tokens() -> None:
    tag = {
        "type": "tag",
        "begin": "<tool_call>",
        "content": {"type": "json_schema", "json_schema": PLAIN},
        "end": "</tool_call>",
    }
    source = structural({"type": "structural_tag", "format": tag})
    assert source.has_tags
    assert accepts(source, '<tool_call>{"a": 1}</tool_call>')


@pytest.mark.parametrize("tag", [[], {"structures": 3, "triggers": []}, {"format": {"json_schema": {"not": {}}}}])
def test_a_structural_tag_that_cannot_be_followed_is_refused(tag: Any) -> None:
    with pytest.raises(InvalidRequest):
        structural(tag)


def test_a_schema_in_a_structural_tag_must_be_plain() -> None:
    with pytest.raises(InvalidRequest, match="#/format/json_schema: inside structural tags"):
        structural({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "object"}}})
