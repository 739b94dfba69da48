"""What may be generated: the same constraints by every API's own names, refused by name where graphs have no masks."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from attrs import evolve, frozen

from stages.ingress.dialect import Dialect
from stages.ingress.dialects import (
    anthropic_count_tokens,
    anthropic_messages,
    ollama_chat,
    ollama_generate,
    openai_chat,
    openai_completions,
    openai_responses,
    sglang_generate,
)
from stages.messages import Ask, Constraint, Penalties, TextGrammar, ToolGrammar
from stages.settings import ModelSettings
from tests.stages.ingress.dialects.kit import ABLE, MODEL, call_of, parse, refusal

SCHEMA = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]}
TEXT = '{"type":"object","properties":{"n":{"const":7}},"required":["n"]}'
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
TAG_TEXT = '{"type":"structural_tag","format":{"type":"const_string","value":"x"}}'
OLD_TAG = {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}
FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
OTHER = {"name": "stop", "parameters": {"type": "object", "properties": {}}}


@frozen
class Api:
    """A route, and the least body it takes."""

    dialect: Dialect
    base: Mapping[str, Any]

    def ask(self, more: Mapping[str, Any], model: ModelSettings = ABLE) -> Ask:
        (ask,) = parse(self.dialect, {**self.base, **more}, model).asks
        return ask

    def constraint(self, more: Mapping[str, Any]) -> Constraint | None:
        return self.ask(more).constraint


CHAT = Api(openai_chat.DIALECT, {"messages": [{"role": "user", "content": "x"}]})
COMPLETIONS = Api(openai_completions.DIALECT, {"prompt": "x"})
RESPONSES = Api(openai_responses.DIALECT, {"input": "x"})
MESSAGES = Api(anthropic_messages.DIALECT, {"max_tokens": 4000, "messages": [{"role": "user", "content": "x"}]})
GENERATE = Api(sglang_generate.DIALECT, {"text": "x"})
OLLAMA = Api(ollama_chat.DIALECT, {"model": "glm", "messages": [{"role": "user", "content": "x"}]})
OLLAMA_GENERATE = Api(ollama_generate.DIALECT, {"model": "glm", "prompt": "x"})
# Those that read vLLM's and SGLang's extras.
EXTRAS = {"chat": CHAT, "completions": COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
on_extras = pytest.mark.parametrize("api", EXTRAS.values(), ids=list(EXTRAS))


def sampling(**params: Any) -> dict[str, Any]:
    return {"sampling_params": params}


# --- what a text must be ---

SCHEMA_GRAMMAR = TextGrammar("json_schema", TEXT)
GRAMMARS: Mapping[str, tuple[Mapping[str, Any], TextGrammar]] = {
    "structured json": ({"structured_outputs": {"json": SCHEMA}}, SCHEMA_GRAMMAR),
    "structured json text": ({"structured_outputs": {"json": TEXT}}, SCHEMA_GRAMMAR),
    "structured regex": ({"structured_outputs": {"regex": "a+"}}, TextGrammar("regex", "a+")),
    "structured choice": ({"structured_outputs": {"choice": ["é", "no"]}}, TextGrammar("choice", '["é","no"]')),
    "structured grammar": ({"structured_outputs": {"grammar": "root ::= x"}}, TextGrammar("ebnf", "root ::= x")),
    "structured object": ({"structured_outputs": {"json_object": True}}, TextGrammar("json_object")),
    "structured tag": ({"structured_outputs": {"structural_tag": TAG_TEXT}}, TextGrammar("structural_tag", TAG_TEXT)),
    "structured compact": (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        TextGrammar("json_object", any_whitespace=False),
    ),
    "guided json": ({"guided_json": SCHEMA}, SCHEMA_GRAMMAR),
    "guided regex": ({"guided_regex": "a"}, TextGrammar("regex", "a")),
    "guided choice": ({"guided_choice": ["a"]}, TextGrammar("choice", '["a"]')),
    "guided grammar": ({"guided_grammar": "g"}, TextGrammar("ebnf", "g")),
    "guided object": ({"guided_json_object": True}, TextGrammar("json_object")),
    "schema": ({"json_schema": SCHEMA}, SCHEMA_GRAMMAR),
    "schema text": ({"json_schema": TEXT}, SCHEMA_GRAMMAR),
    "any json": ({"json_schema": "$$ANY$$"}, TextGrammar("json_schema", "$$ANY$$")),
    "regex": ({"regex": "a"}, TextGrammar("regex", "a")),
    "ebnf": ({"ebnf": 'root ::= "a"'}, TextGrammar("ebnf", 'root ::= "a"')),
    "tag": ({"structural_tag": TAG_TEXT}, TextGrammar("structural_tag", TAG_TEXT)),
}
FORMATS: Mapping[str, tuple[Api, Mapping[str, Any], TextGrammar]] = {
    "chat object": (CHAT, {"response_format": {"type": "json_object"}}, TextGrammar("json_object")),
    "chat schema": (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
        SCHEMA_GRAMMAR,
    ),
    "chat loose schema": (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}},
        SCHEMA_GRAMMAR,
    ),
    "chat tag": (CHAT, {"response_format": TAG}, TextGrammar("structural_tag", TAG_TEXT)),
    "chat old tag": (
        CHAT,
        {"response_format": OLD_TAG},
        TextGrammar("structural_tag", json.dumps(OLD_TAG, separators=(",", ":"))),
    ),
    "completions": (
        COMPLETIONS,
        {"response_format": {"type": "json_object"}},
        TextGrammar("json_object", after_reasoning=False),
    ),
    "responses object": (RESPONSES, {"text": {"format": {"type": "json_object"}}}, TextGrammar("json_object")),
    "responses schema": (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}},
        SCHEMA_GRAMMAR,
    ),
    "messages": (
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        SCHEMA_GRAMMAR,
    ),
    "messages by its older name": (
        MESSAGES,
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        SCHEMA_GRAMMAR,
    ),
    "generate schema": (GENERATE, sampling(json_schema=TEXT), evolve(SCHEMA_GRAMMAR, after_reasoning=False)),
    "generate regex": (GENERATE, sampling(regex="a"), TextGrammar("regex", "a", after_reasoning=False)),
    "generate ebnf": (GENERATE, sampling(ebnf="g"), TextGrammar("ebnf", "g", after_reasoning=False)),
    "generate tag": (
        GENERATE,
        sampling(structural_tag=TAG_TEXT),
        TextGrammar("structural_tag", TAG_TEXT, after_reasoning=False),
    ),
    "generate after thinking": (
        GENERATE,
        {**sampling(regex="a"), "require_reasoning": True},
        TextGrammar("regex", "a"),
    ),
    "ollama json": (OLLAMA, {"format": "json"}, TextGrammar("json_object")),
    "ollama schema": (OLLAMA, {"format": SCHEMA}, SCHEMA_GRAMMAR),
    "ollama prompt": (OLLAMA_GENERATE, {"format": SCHEMA}, SCHEMA_GRAMMAR),
    "ollama raw": (OLLAMA_GENERATE, {"format": "json", "raw": True}, TextGrammar("json_object", after_reasoning=False)),
}


@on_extras
@pytest.mark.parametrize("name", GRAMMARS)
def test_every_name_of_a_grammar_asks_for_the_same_on_every_route(api: Api, name: str) -> None:
    more, grammar = GRAMMARS[name]
    assert api.constraint(more) == evolve(grammar, after_reasoning=api is not COMPLETIONS)


@pytest.mark.parametrize(("api", "more", "grammar"), FORMATS.values(), ids=list(FORMATS))
def test_each_apis_own_format_is_a_grammar(api: Api, more: Any, grammar: TextGrammar) -> None:
    assert api.constraint(more) == grammar


def test_a_schema_keeps_its_order_and_digits_and_its_bad_surrogates_are_replaced() -> None:
    schema = {"b": 1.50, "a": [2**63 - 1, "\ud83d"]}
    found = CHAT.constraint({"guided_json": schema})
    assert isinstance(found, TextGrammar)
    assert found.text == '{"b":1.5,"a":[9223372036854775807,"\ufffd"]}'


def test_objects_take_no_other_properties_where_vllms_option_says_so() -> None:
    schema = {
        "properties": {"properties": {"type": "object", "properties": {}}, "x": {"enum": [{"properties": {}}]}},
        "anyOf": [{"properties": {}, "additionalProperties": True}],
    }
    found = CHAT.constraint({"structured_outputs": {"json": schema, "disable_additional_properties": True}})
    assert isinstance(found, TextGrammar)
    assert json.loads(found.text) == {
        "properties": {
            "properties": {"type": "object", "properties": {}, "additionalProperties": False},
            "x": {"enum": [{"properties": {}}]},
        },
        "anyOf": [{"properties": {}, "additionalProperties": True}],
        "additionalProperties": False,
    }


def named(api: Api, more: Mapping[str, Any], model: ModelSettings = ABLE) -> tuple[str | None, str]:
    error = refusal(api.dialect, {**api.base, **more}, model)
    assert error.status == 400
    return error.param, error.message


@pytest.mark.parametrize(
    ("api", "more", "first", "second"),
    [
        (CHAT, {"response_format": {"type": "json_object"}, "regex": "a"}, "response_format", "regex"),
        (CHAT, {"guided_json": {}, "structured_outputs": {"json": {}}}, "structured_outputs.json", "guided_json"),
        (COMPLETIONS, {"guided_regex": "a", "ebnf": "g"}, "guided_regex", "ebnf"),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
            "text.format",
            "structured_outputs.regex",
        ),
        (
            MESSAGES,
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}, "json_schema": "{}"},
            "output_config.format",
            "json_schema",
        ),
        (
            MESSAGES,
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_config.format",
            "output_format",
        ),
        (
            CHAT,
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs.regex",
            "structured_outputs.choice",
        ),
    ],
)
def test_two_grammars_are_an_error_that_names_both(api: Api, more: Any, first: str, second: str) -> None:
    param, message = named(api, more)
    assert param == second
    assert first in message
    assert second in message


def test_two_grammars_on_generate_are_refused_in_sglangs_words() -> None:
    _, message = named(GENERATE, sampling(json_schema="{}", regex="a"))
    assert message == "Only one of json_schema, regex, ebnf, or structural_tag can be set."


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}},
            "response_format.json_schema.strict",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice.0"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"json_schema": "{"}, "json_schema"),
        ({"regex": 5}, "regex"),
    ],
)
def test_a_grammar_that_is_none_is_refused_by_its_path(more: Any, param: str) -> None:
    assert named(CHAT, more)[0] == param


def test_known_texts_of_bad_grammars() -> None:
    more = {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}
    assert named(CHAT, more)[1] == "schema_ is required for json_schema response format request."
    param, text = named(GENERATE, sampling(json_schema="{"))
    assert (param, text.partition(": ")[0]) == ("sampling_params.json_schema", "Failed to compile json grammar")


# --- tools ---

CHAT_TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": OTHER}]
FLAT_TOOLS = [{"type": "function", **FUNCTION}, {"type": "function", **OTHER}, {"type": "custom", "name": "patch"}]
CLAUDE_TOOLS = [{"name": "look", "input_schema": FUNCTION["parameters"]}, {"name": "stop", "input_schema": {}}]


def listed(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def flat(*names: str) -> list[Any]:
    return [{"type": "function", "name": name} for name in names]


BOTH, THREE = ("look", "stop"), ("look", "stop", "patch")
# api, body, then: names, must one be called, may there be several.
CHOICES: Mapping[str, tuple[Api, Mapping[str, Any], tuple[str, ...], bool, bool]] = {
    "chat required": (CHAT, {"tools": CHAT_TOOLS, "tool_choice": "required"}, BOTH, True, True),
    "chat required once": (
        CHAT,
        {"tools": CHAT_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        BOTH,
        True,
        False,
    ),
    "chat named": (CHAT, {"tools": CHAT_TOOLS, "tool_choice": listed("stop")[0]}, ("stop",), True, False),
    "chat some": (
        CHAT,
        {
            "tools": CHAT_TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": listed("stop")}},
        },
        ("stop",),
        False,
        True,
    ),
    "chat some of which one must": (
        CHAT,
        {
            "tools": CHAT_TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": listed(*BOTH)}},
        },
        BOTH,
        True,
        True,
    ),
    "chat one at most": (CHAT, {"tools": CHAT_TOOLS, "parallel_tool_calls": False}, BOTH, False, False),
    "chat strict": (
        CHAT,
        {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}, CHAT_TOOLS[1]]},
        BOTH,
        False,
        True,
    ),
    "responses required": (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": "required"}, THREE, True, True),
    "responses named": (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": flat("look")[0]}, ("look",), True, False),
    "responses custom": (
        RESPONSES,
        {"tools": FLAT_TOOLS, "tool_choice": {"type": "custom", "name": "patch"}},
        ("patch",),
        True,
        False,
    ),
    "responses in a namespace": (
        RESPONSES,
        {
            "tools": [{"type": "namespace", "name": "ns", "tools": FLAT_TOOLS}],
            "tool_choice": {"type": "function", "name": "look", "namespace": "ns"},
        },
        ("ns__look",),
        True,
        False,
    ),
    "responses some": (
        RESPONSES,
        {"tools": FLAT_TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": flat("stop")}},
        ("stop",),
        True,
        True,
    ),
    "responses strict": (RESPONSES, {"tools": [{**FLAT_TOOLS[0], "strict": True}]}, ("look",), False, True),
    "messages any": (MESSAGES, {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "any"}}, BOTH, True, True),
    "messages any once": (
        MESSAGES,
        {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        BOTH,
        True,
        False,
    ),
    "messages named": (
        MESSAGES,
        {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "tool", "name": "stop"}},
        ("stop",),
        True,
        False,
    ),
    "messages strict": (MESSAGES, {"tools": [{**CLAUDE_TOOLS[0], "strict": True}]}, ("look",), False, True),
    "messages one at most": (
        MESSAGES,
        {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        BOTH,
        False,
        False,
    ),
}


@pytest.mark.parametrize(("api", "more", "names", "required", "parallel"), CHOICES.values(), ids=list(CHOICES))
def test_a_choice_of_tools_is_a_grammar_of_calls_and_every_tool_is_still_shown(
    api: Api, more: Any, names: tuple[str, ...], required: bool, parallel: bool
) -> None:
    ask = api.ask(more)
    assert isinstance(found := ask.constraint, ToolGrammar)
    assert (found.names, found.is_required, found.is_parallel) == (names, required, parallel)
    assert found.tools == ask.form.tools
    assert len(found.tools) == len(more["tools"][0].get("tools", more["tools"]))
    assert ask.form.parse_tools


@pytest.mark.parametrize(
    ("api", "more"),
    [
        (CHAT, {"tools": CHAT_TOOLS}),
        (CHAT, {"tools": CHAT_TOOLS, "tool_choice": "none", "parallel_tool_calls": False}),
        (
            CHAT,
            {
                "tools": CHAT_TOOLS,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": listed(*BOTH)}},
            },
        ),
        (CHAT, {"parallel_tool_calls": False}),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": "auto"}),
        (MESSAGES, {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "none"}}),
    ],
)
def test_a_choice_that_leaves_the_model_free_is_no_constraint(api: Api, more: Any) -> None:
    assert api.constraint(more) is None


def test_strict_tools_and_single_calls_are_wishes_where_there_are_no_masks() -> None:
    for api, more in (
        (
            CHAT,
            {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}], "parallel_tool_calls": False},
        ),
        (RESPONSES, {"tools": [{**FLAT_TOOLS[0], "strict": True}], "parallel_tool_calls": False}),
        (
            MESSAGES,
            {
                "tools": [{**CLAUDE_TOOLS[0], "strict": True}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
        ),
    ):
        assert api.ask(more, MODEL).constraint is None


@pytest.mark.parametrize(
    ("api", "more", "param"),
    [
        (CHAT, {"tools": CHAT_TOOLS, "tool_choice": listed("x")[0]}, "tool_choice"),
        (
            CHAT,
            {
                "tools": CHAT_TOOLS,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": listed("x")}},
            },
            "tool_choice",
        ),
        (
            CHAT,
            {
                "tools": CHAT_TOOLS,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": listed("look")}},
            },
            "tool_choice.allowed_tools.mode",
        ),
        (
            CHAT,
            {
                "tools": CHAT_TOOLS,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            },
            "tool_choice.allowed_tools.tools",
        ),
        (CHAT, {"tools": CHAT_TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.tools"),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": {"type": "custom", "name": "look"}}, "tool_choice"),
        (
            RESPONSES,
            {"tools": FLAT_TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools.0.type",
        ),
        (RESPONSES, {"tools": FLAT_TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        (MESSAGES, {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)
def test_a_choice_of_a_tool_there_is_not_is_refused(api: Api, more: Any, param: str) -> None:
    assert named(api, more)[0] == param


def test_a_tool_that_must_be_called_and_a_grammar_of_the_text_are_refused_in_sglangs_words() -> None:
    more = {"tools": CHAT_TOOLS, "tool_choice": "required", "regex": "a"}
    assert named(CHAT, more) == (
        "tool_choice",
        "tool_choice 'required' or a named tool cannot be combined with response_format, regex, or ebnf: the tool-call "
        "constraint and the output constraint cannot both be honored.",
    )
    config = {"format": {"type": "json_schema", "schema": {}}}
    more = {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "any"}, "output_config": config}
    param, message = named(MESSAGES, more)
    assert param == "tool_choice"
    assert "output_config.format" in message


@pytest.mark.parametrize(("kind", "looks"), [("regex", False), ("json_schema", False), ("ebnf", True)])
def test_a_grammar_goes_before_tools_that_need_not_be_called_and_in_json_nothing_is_taken_for_a_call(
    kind: str, looks: bool
) -> None:
    ask = CHAT.ask({"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}], kind: "{}"})
    assert isinstance(ask.constraint, TextGrammar)
    assert ask.form.parse_tools is looks
    assert len(ask.form.tools) == 1


# --- penalties, biases, ids, budgets, least lengths ---


@on_extras
def test_the_extras_mean_the_same_on_every_route(api: Api) -> None:
    ask = api.ask(
        {
            "frequency_penalty": 0.5,
            "presence_penalty": -2,
            "repetition_penalty": 1.25,
            "logit_bias": {"5": -100, "0": 2.5, "7": 0},
            "allowed_token_ids": [3, 1, 3],
            "thinking_token_budget": 0,
        }
    )
    assert ask.penalties == Penalties(0.5, -2.0, 1.25)
    assert ask.logit_bias == ((0, 2.5), (5, -100.0))
    assert ask.allowed_token_ids == frozenset({1, 3})
    assert ask.thinking_budget_tokens == 0


def test_generate_has_them_by_sglangs_names_and_without_a_range_of_biases() -> None:
    ask = GENERATE.ask(
        {
            **sampling(
                frequency_penalty=0.5,
                presence_penalty=0.25,
                repetition_penalty=2,
                logit_bias={"5": -1e9},
                custom_params={"thinking_budget": 9},
            )
        }
    )
    assert ask.penalties == Penalties(0.5, 0.25, 2.0)
    assert ask.logit_bias == ((5, -1e9),)
    assert ask.thinking_budget_tokens == 9
    assert GENERATE.ask({"max_thinking_tokens": 7}).thinking_budget_tokens == 7
    assert named(GENERATE, sampling(logit_bias={"1000": 1}))[1] == "logit_bias must has keys in [0, 999], got 1000."
    assert named(GENERATE, sampling(custom_params={"a": 1}))[0] == "sampling_params.custom_params.a"
    assert named(GENERATE, sampling(custom_params={"thinking_budget": -1}))[0] == (
        "sampling_params.custom_params.thinking_budget"
    )


def test_ollama_has_penalties_among_its_options() -> None:
    options = {"repeat_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": 0.5}
    assert OLLAMA.ask({"options": options}).penalties == Penalties(0.5, 1.0, 1.5)
    assert named(OLLAMA, {"options": {"repeat_penalty": 3}})[0] == "options.repeat_penalty"
    assert named(OLLAMA, {"format": "xml"})[0] == "format"


def test_the_models_repetition_penalty_is_that_of_chats_and_answers_that_ask_for_none() -> None:
    model = evolve(ABLE, default_penalties=Penalties(repetition=1.1))
    for api in (CHAT, RESPONSES, MESSAGES, OLLAMA, OLLAMA_GENERATE):
        assert api.ask({}, model).penalties == Penalties(repetition=1.1)
    for api in (COMPLETIONS, GENERATE):
        assert api.ask({}, model).penalties == Penalties()
    assert CHAT.ask({"repetition_penalty": 1}, model).penalties == Penalties()


def test_a_messages_thinking_budget_is_kept_where_there_are_masks_and_never_refused() -> None:
    more = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert MESSAGES.ask(more).thinking_budget_tokens == 2000
    assert MESSAGES.ask(more, MODEL).thinking_budget_tokens is None
    assert MESSAGES.ask({**more, "thinking_token_budget": 5}).thinking_budget_tokens == 5
    disabled = {"thinking": {"type": "disabled", "budget_tokens": 2000}}
    assert MESSAGES.ask(disabled).thinking_budget_tokens is None


@on_extras
def test_stop_strings_wait_for_min_tokens_where_end_tokens_do(api: Api) -> None:
    assert api.ask({"min_tokens": 3}).form.stops_after_tokens == 3
    assert api.ask({"min_tokens": 3}, MODEL).form.stops_after_tokens == 0
    assert GENERATE.ask(sampling(min_new_tokens=3)).form.stops_after_tokens == 0


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 2.5}, "repetition_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
        ({"logit_bias": {"0" * 20 + "1000": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias.5"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"logit_bias": {"5": True}}, "logit_bias.5"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [1000]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": True}, "thinking_token_budget"),
        ({"thinking_token_budget": 1.5}, "thinking_token_budget"),
    ],
)
@on_extras
def test_values_out_of_range_are_refused_by_name(api: Api, more: Any, param: str) -> None:
    assert named(api, more)[0] == param


# --- without the flags ---


def needing() -> Iterator[tuple[Api, Mapping[str, Any], str, str]]:
    for api in EXTRAS.values():
        for more, _ in GRAMMARS.values():
            ((name, value),) = more.items()
            kinds = [key for key in value if not key.startswith("disable")] if name == "structured_outputs" else [""]
            yield api, more, ".".join(filter(None, [name, *kinds])), "--structured-outputs"
        yield api, {"allowed_token_ids": [1]}, "allowed_token_ids", "--structured-outputs"
        yield api, {"thinking_token_budget": 0}, "thinking_token_budget", "--structured-outputs"
        for name, value in (("frequency_penalty", 1), ("presence_penalty", -1), ("repetition_penalty", 0.5)):
            yield api, {name: value}, name, "--penalties"
        yield api, {"logit_bias": {"1": 1}}, "logit_bias", "--penalties"
    for api, more, _ in FORMATS.values():
        (name,) = [key for key in more if key != "require_reasoning" and key != "raw"]
        nested = {"text": "text.format", "output_config": "output_config.format"}
        param = f"{name}.{next(iter(more[name]))}" if name == "sampling_params" else nested.get(name, name)
        yield api, more, param, "--structured-outputs"
    for key, (api, more, *_) in CHOICES.items():
        if "strict" not in key and "at most" not in key:
            yield api, more, "tool_choice", "--structured-outputs"
    for name in ("frequency_penalty", "presence_penalty", "repetition_penalty"):
        yield GENERATE, sampling(**{name: 1.5}), f"sampling_params.{name}", "--penalties"
    yield GENERATE, sampling(logit_bias={"1": 1}), "sampling_params.logit_bias", "--penalties"
    yield GENERATE, {"max_thinking_tokens": 1}, "max_thinking_tokens", "--structured-outputs"
    budget = sampling(custom_params={"thinking_budget": 1})
    yield GENERATE, budget, "sampling_params.custom_params.thinking_budget", "--structured-outputs"
    for name in ("frequency_penalty", "presence_penalty", "repeat_penalty"):
        yield OLLAMA, {"options": {name: 1.5}}, f"options.{name}", "--penalties"


NEEDING = list(needing())


@pytest.mark.parametrize(
    ("api", "more", "param", "flag"), NEEDING, ids=[f"{n}-{one[2]}" for n, one in enumerate(NEEDING)]
)
def test_what_needs_a_flag_names_field_and_flag_without_it(api: Api, more: Any, param: str, flag: str) -> None:
    error = refusal(api.dialect, {**api.base, **more}, MODEL)
    assert (error.param, error.message) == (param, f"{param} requires the server to be launched with {flag}.")
    assert error.code in ("unsupported_parameter", "unsupported_value")


def test_one_flag_is_no_leave_for_what_needs_the_other() -> None:
    masks_only = evolve(MODEL, structured_outputs=True)
    logits_only = evolve(MODEL, penalties=True)
    assert CHAT.ask({"regex": "a"}, masks_only).constraint is not None
    assert CHAT.ask({"logit_bias": {"1": 1}}, logits_only).logit_bias
    assert "--penalties" in named(CHAT, {"logit_bias": {"1": 1}}, masks_only)[1]
    assert "--structured-outputs" in named(CHAT, {"regex": "a"}, logits_only)[1]


@pytest.mark.parametrize("model", [MODEL, ABLE], ids=["plain", "able"])
@on_extras
def test_values_that_ask_for_nothing_leave_an_ask_as_it_is(api: Api, model: ModelSettings) -> None:
    nothing = {
        "frequency_penalty": 0, "presence_penalty": -0.0, "repetition_penalty": 1, "logit_bias": {"5": 0},
        "thinking_token_budget": -1, "regex": "", "ebnf": "", "json_schema": "", "structural_tag": "",
        "structured_outputs": None, "guided_json": None, "allowed_token_ids": None,
    }  # fmt: skip
    assert api.ask(nothing, model) == api.ask({}, model)
    assert api.ask({"logit_bias": {}}, model) == api.ask({}, model)


def test_what_a_message_would_be_refused_for_its_count_is_too() -> None:
    more = {"tools": CLAUDE_TOOLS, "tool_choice": {"type": "any"}}
    assert refusal(anthropic_count_tokens.DIALECT, {**MESSAGES.base, **more}).param == "tool_choice"
    anthropic_count_tokens.DIALECT.parse(call_of({**MESSAGES.base, **more}), ABLE)


@pytest.mark.parametrize(
    ("api", "more", "field"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
        (MESSAGES, FORMATS["messages"][1], "output_config.format"),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, "text.format"),
        (GENERATE, sampling(regex="a"), "sampling_params.regex"),
        (OLLAMA, {"format": "json"}, "format"),
        (CHAT, {"tools": CHAT_TOOLS, "tool_choice": "required"}, None),
        (CHAT, {}, None),
    ],
)
def test_an_ask_knows_the_field_of_its_grammar_for_the_complaint_about_it(
    api: Api, more: Any, field: str | None
) -> None:
    assert api.ask(more).constraint_field == field
