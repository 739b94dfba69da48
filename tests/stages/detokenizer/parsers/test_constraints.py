"""What engines are asked so that they call tools in a format, and that the format's parser reads what obeys it."""

import json
from typing import Any

import pytest

from stages.detokenizer.parsers import tools as tools_folder
from stages.detokenizer.parsers.constraints import BUILDERS, tool_constraint
from stages.detokenizer.parsers.loading import names
from stages.messages import TextGrammar, Tool, ToolGrammar
from tests.stages.detokenizer.parsers.families import FAMILIES
from tests.stages.detokenizer.parsers.saying import say

X = {"type": "object", "properties": {"tz": {"type": "string"}}, "required": ["tz"], "additionalProperties": False}
TAGGED = sorted(BUILDERS)
UNTAGGED = sorted(set(names(tools_folder)) - set(BUILDERS))


def tool(name: str = "f", strict: bool | None = None) -> Tool:
    definition = {"name": name, "parameters": X} | ({} if strict is None else {"strict": strict})
    return Tool(name, definition, X, is_strict=bool(strict))


def asked(parser: str, *tools: Tool, required: bool = True, parallel: bool = True) -> Any:
    grammar = ToolGrammar(tools, required, tuple(each.name for each in tools), parallel)
    constraint = tool_constraint(parser, grammar)
    if constraint is None:
        return None
    assert isinstance(constraint, TextGrammar)
    value = json.loads(constraint.text)
    if constraint.kind == "structural_tag":
        assert value.pop("type") == "structural_tag"
        (value,) = value.values()
    return value


def schema(name: str = "f") -> dict[str, Any]:
    return {
        "properties": {"name": {"type": "string", "enum": [name]}, "parameters": X},
        "required": ["name", "parameters"],
    }


@pytest.mark.parametrize("parser", UNTAGGED)
def test_a_format_without_a_tag_gets_the_schema_of_a_list(parser: str) -> None:
    assert asked(parser, tool()) == {"type": "array", "minItems": 1, "items": schema()}
    assert asked(parser, tool(), parallel=False) == {"type": "array", "minItems": 1, "maxItems": 1, "items": schema()}
    both = {"type": "object", "anyOf": [schema("f"), schema("g")]}
    assert asked(parser, tool("f"), tool("g"))["items"] == both


def test_a_tool_without_parameters_has_an_object_of_nothing() -> None:
    (items,) = [asked("mistral", Tool("f", {"name": "f"}))["items"]]
    assert items["properties"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize("parser", [*TAGGED, *UNTAGGED])
def test_what_a_model_may_call_and_need_not_is_free_without_a_strict_tool(parser: str) -> None:
    assert asked(parser, tool(), tool("g", strict=False), required=False) is None
    has_tag = parser in TAGGED or parser == "llama3_json"
    assert (asked(parser, tool(strict=True), required=False) is not None) is has_tag


def test_tools_that_may_not_be_called_are_left_out() -> None:
    constraint = tool_constraint("hermes", ToolGrammar((tool("f"), tool("g")), True, ("g",)))
    assert constraint is not None
    (tag,) = json.loads(constraint.text)["format"]["tags"]
    assert tag["begin"] == '<tool_call>\n{"name": "g", "arguments": '
    assert tool_constraint("hermes", ToolGrammar((), True, ())) is None


def json_schema(style: str, value: Any = X) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": value, "style": style}


def test_hermes_asks_for_objects_in_its_tag() -> None:
    tag = {
        "type": "tag",
        "begin": '<tool_call>\n{"name": "f", "arguments": ',
        "content": json_schema("json"),
        "end": "}\n</tool_call>",
    }
    assert asked("hermes", tool()) == {
        "type": "triggered_tags",
        "triggers": ["<tool_call>"],
        "tags": [tag],
        "at_least_one": True,
        "stop_after_first": False,
    }
    free = asked("hermes", tool(strict=True), required=False, parallel=False)
    assert (free["at_least_one"], free["stop_after_first"]) == (False, True)


def test_a_tool_that_is_expressly_not_strict_has_any_arguments() -> None:
    tags = asked("qwen25", tool(strict=False), tool("g", strict=True))["tags"]
    assert [each["content"]["json_schema"] for each in tags] == [True, X]


def test_other_tags_begin_and_end_as_their_formats_do() -> None:
    (coder,) = asked("qwen3_coder", tool())["tags"]
    assert (coder["begin"], coder["end"]) == ("<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>")
    assert coder["content"] == json_schema("qwen_xml")
    glm = asked("glm47", tool())
    assert (glm["tags"][0]["begin"], glm["tags"][0]["end"]) == ("<tool_call>f", "</tool_call>")
    assert "<think>" in glm["excludes"]
    (block,) = asked("deepseek_v4", tool())["tags"]
    assert (block["begin"], block["end"]) == ("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>")
    (invoke,) = block["content"]["tags"]
    assert (invoke["begin"], invoke["end"]) == ('<｜DSML｜invoke name="f">\n', "</｜DSML｜invoke>\n")
    assert asked("kimi_k2", tool())["type"] == "sequence"
    assert asked("kimi_k2", tool(strict=True), required=False)["triggers"] == ["<|tool_calls_section_begin|>"]
    (llama,) = asked("llama3_json", tool(strict=True), required=False)["tags"]
    assert (llama["begin"], llama["end"]) == ('<|python_tag|>{"name":"f", "arguments":', "}")


@pytest.mark.parametrize("parser", TAGGED)
@pytest.mark.parametrize("required", [True, False])
def test_a_grammar_library_takes_the_tags_and_what_the_format_says(parser: str, required: bool) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    value = {"type": "structural_tag", "format": asked(parser, tool("f", True), tool("g", True), required=required)}
    grammar = xgrammar.Grammar.from_structural_tag(json.dumps(value))
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([chr(code) for code in range(32, 127)]))
    matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(grammar), terminate_without_stop_token=True)
    text = FAMILIES[parser].write(("f", {"tz": "U"}), ("g", {"tz": "V"})).lstrip()
    assert matcher.accept_string(text)
    assert say([text], parser).calls[0][0] == "f"


@pytest.mark.parametrize("parser", sorted(FAMILIES))
def test_every_parser_reads_the_list_that_was_asked_for(parser: str) -> None:
    text = '[{"name": "get_time", "parameters": {"tz": "U"}}, {"name": "get_weather", "parameters": {}}]'
    for pieces in ([text], list(text)):
        said = say(pieces, parser, is_required=True)
        assert said.calls == (("get_time", '{"tz": "U"}'), ("get_weather", "{}"))
        assert said.content == ""
    assert say([text[:60]], parser, is_required=True).calls == (("get_time", '{"tz": "U"}'),)
    native = FAMILIES[parser].write(("get_time", {"tz": "U"}))
    assert say([native], parser, is_required=True).calls == say([native], parser).calls
