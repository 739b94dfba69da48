"""Tool calls: what is allowed is what the parser of calls reads, with the arguments the schema asks for."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from stages.detokenizer.parsers.loading import load_id_tool_parser, tag_ids
from stages.errors import InvalidRequest
from stages.grammar.sources import constraint_source
from stages.grammar.worker import compiled_source
from stages.messages import Tool, ToolGrammar
from tests.small_tokenizer import tag
from tests.stages.grammar.small import accepts, begin, engines, next_ids, random_walk

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["city", "unit"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}},
            "required": ["lat"],
            "additionalProperties": False,
        }
    },
}


def tool(name: str = "f", parameters: Any = None, *, strict: bool = False) -> Tool:
    return Tool(name, {"name": name}, parameters, strict)


def source(*tools: Tool, names: tuple[str, ...] | None = None, required: bool = True, parallel: bool = True) -> Any:
    grammar = ToolGrammar(tools, required, names or tuple(each.name for each in tools), parallel)
    return constraint_source(grammar, engines().tokens)


def call(name: str, **arguments: str) -> str:
    pairs = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in arguments.items())
    return f"<tool_call>{name}{pairs}</tool_call>"


def parsed(walked: list[int], *tools: Tool) -> list[tuple[str, Any]]:
    """What the server's own parser makes of generated ids."""
    parser = load_id_tool_parser("glm47")
    assert parser is not None
    state = parser.make(tag_ids(parser, engines().vocabulary), tools)
    calls: dict[int, tuple[str, str]] = {}
    for token_id in walked:
        for delta in state.take(token_id, engines().vocabulary.piece(token_id)) or ():
            name, arguments = calls.get(delta.index, ("", ""))
            calls[delta.index] = name + (delta.name or ""), arguments + (delta.arguments or "")
    return [(name, json.loads(arguments)) for name, arguments in calls.values()]


def test_a_required_call_begins_at_once_and_only_a_call_may_come() -> None:
    matcher = begin(source(tool("get", WEATHER), tool("go")))
    assert next_ids(matcher) == [tag("<tool_call>")]


def test_required_arguments_must_come_and_others_may_in_the_declared_order() -> None:
    grammar = source(tool("get", WEATHER))
    assert accepts(grammar, call("get", city="Paris", unit="c"))
    assert accepts(grammar, call("get", city="Paris", days="3", unit="f", where='{"lat": 1.5}'))
    assert not accepts(grammar, call("get", city="Paris"))
    assert not accepts(grammar, call("get", unit="c", city="Paris"))
    assert not accepts(grammar, call("get", city="Paris", city2="x", unit="c"))
    assert not accepts(grammar, call("get", city="Paris", unit="k"))
    assert not accepts(grammar, call("get", city="Paris", days='"3"', unit="c"))
    assert not accepts(grammar, call("get", city="Paris", unit="c", where="{}"))


def test_a_string_argument_is_any_text_but_a_tag() -> None:
    grammar = source(tool("f", {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}))
    spelled = call("f", s='a <b> "c" </arg')
    assert accepts(grammar, spelled)
    assert not accepts(grammar, call("f", s="a <tool_call> b"))
    assert not accepts(grammar, call("f", s="a <think> b"))
    assert not accepts(grammar, call("f", s="a <arg_key> b"))


def test_only_the_named_tools_may_be_called() -> None:
    grammar = source(tool("get"), tool("get_all"), tool("go"), names=("get_all", "go"))
    assert accepts(grammar, call("get_all"))
    assert not accepts(grammar, call("get"))
    assert accepts(source(tool("get"), tool("get_all")), call("get"))


def test_one_call_is_all_unless_calls_are_parallel() -> None:
    twice = call("go") + call("go")
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    assert accepts(source(tool("go", none)), twice)
    assert accepts(source(tool("go", none), parallel=False), call("go"))
    assert not accepts(source(tool("go", none), parallel=False), twice)


def test_no_text_comes_between_calls_or_after_them() -> None:
    grammar = source(tool("go"))
    assert not accepts(grammar, call("go") + "\n" + call("go"))
    assert not accepts(grammar, call("go") + " done")


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": {"not": {}}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "a"}}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1},
        {"type": "object", "required": ["a"]},
        {"type": "array"},
    ],
)
def test_a_strict_tool_that_cannot_be_followed_is_refused_and_a_loose_one_is_followed_as_far_as_it_goes(
    parameters: Any,
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        source(tool("go"), tool("f", parameters, strict=True))
    assert str(caught.value.param).startswith("tools.1.function.parameters")
    assert accepts(source(tool("f", parameters)), call("f", a="1"))


def test_a_loose_property_keeps_its_type_where_its_schema_cannot_be_followed() -> None:
    grammar = source(tool("f", {"properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}))
    assert accepts(grammar, call("f", a="[1, 1]"))
    assert not accepts(grammar, call("f", a="1"))


@pytest.mark.parametrize("lengths", [{"minLength": "x"}, {"maxLength": []}, {"minLength": -1.5}])
def test_a_string_argument_of_listed_values_and_lengths_that_are_none_is_left_open(lengths: dict[str, Any]) -> None:
    schema = {"type": "string", "enum": ["a"], **lengths}
    grammar = source(tool("f", {"properties": {"a": schema}, "required": ["a"]}))
    assert accepts(grammar, call("f", a="b"))


# Python's `re` would take the pattern; llguidance refuses it only once it compiles.
LOOK_AROUND = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string", "pattern": "(?!a)b"}},
        "days": {"type": "integer"},
    },
    "required": ["names", "days"],
}


def test_what_only_an_engine_refuses_in_a_loose_tool_is_left_at_its_types_and_the_rest_is_kept() -> None:
    grammar = ToolGrammar((tool("go"), tool("f", LOOK_AROUND)), True, ("go", "f"))
    followed, _ = compiled_source(grammar, engines())
    assert accepts(followed, call("f", names='["x"]', days="1"))
    assert accepts(followed, call("go"))
    assert not accepts(followed, call("f", names="3", days="1"))
    assert not accepts(followed, call("f", names='["x"]', days='"1"'))


def test_what_only_an_engine_refuses_in_a_strict_tool_is_refused_by_tool_and_argument() -> None:
    grammar = ToolGrammar((tool("go"), tool("f", LOOK_AROUND, strict=True)), True, ("go", "f"))
    with pytest.raises(InvalidRequest, match=r"Tool f, argument names: .*look-around") as caught:
        compiled_source(grammar, engines())
    assert caught.value.param == "tools.1.function.parameters.properties.names"


def test_a_tool_that_need_not_be_called_is_held_to_its_schema_only_when_strict() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert accepts(source(tool("f", schema), required=False), call("f", other="x"))
    strict = source(tool("f", schema, strict=True), required=False)
    assert not accepts(strict, call("f", other="x"))
    assert accepts(strict, call("f", n="3"))


def test_a_tool_without_parameters_takes_no_arguments_and_one_that_declares_none_takes_any() -> None:
    assert not accepts(source(tool("f")), call("f", a="1"))
    assert accepts(source(tool("f", {"type": "object"})), call("f", a="1", b="two"))


def test_lengths_of_string_arguments_are_kept() -> None:
    grammar = source(
        tool("f", {"properties": {"s": {"type": "string", "minLength": 2, "maxLength": 3}}, "required": ["s"]})
    )
    assert accepts(grammar, call("f", s="é/b"))
    assert not accepts(grammar, call("f", s="a"))
    assert not accepts(grammar, call("f", s="abcd"))


@pytest.mark.parametrize(
    "extra", [{}, {"since": {"type": "string", "format": "date"}, "tags": {"items": {"minLength": 1}}}]
)
def test_random_calls_parse_to_arguments_that_follow_the_schema(extra: Any) -> None:
    random, num_whole = Random(5), 0
    schema = {**WEATHER, "properties": {**WEATHER["properties"], **extra}}  # type: ignore[dict-item]
    schema["properties"].pop("since", None)
    get = tool("get", schema, strict=True)
    for _ in range(30):
        walked = random_walk(begin(source(get, tool("go"))), random, 300)
        if walked is None:
            continue
        for name, arguments in parsed(walked, get, tool("go")):
            num_whole += 1
            jsonschema.validate(arguments, schema if name == "get" else {"maxProperties": 0})
    assert num_whole > 5
