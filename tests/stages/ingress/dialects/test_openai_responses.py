"""What a body of the Responses API asks for: sampling, tools, refusals by name, and an agent's whole body."""

from typing import Any

import pytest
from attrs import evolve

from stages.ingress.dialects.openai_responses import DIALECT
from stages.messages import Ask, Chat
from tests.stages.ingress.dialects.kit import MODEL, call_of, error_body, parse, refusal

LOOK = {"type": "function", "name": "look", "description": "See.", "parameters": {"type": "object", "properties": {}}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
HOSTED = [
    {"type": name}
    for name in ("web_search", "web_search_preview", "file_search", "computer_use_preview", "code_interpreter",
                 "image_generation", "mcp", "local_shell", "shell", "apply_patch", "tool_search", "new_and_unknown")
]  # fmt: skip
CODEX: dict[str, Any] = {
    "model": "glm",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: on."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Let me look."}], "content": None,
         "encrypted_content": "gAAAAABforeign"},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "c1"},
        {"type": "custom_tool_call", "status": "completed", "call_id": "c2", "name": "apply_patch", "input": "*** x"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a.py"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done."},
        {"type": "local_shell_call", "call_id": "c3", "status": "completed", "action": {"type": "exec"}},
        {"type": "web_search_call", "status": "completed"},
    ],
    "tools": [LOOK, PATCH, {"type": "namespace", "name": "mcp", "description": "d", "tools": [LOOK]}, *HOSTED],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "high", "summary": "auto"},
    "store": False,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "include": ["reasoning.encrypted_content"],
    "service_tier": "priority",
    "prompt_cache_key": "conversation",
    "text": {"verbosity": "medium"},
    "client_metadata": {"x": "y"},
    "access_programs": ["a"],
}  # fmt: skip


def ask(more: dict[str, Any]) -> Ask:
    (one,) = parse(DIALECT, {"input": "hi", **more}).asks
    return one


def chat(more: dict[str, Any]) -> Chat:
    prompt = ask(more).prompt
    assert isinstance(prompt, Chat)
    return prompt


def test_an_agents_whole_body_is_understood() -> None:
    parsed = parse(DIALECT, CODEX)
    (asked,) = parsed.asks
    assert isinstance(asked.prompt, Chat)
    assert parsed.stream
    assert [tool.name for tool in asked.prompt.tools] == ["look", "patch", "mcp__look"]
    assert asked.prompt.template == {"reasoning_effort": "high", "enable_thinking": True}
    assert asked.session == "conversation"
    assert asked.request_id == "resp_" + "f" * 32
    assert [message["role"] for message in asked.prompt.messages] == [
        "system", "developer", "user", "assistant", "tool", "tool",
    ]  # fmt: skip
    assert asked.prompt.messages[3] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Let me look.",
        "tool_calls": [
            {"id": "c1", "name": "shell", "arguments": {"command": ["ls"]}},
            {"id": "c2", "name": "apply_patch", "arguments": {"input": "*** x"}},
        ],
    }


def test_absent_and_null_fields_ask_for_the_defaults() -> None:
    plain = ask({})
    assert plain.sampling == MODEL.default_sampling
    assert plain.limits.max_new_tokens is None
    assert plain.form.parse_reasoning
    assert not plain.form.parse_tools
    nulls = dict.fromkeys(
        ("model", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "text",
         "reasoning", "include", "store", "previous_response_id", "conversation", "prompt", "background", "truncation",
         "metadata", "stream", "stream_options", "temperature", "top_p", "top_logprobs", "user")
    )  # fmt: skip
    assert ask(nulls) == plain


def test_values_that_ask_for_nothing_are_fine() -> None:
    nothing = {"store": False, "background": False, "previous_response_id": "", "top_logprobs": 0, "n": 1,
               "truncation": "disabled", "text": {"format": {"type": "text"}}, "include": ["web_search_call.results"],
               "frequency_penalty": 0, "tool_choice": "none", "tools": [], "unknown_field": [1]}  # fmt: skip
    assert ask(nothing) == ask({})


def test_sampling_and_limits_are_taken() -> None:
    taken = ask({"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 5, "max_output_tokens": 1, "stop": ["x"]})
    assert (taken.sampling.temperature, taken.sampling.top_p, taken.sampling.top_k, taken.sampling.seed) == (
        0.5, 0.9, 3, 5,
    )  # fmt: skip
    assert (taken.limits.max_new_tokens, taken.limits.stop) == (1, ("x",))


@pytest.mark.parametrize(
    ("more", "template"),
    [
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning": {"effort": "low", "summary": None}}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning": {"summary": "auto"}}, {}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
def test_thinking_is_read_as_in_every_dialect(more: dict[str, Any], template: dict[str, Any]) -> None:
    assert chat(more).template == template


def test_logprobs_of_the_text_are_asked_for_by_include() -> None:
    wanted = ask({"include": ["message.output_text.logprobs"]})
    assert (wanted.logprobs, wanted.num_top_logprobs) == (True, 0)
    best = ask({"include": ["x", "message.output_text.logprobs"], "top_logprobs": 20})
    assert (best.logprobs, best.num_top_logprobs) == (True, 20)
    assert not ask({"top_logprobs": 0}).logprobs


@pytest.mark.parametrize("name", ["request_id", "rid"])
def test_a_clients_own_id_names_the_response_as_it_stands(name: str) -> None:
    assert ask({name: "mine"}).request_id == "mine"
    assert refusal(DIALECT, {"input": "hi", name: "x" * 300}).param == name


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"store": True}, "store", "unsupported_parameter"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
        ({"top_logprobs": 1}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": -1, "include": ["message.output_text.logprobs"]}, "top_logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"bad_words": ["x"]}, "bad_words", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
        ({"presence_penalty": 1}, "presence_penalty", "unsupported_parameter"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "unsupported_parameter"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "unsupported_parameter"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids", "unsupported_parameter"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format", "unsupported_value"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format", "unsupported_value"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        ({"text": "x"}, "text", "invalid_value"),
        ({"truncation": "middle"}, "truncation", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"text": {"verbosity": "abort"}}, "text.verbosity", "invalid_value"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", "invalid_value"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": "high"}, "reasoning", "invalid_value"),
        ({"include": "all"}, "include", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_value"),
        ({"input": None}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_value"),
    ],
)
def test_what_is_wrong_or_not_served_is_named(more: dict[str, Any], param: str, code: str) -> None:
    error = refusal(DIALECT, {"input": "hi", **more})
    assert (error.status, error.param, error.code) == (400, param, code)


def test_an_unknown_model_is_a_404() -> None:
    error = refusal(DIALECT, {"input": "hi", "model": "gpt"})
    assert (error.status, error.code) == (404, "model_not_found")


def test_errors_have_openais_shape() -> None:
    assert error_body(DIALECT, {"input": "hi", "store": True}) == {
        "error": {
            "message": "store is not supported by this server.",
            "type": "invalid_request_error",
            "param": "store",
            "code": "unsupported_parameter",
        }
    }


# --- tools ---


def test_a_function_is_shown_without_what_the_model_need_not_know() -> None:
    more = {"strict": True, "defer_loading": True, "async": True, "output_schema": {}, "allowed_callers": ["direct"]}
    (tool,) = chat({"tools": [{**LOOK, **more}]}).tools
    assert tool.definition == {"name": "look", "description": "See.", "parameters": LOOK["parameters"]}
    assert tool.parameters == LOOK["parameters"]


def test_a_custom_tool_is_shown_as_a_function_of_one_string_that_tells_its_grammar() -> None:
    (tool,) = chat({"tools": [PATCH]}).tools
    assert tool.parameters is not None
    assert tool.parameters["properties"]["input"]["type"] == "string"
    assert tool.parameters["required"] == ["input"]
    assert tool.definition["description"] == 'Edit files.\n\nThe input must match this lark grammar:\nstart: "x"'


def test_the_tools_of_a_request_are_those_its_calls_are_read_by() -> None:
    asked = ask({"tools": [LOOK, PATCH]})
    assert asked.form.parse_tools
    assert isinstance(asked.prompt, Chat)
    assert asked.form.tools == asked.prompt.tools


def test_hosted_tools_alone_are_no_tools() -> None:
    asked = ask({"tools": HOSTED, "tool_choice": "auto"})
    assert not asked.form.parse_tools
    assert asked == ask({})


def test_no_tool_is_shown_where_none_may_be_called() -> None:
    assert ask({"tools": [LOOK], "tool_choice": "none"}) == ask({})


def test_tools_that_come_with_the_input_are_shown_and_the_later_one_wins() -> None:
    later = {**LOOK, "description": "Later."}
    item = {"type": "additional_tools", "role": "developer", "tools": [later, PATCH]}
    tools = chat({"tools": [LOOK], "input": [item, {"role": "user", "content": "x"}]}).tools
    assert [(tool.name, tool.definition["description"].partition("\n")[0]) for tool in tools] == [
        ("look", "Later."), ("patch", "Edit files."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([5], "tools.0"),
        ([{}], "tools.0.type"),
        ([LOOK, {"type": "function"}], "tools.1.name"),
        ([{"type": "function", "name": ""}], "tools.0.name"),
        ([{"type": "custom", "name": "x" * 129}], "tools.0.name"),
        ([LOOK, LOOK], "tools.1.name"),
        ([LOOK, {"type": "custom", "name": "look"}], "tools.1.name"),
        ([{**LOOK, "parameters": {"type": "thing"}}], "tools.0.parameters"),
        ([{"type": "namespace", "name": "a"}], "tools.0.tools"),
        ([{"type": "namespace", "name": "a", "tools": [LOOK, {"type": "function"}]}], "tools.0.tools.1.name"),
        ([{**PATCH, "format": "text"}], "tools.0.format"),
    ],
)
def test_a_wrong_tool_is_named_by_its_path(tools: list[Any], param: str) -> None:
    assert refusal(DIALECT, {"input": "hi", "tools": tools}).param == param


@pytest.mark.parametrize("tools", [[], [LOOK, PATCH]])
@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "name": "look"}, {"type": "custom", "name": "patch"}, {"type": "web_search"},
     {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}],
)  # fmt: skip
def test_a_choice_that_forces_a_call_is_refused(choice: Any, tools: list[Any]) -> None:
    assert refusal(DIALECT, {"input": "hi", "tools": tools, "tool_choice": choice}).param == "tool_choice"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("maybe", "tool_choice"),
        ({}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "name": "patch"}, "tool_choice"),
        ({"type": "custom", "name": "look"}, "tool_choice"),
        (5, "tool_choice"),
    ],
)
def test_a_choice_that_means_nothing_is_named(choice: Any, param: str) -> None:
    error = refusal(DIALECT, {"input": "hi", "tools": [LOOK, PATCH], "tool_choice": choice})
    assert (error.param, error.code) == (param, "invalid_value")


def test_tools_need_a_parser() -> None:
    model = evolve(MODEL, tool_call_parser=None)
    assert refusal(DIALECT, {"input": "hi", "tools": [LOOK]}, model).param == "tools"
    assert DIALECT.parse(call_of({"input": "hi", "tools": [LOOK], "tool_choice": "none"}), model)
