"""The chat completions dialect: what bodies mean, what is refused, and answers that agree however they are sent."""

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from stages.errors import ContextOverflow, Draining, EngineFailure, InvalidRequest, QueueFull, Unavailable
from stages.ingress.dialect import Call, Collected
from stages.ingress.dialects import openai_chat, openai_common
from stages.ingress.dialects.common import MARK, Plain, frame
from stages.ingress.dialects.openai_chat import DIALECT
from stages.ingress.dialects.openai_chat_answer import ChatEncoder
from stages.messages import Ask, Chat, Delta, Ended, Finish, Limits, Sampling, TokenLogprob, ToolCallDelta, Usage
from tests.stages.ingress.dialects.kit import (
    ABLE,
    EOS,
    MODEL,
    PROMPT,
    Script,
    Token,
    error_body,
    frames,
    one_by_one,
    parse,
    refusal,
    scripts,
    splits,
    streamed,
    values_of,
    whole,
)

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
TOOL = {"type": "function", "function": {"name": "tool_0", "parameters": {"type": "object", "properties": {}}}}


def ask_of(**more: Any) -> Ask:
    (ask,) = parse(DIALECT, {**HELLO, **more}).asks
    return ask


def chat_of(**more: Any) -> Chat:
    prompt = ask_of(**more).prompt
    assert isinstance(prompt, Chat)
    return prompt


# ---------------------------------------------------------------------------------------------------------------------
# Requests
# ---------------------------------------------------------------------------------------------------------------------


def test_a_bare_request_takes_the_models_own_sampling_and_the_rest_of_the_context() -> None:
    ask = ask_of()
    assert ask.sampling == MODEL.default_sampling
    assert ask.limits == Limits()
    assert (ask.num_choices, ask.stream, ask.logprobs, ask.num_top_logprobs) == (1, False, False, 0)
    assert ask.form.parse_reasoning
    assert not ask.form.parse_tools
    assert ask.request_id == "chatcmpl-" + "f" * 32


def test_every_sampling_field_reaches_the_ask() -> None:
    ask = ask_of(
        temperature=0, top_p=0.5, top_k=-1, min_p=0.2, seed=5, n=3, max_tokens=9, min_tokens=2, stop="END",
        stop_token_ids=[3, None], ignore_eos=True, logprobs=True, top_logprobs=4, priority=-2, no_stop_trim=True,
        skip_special_tokens=False,
    )  # fmt: skip
    assert ask.sampling == Sampling(temperature=0.0, top_k=0, top_p=0.5, min_p=0.2, seed=5)
    assert ask.limits == Limits(9, 2, ("END",), frozenset({3}), ignore_eos=True)
    assert (ask.num_choices, ask.logprobs, ask.num_top_logprobs, ask.priority) == (3, True, 4, -2)
    assert ask.form.keep_stop
    assert not ask.form.skip_special_tokens


@pytest.mark.parametrize(("value", "patterns"), [("a+", ("a+",)), (["a", "", "b"], ("a", "b")), ("", ()), (None, ())])
def test_stop_regex_is_a_string_or_a_list(value: Any, patterns: tuple[str, ...]) -> None:
    assert ask_of(stop_regex=value).limits.stop_regex == patterns


@pytest.mark.parametrize("value", ["(", "a$", "a*", "x" * 257, ["x"] * 33, ["a", r"(?=b)c"]])
def test_a_stop_regex_that_is_wrong_or_cannot_be_walked_is_refused_by_name(value: Any) -> None:
    error = refusal(DIALECT, {**HELLO, "stop_regex": value})
    assert (error.param, error.code) == ("stop_regex", "invalid_value")
    assert "stop_regex" in error.message


def test_nulls_are_absent_fields() -> None:
    names = [
        "temperature", "top_p", "n", "stop", "seed", "max_tokens", "tools", "tool_choice", "logprobs", "top_logprobs",
        "response_format", "stream", "stream_options", "logit_bias", "functions", "reasoning_effort", "metadata",
        "frequency_penalty", "parallel_tool_calls", "chat_template_kwargs", "model", "user", "audio", "rid",
    ]  # fmt: skip
    assert ask_of(**dict.fromkeys(names)) == ask_of()


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert ask_of(max_tokens=5, max_completion_tokens=6).limits.max_new_tokens == 6


def test_seeds_fold_into_62_bits_so_that_the_last_choices_seed_fits() -> None:
    for seed in (2**63 - 1, -(2**63), -2, 0, 2**62):
        folded = ask_of(seed=seed, n=128).sampling.seed
        assert folded is not None
        assert folded >= 0
        assert folded + 127 < 2**63
    assert ask_of(seed=-1).sampling.seed is None
    assert ask_of(seed=41).sampling.seed == 41


def test_rid_names_answer_and_request_and_request_id_is_a_part_of_both() -> None:
    assert ask_of(rid="mine").request_id == "mine"
    assert ask_of(request_id="mine").request_id == "chatcmpl-mine"
    assert whole(DIALECT, {**HELLO, "rid": "mine"}, one_by_one([(0, 0, PLAIN)]))["id"] == "mine"
    assert ask_of(rid="", request_id="") == ask_of()


@pytest.mark.parametrize(
    ("sent", "template"),
    [
        ({}, {}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": 0.3}, {"reasoning_effort": 0.3, "enable_thinking": True}),
        ({"reasoning_effort": "0.3"}, {"reasoning_effort": "0.3", "enable_thinking": True}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"reasoning": {"enabled": "Yes"}}, {"enable_thinking": True}),
        ({"reasoning": {"enable": "no"}}, {"enable_thinking": False}),
        ({"reasoning": {"enable": 1}}, {"enable_thinking": True}),
        ({"reasoning": {"reasoning_effort": "low"}}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"reasoning": {"effort": "none", "enabled": True}}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "clear_thinking": True}}, {"enable_thinking": True, "clear_thinking": True}),
        ({"thinking": False}, {"enable_thinking": False}),
        ({"chat_template_kwargs": {"enable_thinking": False, "x": 1}}, {"enable_thinking": False, "x": 1}),
        ({"chat_template_kwargs": {"thinking": False}}, {"enable_thinking": False}),
        ({"chat_template_kwargs": {"clear_thinking": True}}, {"clear_thinking": True}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
    ],
)
def test_every_way_to_speak_of_thinking_becomes_template_switches(sent: Any, template: Any) -> None:
    assert chat_of(**sent).template == template


def test_separate_reasoning_false_leaves_the_text_raw() -> None:
    assert not ask_of(separate_reasoning=False).form.parse_reasoning


def test_tools_are_parsed_with_auto_and_neither_shown_nor_parsed_with_none() -> None:
    auto, none = ask_of(tools=[TOOL]), ask_of(tools=[TOOL], tool_choice="none")
    assert auto.form.parse_tools
    assert [tool.name for tool in auto.form.tools] == ["tool_0"]
    assert isinstance(auto.prompt, Chat)
    assert auto.prompt.tools == auto.form.tools
    assert auto.form.tools[0].definition == TOOL["function"]
    assert auto.form.tools[0].parameters == {"type": "object", "properties": {}}
    assert not none.form.parse_tools
    assert none.form.tools == ()
    assert isinstance(none.prompt, Chat)
    assert none.prompt.tools == ()
    assert not ask_of(tools=[]).form.parse_tools


def test_what_else_a_template_may_read_is_told() -> None:
    assert chat_of().facts == {}
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat = chat_of(tools=tools, tool_choice="auto", response_format={"type": "text"})
    assert chat.facts == {"tool_choice": "auto"}
    (ask,) = parse(DIALECT, {**HELLO, "response_format": {"type": "json_object"}}, ABLE).asks
    assert isinstance(ask.prompt, Chat)
    assert ask.prompt.facts == {"response_format": {"type": "json_object"}}


def test_messages_become_neutral() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": [], "name": "x"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "é"]}'}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
                {"id": "c3", "type": "custom", "custom": {"name": "h", "input": "raw"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "18C", "cache_control": {}}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "tool_calls": []},
        {"role": "User", "content": "\ud83d!"},
    ]
    assert chat_of(messages=messages).messages == (
        {"role": "developer", "content": "Be brief", "parts": ["Be ", "brief"]},
        {"role": "user", "content": "", "name": "x"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "name": "f", "arguments": {"a": [1, "é"]}},
                {"id": "c2", "name": "g", "arguments": {}},
                {"id": "c3", "name": "h", "arguments": {"input": "raw"}},
            ],
        },
        {"role": "tool", "content": "18C", "tool_call_id": "c1"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "\ufffd!"},
    )


def test_continue_final_message_needs_an_assistant_at_the_end() -> None:
    messages = [*HELLO["messages"], {"role": "assistant", "content": "Once"}]
    assert chat_of(messages=messages, continue_final_message=True).continue_final_message
    assert refusal(DIALECT, {**HELLO, "continue_final_message": True}).param == "continue_final_message"
    both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
    assert refusal(DIALECT, both).param == "continue_final_message"


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------

UNSERVED = {
    "frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"5": 1},
    "functions": [{"name": "f"}], "function_call": "auto", "audio": {"voice": "a"}, "modalities": ["text", "audio"],
    "web_search_options": {}, "regex": "a+", "ebnf": "root ::= \"a\"", "json_schema": "{}", "structural_tag": "{}",
    "structured_outputs": {"regex": "a"}, "guided_json": {}, "guided_regex": "a", "guided_choice": ["a"],
    "guided_grammar": "x", "guided_json_object": True, "allowed_token_ids": [1], "bad_words": ["x"],
    "thinking_token_budget": 0, "truncate_prompt_tokens": 5,
    "repetition_detection": {"min_count": 2}, "custom_logit_processor": "x",
    "custom_params": {"a": 1}, "lora_path": "x", "return_hidden_states": True,
    "use_beam_search": True, "length_penalty": 2, "spaces_between_special_tokens": False, "echo": True,
    "documents": [{"t": "x"}], "input_ids": [1, 2], "chat_template": "{{ x }}",
}  # fmt: skip


@pytest.mark.parametrize("name", UNSERVED)
def test_a_field_that_constrains_the_output_and_is_not_served_is_refused_by_name(name: str) -> None:
    body = error_body(DIALECT, {**HELLO, name: UNSERVED[name]})
    assert body["error"]["param"].split(".")[0] == name
    assert body["error"]["code"] == "unsupported_parameter"
    assert body["error"]["type"] == "invalid_request_error"
    assert name in body["error"]["message"]


@pytest.mark.parametrize("name", sorted({*openai_common.NOT_SERVED, *openai_chat.NOT_SERVED}))
def test_no_name_in_the_tables_of_what_is_not_served_gets_through(name: str) -> None:
    assert (refusal(DIALECT, {**HELLO, name: {"x": "y"}}).param or "").split(".")[0] == name


def test_values_that_ask_for_nothing_pass() -> None:
    harmless = {
        "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}, "functions": [],
        "modalities": ["text"], "response_format": {"type": "text"}, "bad_words": [], "thinking_token_budget": -1,
        "use_beam_search": False, "return_token_ids": False, "spaces_between_special_tokens": True, "regex": "",
    }  # fmt: skip
    ignored = {
        "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": {"type": "content"},
        "verbosity": "low", "safety_identifier": "s", "surprise": [1], "return_cached_tokens_details": False,
    }  # fmt: skip
    assert ask_of(**harmless, **ignored) == ask_of()


@pytest.mark.parametrize(
    ("choice", "tools", "param", "code", "message"),
    [
        ("required", [TOOL], "tool_choice", "unsupported_value", None),
        ({"type": "function", "function": {"name": "tool_0"}}, [TOOL], "tool_choice", "unsupported_value", None),
        ({"type": "custom", "custom": {"name": "x"}}, [TOOL], "tool_choice", "unsupported_value", None),
        ("required", [], "tool_choice", "invalid_value", "Tools cannot be empty if tool choice is set to required."),
        (
            {"type": "function", "function": {"name": "x"}},
            [],
            "tool_choice",
            "invalid_value",
            "Tools cannot be empty if tool choice is set to a specific tool.",
        ),
        (
            {"type": "function", "function": {"name": "x"}},
            [TOOL],
            "tool_choice",
            "invalid_value",
            "Tool 'x' not found in tools list.",
        ),
        ("any", [TOOL], "tool_choice", "invalid_value", None),
        ({"type": "function"}, [TOOL], "tool_choice.function.name", "invalid_value", None),
        ({"type": "x"}, [TOOL], "tool_choice.type", "invalid_value", None),
        (5, [TOOL], "tool_choice", "invalid_value", None),
    ],
)
def test_tool_choices_that_cannot_be_kept_are_refused(
    choice: Any, tools: Any, param: str, code: str, message: str | None
) -> None:
    error = refusal(DIALECT, {**HELLO, "tools": tools, "tool_choice": choice})
    assert (error.param, error.code) == (param, code)
    if message is not None:
        assert error.message == message


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([5], "tools.0"),
        ([{"type": "custom", "custom": {"name": "x"}}], "tools.0.type"),
        ([{"type": "function"}], "tools.0.function"),
        ([{"type": "function", "function": {}}], "tools.0.function.name"),
        ([{"type": "function", "function": {"name": ""}}], "tools.0.function.name"),
        ([{"type": "function", "function": {"name": 5}}], "tools.0.function.name"),
        ([{"type": "function", "function": {"name": "f", "strict": "yes"}}], "tools.0.function.strict"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools.0.function.parameters"),
        ([TOOL, TOOL], "tools.1.function.name"),
        ({}, "tools"),
        *(
            ([{"type": "function", "function": {"name": "f", "parameters": schema}}], "tools.0.function.parameters")
            for schema in (
                {"type": "strnig"},
                {"type": 5},
                {"properties": []},
                {"properties": {"a": 5}},
                {"required": "a"},
                {"required": [1]},
                {"anyOf": {}},
                {"items": {"enum": 5}},
            )
        ),
    ],
)
def test_bad_tools_are_named_by_their_path(tools: Any, param: str) -> None:
    assert refusal(DIALECT, {**HELLO, "tools": tools}).param == param


def test_a_schema_that_nests_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert refusal(DIALECT, {**HELLO, "tools": [tool]}).param == "tools.0.function.parameters"


def test_tools_without_a_parser_are_refused_unless_the_choice_is_none() -> None:
    bare = evolve(MODEL, tool_call_parser=None)
    assert refusal(DIALECT, {**HELLO, "tools": [TOOL]}, bare).param == "tools"
    assert not parse(DIALECT, {**HELLO, "tools": [TOOL], "tool_choice": "none"}, bare).asks[0].form.parse_tools


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        ([5], "messages.0"),
        ([{}], "messages.0.role"),
        ([{"role": "function", "content": "x", "name": "f"}], "messages.0.role"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": ["x"]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}], "messages.0.content.0"),
        ([{"role": "tool", "content": "x"}], "messages.0.tool_call_id"),
        ([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}], "messages.0.function_call"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "messages.0.tool_calls.0.function"),
        ([{"role": "assistant", "tool_calls": [{"type": "x"}]}], "messages.0.tool_calls.0.type"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages.0.tool_calls"),
        *(
            (
                [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}],
                "messages.0.tool_calls.0.function.arguments",
            )
            for arguments in ("{", "[]", "NaN", '{"a": NaN}', "[" * 10**5, '{"a":' * 200 + "1" + "}" * 200, 5, [1])
        ),
    ],
)
def test_a_bad_message_is_named_by_its_path(messages: Any, param: str) -> None:
    assert refusal(DIALECT, {"messages": messages}).param == param


def test_arguments_of_a_past_call_are_text_or_the_object_itself() -> None:
    def arguments(given: object) -> Any:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
        (ask,) = parse(DIALECT, {"messages": [{"role": "assistant", "tool_calls": [call]}, *HELLO["messages"]]}).asks
        assert isinstance(ask.prompt, Chat)
        return ask.prompt.messages[0]["tool_calls"][0]["arguments"]

    assert arguments({"a": {"b": [1.5, None]}}) == arguments('{"a": {"b": [1.5, null]}}') == {"a": {"b": [1.5, None]}}
    assert arguments({"a": "\ud800"}) == {"a": "\ufffd"}
    assert arguments({}) == arguments("") == {}


def test_a_name_goes_with_its_message() -> None:
    named = {"role": "user", "content": "x", "name": "Ann\ud800"}
    result = {"role": "tool", "content": "x", "tool_call_id": "c", "name": "f"}
    (ask,) = parse(DIALECT, {"messages": [named, result, {**named, "name": None}]}).asks
    assert isinstance(ask.prompt, Chat)
    assert [message.get("name") for message in ask.prompt.messages] == ["Ann\ufffd", "f", None]
    assert "name" not in ask.prompt.messages[2]
    assert refusal(DIALECT, {"messages": [{**named, "name": 5}]}).param == "messages.0.name"


def test_the_words_about_messages_are_sglangs() -> None:
    def message(content: Any) -> str:
        return refusal(DIALECT, {"messages": content}).message

    assert message([]) == "Messages cannot be empty."
    call = {"function": {"name": "f", "arguments": "nope"}}
    assert message([{"role": "assistant", "tool_calls": [call]}]).endswith("function.arguments must be valid JSON.")
    call = {"function": {"name": "f", "arguments": "[1]"}}
    assert message([{"role": "assistant", "tool_calls": [call]}]).endswith("function.arguments must be a JSON object.")
    part = {"type": "image_url", "image_url": {}}
    assert message([{"role": "user", "content": [part]}]) == (
        "Model only supports text input; received unsupported content type 'image_url'."
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1), ("temperature", -0.1), ("top_p", 0), ("top_p", 1.1), ("min_p", 1.5), ("top_k", -2),
        ("frequency_penalty", 3), ("presence_penalty", -3), ("repetition_penalty", 0), ("n", 0), ("n", 129),
        ("max_tokens", 0), ("max_completion_tokens", -1), ("min_tokens", -1), ("top_logprobs", 21),
        ("top_logprobs", 1), ("stop", ["a"] * 33), ("stop", ["a", ""]), ("stop_token_ids", [1000]),
        ("stop_token_ids", [-1]), ("reasoning_effort", "extreme"), ("reasoning_effort", 1.0),
        ("stream_options", {"include_usage": True}), ("rid", "x" * 257), ("request_id", "x" * 257),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    error = refusal(DIALECT, {**HELLO, field: value})
    assert error.param == field
    assert error.status == 400


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert refusal(DIALECT, {**HELLO, "min_tokens": 5, "max_tokens": 4}).param == "min_tokens"


WRONG_TYPES = {
    "temperature": "0.7", "top_p": True, "n": 1.0, "seed": "1", "stop": 5, "stream": 1, "logprobs": "true",
    "max_tokens": "5", "max_completion_tokens": 1.5, "top_k": "1", "min_p": [], "min_tokens": "1",
    "stop_token_ids": "7", "ignore_eos": 1, "skip_special_tokens": "no", "tools": "x", "tool_choice": 1,
    "parallel_tool_calls": 0, "response_format": "text", "stream_options": True, "metadata": {"a": 1},
    "continue_final_message": "x", "separate_reasoning": 1, "stream_reasoning": "x", "reasoning_effort": True,
    "reasoning": "high", "thinking": 5, "chat_template_kwargs": [], "priority": "high", "rid": 5, "model": 5,
    "frequency_penalty": "0", "messages": {}, "include_stop_str_in_output": 1, "top_logprobs": "1",
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG_TYPES)
def test_a_wrong_type_is_refused_by_name_and_never_converted(field: str) -> None:
    error = refusal(DIALECT, {**HELLO, field: WRONG_TYPES[field]})
    assert (error.param or "").split(".")[0] == field
    assert (error.status, error.code) == (400, "invalid_value")


def test_nested_fields_are_named_by_dotted_paths() -> None:
    def param(**more: Any) -> str | None:
        return refusal(DIALECT, {**HELLO, **more}).param

    assert param(stream=True, stream_options={"include_usage": 1}) == "stream_options.include_usage"
    assert param(stop=["a", 5]) == "stop.1"
    assert param(chat_template_kwargs={"enable_thinking": "no"}) == "chat_template_kwargs.enable_thinking"
    assert param(reasoning={"effort": "wild"}) == "reasoning.effort"
    assert param(thinking={"type": "maybe"}) == "thinking.type"
    assert param(metadata={"k": 1}) == "metadata.k"


def test_an_unknown_model_is_a_404_and_a_known_name_is_echoed() -> None:
    error = refusal(DIALECT, {**HELLO, "model": "gpt-9"})
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    for sent, told in (("glm", "glm"), ("/models/glm", "/models/glm"), ("default", "default"), ("", "glm")):
        assert whole(DIALECT, {**HELLO, "model": sent}, one_by_one([(0, 0, PLAIN)]))["model"] == told


def test_a_prompt_beyond_the_context_is_told_in_the_words_agents_look_for() -> None:
    error = ContextOverflow("x", prompt_tokens=5000, requested_tokens=None, context_tokens=4096)
    body = DIALECT.error(error, 400, "r")
    assert body["error"]["code"] == "context_length_exceeded"
    assert body["error"]["param"] == "messages"
    assert "maximum context length is 4096 tokens" in body["error"]["message"]
    assert "5000" in body["error"]["message"]
    error = ContextOverflow("x", prompt_tokens=4000, requested_tokens=200, context_tokens=4096)
    message = DIALECT.error(error, 400, "r")["error"]["message"]
    assert "maximum context length is 4096 tokens" in message
    assert "4000" in message
    assert "200" in message


def test_a_full_queue_and_a_fault_have_openais_shape() -> None:
    assert DIALECT.error(QueueFull(), 503, "r") == {
        "error": {
            "message": "The request queue is full.",
            "type": "service_unavailable_error",
            "param": None,
            "code": "server_is_overloaded",
        }
    }
    fault = DIALECT.error(EngineFailure("/secret/path"), 500, "r")["error"]
    assert fault == {"message": "Internal server error", "type": "server_error", "param": None, "code": None}


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------

PLAIN = Script(
    (Token(20, b"Hel", -0.5, text="Hel"), Token(21, b"lo", -0.25, text="lo"), Token(EOS, b"", -0.1)),
    Finish("stop", EOS),
)
THINKS_AND_CALLS = Script(
    (
        Token(20, b"hm", -0.5, reasoning="hm"),
        Token(21, b"</think>", -0.5),
        Token(22, b"Ok", -0.5, text="Ok"),
        Token(23, b"<tool_call>", -0.5),
        Token(24, b"tool_0", -0.5, tool_calls=(ToolCallDelta(0, "tool_0", "{"),)),
        Token(25, b"x", -0.5, tool_calls=(ToolCallDelta(0, None, '"a": 1}'), ToolCallDelta(1, "tool_1", "{}"))),
        Token(EOS, b"", -0.1),
    ),
    Finish("stop", EOS),
)


def test_a_whole_answer_reads_like_this() -> None:
    assert whole(DIALECT, HELLO, one_by_one([(0, 0, PLAIN)])) == {
        "id": "chatcmpl-" + "f" * 32,
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "glm",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "refusal": None,
                    "reasoning_content": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": EOS,
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 0},
            "reasoning_tokens": 0,
        },
        "system_fingerprint": None,
        "metadata": {"weight_version": "default"},
    }


def test_a_stream_goes_role_reasoning_content_calls_finish_usage_done() -> None:
    body = {**HELLO, "tools": [TOOL], "stream_options": {"include_usage": True}}
    chunks = streamed(DIALECT, body, one_by_one([(0, 0, THINKS_AND_CALLS)]))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    first, second = (call["id"] for delta in deltas for call in delta.get("tool_calls", []) if "id" in call)
    assert deltas == [
        {"reasoning_content": None, "role": "assistant", "content": ""},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"reasoning_content": None, "content": "Ok"},
        {"reasoning_content": None, "tool_calls": [_call(0, first, "tool_0")]},
        {"reasoning_content": None, "tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"reasoning_content": None, "tool_calls": [{"index": 0, "function": {"arguments": '"a": 1}'}}]},
        {"reasoning_content": None, "tool_calls": [_call(1, second, "tool_1")]},
        {"reasoning_content": None, "tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {"reasoning_content": None},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 8 + ["tool_calls"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 7
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-" + "f" * 32, 1_700_000_000, "glm")
    }
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def _call(index: int, call_id: str, name: str) -> dict[str, Any]:
    assert call_id.startswith("call_")
    assert len(call_id) == 29
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}


def test_without_include_usage_no_chunk_has_usage() -> None:
    assert all("usage" not in chunk for chunk in streamed(DIALECT, HELLO, one_by_one([(0, 0, PLAIN)])))


def test_continuous_usage_counts_up_on_every_chunk_with_tokens() -> None:
    body = {**HELLO, "stream_options": {"continuous_usage_stats": True, "include_usage": True}}
    chunks = streamed(DIALECT, body, one_by_one([(0, 0, PLAIN)]))
    assert chunks[0]["usage"] is None
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks[1:]] == [1, 2, 3, 3]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks[1:]} == {3}


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_ids_joined_from_a_stream_are_the_whole_answers_and_as_many_as_usage_counts(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    body = {**HELLO, "n": n, "tools": [TOOL], "return_token_ids": True}
    by_choice = [(0, choice, data.draw(scripts(chat=True))) for choice in range(n)]
    answer = whole(DIALECT, body, one_by_one(by_choice))
    chunks = streamed(DIALECT, body, data.draw(splits(by_choice)))
    ids: list[list[int]] = [[] for _ in range(n)]
    for chunk in chunks:
        ids[chunk["choices"][0]["index"]] += chunk["choices"][0]["token_ids"]
    assert ids == [[token.token_id for token in script.tokens] for _, _, script in by_choice]
    assert [choice["token_ids"] for choice in answer["choices"]] == ids
    assert [choice["response_token_ids"] for choice in answer["choices"]] == ids
    assert answer["usage"]["completion_tokens"] == sum(map(len, ids))
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [list(PROMPT.token_ids)]
    assert answer["prompt_token_ids"] == list(PROMPT.token_ids)


def test_without_return_token_ids_no_ids_are_shown() -> None:
    assert b"token_ids" not in b"".join(frames(DIALECT, HELLO, one_by_one([(0, 0, PLAIN)])))
    assert "token_ids" not in str(whole(DIALECT, HELLO, one_by_one([(0, 0, PLAIN)])))


def test_128_choices_are_one_prompt_and_each_its_own_answer() -> None:
    assert ask_of(n=128).num_choices == 128
    assert refusal(DIALECT, {**HELLO, "n": 129}).param == "n"
    by_choice = [
        (0, choice, Script((Token(20, b"", 0, text=f"text {choice}"),), Finish("length"))) for choice in range(128)
    ]
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    answer = whole(DIALECT, {**HELLO, "n": 128}, one_by_one(by_choice))
    assert [choice["message"]["content"] for choice in answer["choices"]] == [f"text {n}" for n in range(128)]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 128)
    *chunks, last = streamed(DIALECT, {**HELLO, "n": 128, **options}, one_by_one(by_choice))
    texts = [""] * 128
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content") or ""
    assert texts == [f"text {n}" for n in range(128)]
    assert last["usage"] == answer["usage"]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_however_events_are_split_the_stream_joins_to_the_whole_answer(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    logprobs = data.draw(st.booleans())
    body = {
        **HELLO,
        "n": n,
        "tools": [TOOL],
        "logprobs": logprobs,
        "parallel_tool_calls": data.draw(st.booleans()),
        "stream_reasoning": data.draw(st.booleans()),
        "include_reasoning": data.draw(st.booleans()),
        "top_logprobs": 2 if logprobs else 0,
    }
    by_choice = [(0, choice, data.draw(scripts(chat=True))) for choice in range(n)]
    answer = whole(DIALECT, body, data.draw(splits(by_choice, logprobs=logprobs)))
    assert answer == whole(DIALECT, body, one_by_one(by_choice, logprobs=logprobs))
    options = {"stream_options": {"include_usage": True}}
    chunks = streamed(DIALECT, {**body, **options}, data.draw(splits(by_choice, logprobs=logprobs)))
    assert _joined(chunks, n) == _comparable(answer)
    _check_with_the_client(answer, chunks)
    for choice, (_, _, script) in enumerate(by_choice):
        if logprobs:
            entries = answer["choices"][choice]["logprobs"]["content"]
            assert [entry["bytes"] for entry in entries] == [list(token.data) for token in script.tokens]
            assert all(entry["logprob"] >= -9999.0 and len(entry["top_logprobs"]) == 2 for entry in entries)


def _joined(chunks: list[Any], n: int) -> Any:
    """Join a stream's chunks by hand, checking what must come once."""
    *chunks, last = chunks
    choices: list[dict[str, Any]] = [
        {"content": "", "reasoning": "", "calls": {}, "logprobs": [], "end": None, "roles": 0} for _ in range(n)
    ]
    for chunk in chunks:
        (entry,) = chunk["choices"]
        choice, delta = choices[entry["index"]], entry["delta"]
        assert choice["end"] is None
        choice["roles"] += "role" in delta
        choice["content"] += delta.get("content") or ""
        choice["reasoning"] += delta["reasoning_content"] or ""
        for piece in delta.get("tool_calls", []):
            call = choice["calls"].setdefault(piece["index"], {"index": piece["index"], "arguments": ""})
            if "id" in piece:
                assert "id" not in call
                assert piece["function"]["arguments"] == ""
                call |= {"id": piece["id"], "type": piece["type"], "name": piece["function"]["name"]}
            call["arguments"] += piece["function"]["arguments"]
        choice["logprobs"] += (entry["logprobs"] or {"content": []})["content"]
        if entry["finish_reason"] is not None:
            choice["end"] = (entry["finish_reason"], entry["matched_stop"], entry["stop_reason"])
    assert all(choice.pop("roles") == 1 for choice in choices)
    assert all(list(choice["calls"]) == list(range(len(choice["calls"]))) for choice in choices)
    return choices, last["usage"]


def _comparable(answer: Any) -> Any:
    choices = []
    for entry in answer["choices"]:
        message = entry["message"]
        assert message["reasoning"] == message["reasoning_content"]
        assert message.get("tool_calls") != []
        calls = {
            call["index"]: {
                "index": call["index"],
                "arguments": call["function"]["arguments"],
                "id": call["id"],
                "type": "function",
                "name": call["function"]["name"],
            }
            for call in message.get("tool_calls", [])
        }
        choices.append(
            {
                "content": message["content"],
                "reasoning": message["reasoning_content"] or "",
                "calls": calls,
                "logprobs": (entry["logprobs"] or {"content": []})["content"],
                "end": (entry["finish_reason"], entry["matched_stop"], entry["stop_reason"]),
            }
        )
    return choices, answer["usage"]


def _check_with_the_client(answer: Any, chunks: list[Any]) -> None:
    """Read both with the openai client's own types and accumulate the stream with its own helper."""
    reasons = [entry["finish_reason"] for entry in answer["choices"]]
    if "abort" in reasons:  # an extension that the client's strict enum does not have
        return
    told = ChatCompletion.model_validate(answer, strict=True)
    state = ChatCompletionStreamState(input_tools=omit, response_format=omit)
    if "length" in reasons:
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk, strict=True)
        return
    for chunk in chunks:
        list(state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True)))
    final = state.get_final_completion()
    assert final.usage == told.usage
    for mine, theirs in zip(told.choices, final.choices, strict=True):
        assert theirs.message.role == "assistant"
        assert theirs.message.content == mine.message.content
        assert theirs.finish_reason == mine.finish_reason
        got = [(call.id, call.function.name, call.function.arguments) for call in theirs.message.tool_calls or []]
        want = [(call.id, call.function.name, call.function.arguments) for call in mine.message.tool_calls or []]  # type: ignore[union-attr]
        assert got == want


def test_role_chunks_come_first_and_in_rising_order() -> None:
    by_choice = [(0, choice, PLAIN) for choice in (2, 0, 1)]
    chunks = streamed(DIALECT, {**HELLO, "n": 3}, one_by_one(by_choice))
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in chunks[:3])


def test_usage_counts_the_prompt_once_and_sums_the_choices() -> None:
    answer = whole(DIALECT, {**HELLO, "n": 2}, one_by_one([(0, 0, PLAIN), (0, 1, PLAIN)]))
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 6)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    ends = [
        (0, Ended(choice, Finish("length"), Usage(3, 1, cached_tokens=cached))) for choice, cached in ((1, 2), (0, 0))
    ]
    answer = whole(DIALECT, {**HELLO, "n": 2}, ends)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("finish", "arguments", "reason"),
    [
        (Finish("stop", EOS), "{}", "tool_calls"),
        (Finish("stop", EOS), '{"a": ', "stop"),
        (Finish("length"), "{}", "length"),
        (Finish("abort", message="Aborted"), "{}", "abort"),
        (Finish("stop", EOS), None, "stop"),
    ],
)
def test_tool_calls_is_the_reason_only_after_a_natural_stop_with_a_complete_call(
    finish: Finish, arguments: str | None, reason: str
) -> None:
    calls = () if arguments is None else (ToolCallDelta(0, "tool_0", arguments),)
    script = Script((Token(20, b"x", 0, tool_calls=calls),), finish)
    events = one_by_one([(0, 0, script)])
    body = {**HELLO, "tools": [TOOL]}
    assert whole(DIALECT, body, events)["choices"][0]["finish_reason"] == reason
    assert streamed(DIALECT, body, events)[-1]["choices"][0]["finish_reason"] == reason


def test_a_stop_within_the_second_of_two_calls_is_an_ordinary_stop() -> None:
    calls = (ToolCallDelta(0, "tool_0", "{}"), ToolCallDelta(1, "tool_1", '{"a": '))
    events = one_by_one([(0, 0, Script((Token(20, b"x", 0, tool_calls=calls),), Finish("stop", EOS)))])
    body = {**HELLO, "tools": [TOOL]}
    assert whole(DIALECT, body, events)["choices"][0]["finish_reason"] == "stop"
    assert streamed(DIALECT, body, events)[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_call_cut_by_the_length_keeps_its_partial_arguments() -> None:
    script = Script((Token(20, b"x", 0, tool_calls=(ToolCallDelta(0, "tool_0", '{"a": "b'),)),), Finish("length"))
    answer = whole(DIALECT, {**HELLO, "tools": [TOOL]}, one_by_one([(0, 0, script)]))
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "b'


def test_without_parallel_tool_calls_only_the_first_call_is_answered() -> None:
    body = {**HELLO, "tools": [TOOL], "parallel_tool_calls": False}
    answer = whole(DIALECT, body, one_by_one([(0, 0, THINKS_AND_CALLS)]))
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == ["tool_0"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_ids_of_calls_differ_between_choices_calls_and_requests_of_one_rid() -> None:
    body = {**HELLO, "tools": [TOOL], "n": 2, "rid": "same"}
    events = one_by_one([(0, 0, THINKS_AND_CALLS), (0, 1, THINKS_AND_CALLS)])
    answer = whole(DIALECT, body, events)
    ids = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4
    later = DIALECT.parse(Call(body, {}, "/", "e" * 32, 1_700_000_000), MODEL)
    _, value = later.encoder.body([Collected(PROMPT, tuple(event for _, event in events))])
    assert ids[0] not in json.dumps(value)


def test_reasoning_that_is_not_streamed_comes_in_one_piece_before_the_answer() -> None:
    script = Script(
        (
            Token(20, b"a", 0, reasoning="a"),
            Token(21, b"b", 0, reasoning="b"),
            Token(22, b"c", 0, text="c"),
        ),
        Finish("stop", EOS),
    )
    body = {**HELLO, "stream_reasoning": False}
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed(DIALECT, body, one_by_one([(0, 0, script)]))]
    assert [delta["reasoning_content"] for delta in deltas] == [None, "ab", None, None]
    calls = Script((*script.tokens[:2], Token(22, b"", 0, tool_calls=(ToolCallDelta(0, "f", ""),))), Finish("length"))
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed(DIALECT, body, one_by_one([(0, 0, calls)]))]
    assert [delta["reasoning_content"] for delta in deltas] == [None, "ab", None, None]
    assert "tool_calls" in deltas[2]
    only = Script(script.tokens[:2], Finish("length"))
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed(DIALECT, body, one_by_one([(0, 0, only)]))]
    assert [delta["reasoning_content"] for delta in deltas] == [None, "ab", None]


def test_logprob_entries_of_hidden_tokens_ride_on_the_next_chunk_and_none_is_lost() -> None:
    body = {**HELLO, "logprobs": True, "include_reasoning": False}
    chunks = streamed(DIALECT, body, one_by_one([(0, 0, THINKS_AND_CALLS)], logprobs=True))
    sizes = [len((chunk["choices"][0]["logprobs"] or {"content": []})["content"]) for chunk in chunks]
    assert sizes == [0, 3, 2, 0, 1, 0, 0, 1]
    assert chunks[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_matched_stop_is_told_under_both_names_and_an_end_of_the_models_under_one() -> None:
    def end(finish: Finish) -> tuple[Any, Any]:
        model = evolve(MODEL, chat_stop=("<|im_end|>",))
        (choice,) = whole(DIALECT, HELLO, [(0, Ended(0, finish, Usage(3, 0)))], model)["choices"]
        return choice["matched_stop"], choice["stop_reason"]

    assert end(Finish("stop", "END")) == ("END", "END")
    assert end(Finish("stop", 99)) == (99, 99)
    assert end(Finish("stop", EOS)) == (EOS, None)
    assert end(Finish("stop", "<|im_end|>")) == ("<|im_end|>", None)
    assert end(Finish("length")) == (None, None)


@pytest.mark.parametrize(
    ("finish", "kind"),
    [
        (Finish("error", message="device lost"), EngineFailure),
        (Finish("abort", message="full", status=503), Unavailable),
        (Finish("abort", message="too long", status=400), InvalidRequest),
        (Finish("abort", message="out of memory", status=500), EngineFailure),
    ],
)
def test_an_end_with_a_status_fails_the_call(finish: Finish, kind: type[Exception]) -> None:
    events = [(0, Ended(0, finish, Usage(3, 0)))]
    with pytest.raises(kind):
        whole(DIALECT, HELLO, events)
    with pytest.raises(kind):
        frames(DIALECT, HELLO, events)


def test_a_stream_that_fails_ends_with_an_error_frame_and_done() -> None:
    encoder = parse(DIALECT, {**HELLO, "stream": True}).encoder
    (error,) = values_of(encoder.failed(Draining()))
    assert error["error"]["type"] == "service_unavailable_error"
    (error,) = values_of(encoder.failed(EngineFailure("secret")))
    assert error == {"error": {"message": "Internal server error", "type": "server_error", "param": None, "code": None}}


def test_an_abort_by_a_user_is_an_answer_with_reason_abort() -> None:
    script = Script((Token(20, b"x", 0, text="part"),), Finish("abort", message="Aborted"))
    (choice,) = whole(DIALECT, HELLO, one_by_one([(0, 0, script)]))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("part", "abort")


SWITCHES = st.fixed_dictionaries(
    {
        "include_reasoning": st.booleans(),
        "stream_reasoning": st.booleans(),
        "return_token_ids": st.booleans(),
        "logprobs": st.booleans(),
        "stream_options": st.sampled_from(
            [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
        ),
        "rid": st.sampled_from([None, 'a "rid" \0 \\u0000']),
    }
)


@given(scripts(chat=True), scripts(chat=True), SWITCHES, st.data())
def test_a_chunk_that_is_not_encoded_whole_has_the_bytes_of_one_that_is(
    first: Script, second: Script, switches: dict[str, Any], data: st.DataObject
) -> None:
    body = {**HELLO, "n": 2, **{name: value for name, value in switches.items() if value is not None}}
    events = data.draw(splits([(0, 0, first), (0, 1, second)], logprobs=switches["logprobs"]))
    quick = frames(DIALECT, body, events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChatEncoder, "_plain", lambda self, event: None)
        assert frames(DIALECT, body, events) == quick


def test_a_plain_frame_is_filled_with_any_text() -> None:
    plain = Plain.around(frame({"id": MARK, "text": MARK, "again": MARK, "usage": None}), 2)
    for text in ("", "a", MARK, '"\\\n', "\u2028𠮷", "\ud7ff"):
        assert plain.of(text) == frame({"id": MARK, "text": text, "again": text, "usage": None})


def test_a_delta_of_both_kinds_and_a_late_text_lose_nothing_of_their_own() -> None:
    logprob = (TokenLogprob(1, -0.5, b"a"),)
    events = [Delta(0, (1,), "t", "r"), Delta(0, (2,), logprobs=logprob), Delta(0, (), "late")]
    end = Ended(0, Finish("length"), Usage(3, 2))
    chunks = streamed(DIALECT, {**HELLO, "logprobs": True}, [(0, event) for event in (*events, end)])
    _, reasoned, said, late, _ = (chunk["choices"][0] for chunk in chunks)
    assert (reasoned["delta"]["reasoning"], said["delta"]["content"]) == ("r", "t")
    assert late["delta"]["content"] == "late"
    assert len(late["logprobs"]["content"]) == 1
