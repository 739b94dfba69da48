"""The Messages dialect: what a body asks for, what is refused by name, and the answer both ways."""

from typing import Any

import orjson
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import Aborted, BodyTooLarge, ContextOverflow, EngineFailure, InvalidRequest, QueueFull, Unavailable
from stages.ingress.dialect import Collected, Lookup
from stages.ingress.dialects import anthropic_count_tokens
from stages.ingress.dialects.anthropic_messages import DIALECT
from stages.messages import Ask, Chat, Delta, Ended, Finish, ToolCallDelta, Usage
from stages.prompt.segments import as_text
from stages.prompt.templates.glm5 import TEMPLATE
from stages.request import fit
from tests.stages.ingress.dialects import kit
from tests.stages.ingress.dialects.anthropic_kit import events_of, message_of
from tests.stages.ingress.dialects.kit import EOS, MODEL, PROMPT, call_of, error_body, refusal, scripts, splits

COUNT = anthropic_count_tokens.DIALECT
HI: dict[str, Any] = {"model": "glm", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def ask_of(more: dict[str, Any], headers: dict[str, str] | None = None) -> Ask:
    call = call_of({**HI, **more})
    (ask,) = DIALECT.parse(type(call)(call.body, headers or {}, call.path, call.request_id, 0), MODEL).asks
    return ask


def chat_of(more: dict[str, Any]) -> Chat:
    prompt = ask_of(more).prompt
    assert isinstance(prompt, Chat)
    return prompt


def count_of(body: dict[str, Any]) -> Lookup:
    lookup = COUNT.parse(call_of(body), MODEL)
    assert isinstance(lookup, Lookup)
    return lookup


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def stream_of(body: dict[str, Any], events: kit.Events) -> list[dict[str, Any]]:
    return events_of(b"".join(kit.frames(DIALECT, {**HI, **body}, events)))


def both(body: dict[str, Any], events: kit.Events) -> dict[str, Any]:
    """The answer, which is the same streamed and not."""
    whole: dict[str, Any] = kit.whole(DIALECT, {**HI, **body}, events)
    assert message_of(stream_of(body, events)) == whole
    return whole


NATURAL = Finish("stop", EOS)


def generated(*deltas: Delta, finish: Finish = NATURAL, cached: int = 0) -> list[tuple[int, Any]]:
    usage = Usage(len(PROMPT.token_ids), len(deltas), cached)
    return [*((0, delta) for delta in deltas), (0, Ended(0, finish, usage))]


def spoken(**what: Any) -> Delta:
    return Delta(0, (20,), usage=Usage(len(PROMPT.token_ids), 1, what.pop("cached", 0)), **what)


def called(index: int, name: str | None, arguments: str = "") -> Delta:
    return spoken(tool_calls=(ToolCallDelta(index, name, arguments),))


# ---------------------------------------------------------------------------------------------------------------------
# What a body asks for
# ---------------------------------------------------------------------------------------------------------------------


def test_a_plain_message_takes_the_models_defaults_and_its_own_limit() -> None:
    ask = ask_of({})
    assert ask.request_id == "msg_" + "f" * 32
    assert (ask.sampling, ask.limits.max_new_tokens, ask.stream) == (MODEL.default_sampling, 2000, False)
    assert ask.prompt == Chat(({"role": "user", "content": "hi"},), (), {}, continue_final_message=False)
    assert ask.form.parse_reasoning
    assert not ask.form.parse_tools


def test_sampling_stops_and_our_own_extras_are_taken() -> None:
    ask = ask_of(
        {
            "temperature": 1,
            "top_p": 0.5,
            "top_k": 3,
            "min_p": 0.1,
            "seed": 9,
            "stop_sequences": ["a", "b"],
            "stop_token_ids": [5],
            "min_tokens": 2,
            "ignore_eos": True,
            "stream": True,
            "priority": 4,
            "cache_salt": "x",
        }
    )
    sampling = ask.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (1, 0.5, 3, 0.1, 9)
    limits = ask.limits
    assert (limits.stop, limits.stop_token_ids, limits.min_new_tokens) == (("a", "b"), {5}, 2)
    assert (limits.ignore_eos, ask.stream, ask.priority, ask.namespace) == (True, True, 4, "1:x")


def test_system_text_comes_as_a_string_or_as_blocks_and_inline_where_it_stands() -> None:
    first = {"role": "system", "content": "a\nb"}
    assert chat_of({"system": "a\nb"}).messages[0] == first
    assert chat_of({"system": [text("a", cache_control={"type": "ephemeral"}), text("b")]}).messages[0] == first
    assert [message["role"] for message in chat_of({"system": ""}).messages] == ["user"]
    inline = [said("user", text("q")), said("system", text("now")), said("user", text("r"))]
    assert [message["role"] for message in chat_of({"messages": inline}).messages] == ["user", "system", "user"]


@pytest.mark.parametrize("form", ["block of its own", "first line of a string", "inline"])
def test_claude_codes_billing_header_is_no_part_of_the_prompt(form: str) -> None:
    def body(value: str) -> dict[str, Any]:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={value};"
        if form == "inline":
            return {"messages": [said("system", text(f"{line}\nBe brief.")), *HI["messages"]]}
        rest = text("Be brief.", cache_control={"type": "ephemeral"})
        return {"system": [text(line), rest] if form == "block of its own" else f"{line}\nBe brief."}

    assert chat_of(body("1f2e")) == chat_of(body("93ab")) == chat_of({"system": "Be brief."})


def test_a_turn_with_calls_and_its_results_is_rendered_as_the_model_wrote_it() -> None:
    messages = [
        said("user", text("weather?")),
        said(
            "assistant",
            {"type": "thinking", "thinking": "look it up", "signature": None},
            {"type": "redacted_thinking", "data": "xyz"},
            text("Let me see."),
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris", "n": 2}},
            {"type": "tool_use", "id": "t2", "name": "get_weather", "input": {}},
        ),
        said(
            "user",
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": [text("no"), text("city")]},
            {"type": "tool_result", "tool_use_id": "t1", "content": "18C"},
            text("and now?"),
        ),
    ]
    rendered = as_text(TEMPLATE(chat_of({"messages": messages})))
    assert rendered.partition("<|user|>")[2] == (
        "weather?<|assistant|><think>look it up</think>Let me see."
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
        "<arg_key>n</arg_key><arg_value>2</arg_value></tool_call><tool_call>get_weather</tool_call>"
        "<|observation|><tool_response>18C</tool_response><tool_response>Error: no\ncity</tool_response>"
        "<|user|>and now?<|assistant|><think>"
    )


def test_a_turn_of_many_messages_is_read_without_copying_it_for_each() -> None:
    many = 150_000  # the square of which would take minutes
    chat = chat_of({"messages": [{"role": "user", "content": "a"}] * many})
    assert chat.messages == ({"role": "user", "content": "\n".join("a" * many)},)


def test_consecutive_messages_of_one_role_are_one_turn() -> None:
    messages = [
        said("user", text("a")),
        {"role": "user", "content": "b"},
        said("assistant", text("c")),
        said("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        said("user", text("d")),
        said("user", {"type": "tool_result", "tool_use_id": "t"}),
    ]
    assert chat_of({"messages": messages}).messages == (
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "tool_calls": [{"id": "t", "name": "f", "arguments": {}}]},
        {"role": "tool", "content": "", "tool_call_id": "t"},
        {"role": "user", "content": "d"},
    )


def test_a_last_assistant_message_is_continued_after_its_closed_thinking() -> None:
    chat = chat_of({"messages": [*HI["messages"], {"role": "assistant", "content": "The answer is "}]})
    assert chat.continue_final_message
    assert as_text(TEMPLATE(chat)).endswith("<|assistant|><think></think>The answer is")
    empty = chat_of({"messages": [*HI["messages"], {"role": "assistant", "content": ""}]})
    assert empty == chat_of({})
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    error = refusal(DIALECT, {**HI, "messages": [*HI["messages"], said("assistant", call)]})
    assert (error.status, error.param) == (400, "messages.1")


def test_what_anthropics_own_servers_did_in_a_turn_is_left_out_with_its_results() -> None:
    turn = said(
        "assistant",
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "y", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": []},
        text("found"),
    )
    (_, message, _) = chat_of({"messages": [*HI["messages"], turn, *HI["messages"]]}).messages
    assert message == {"role": "assistant", "content": "found"}


def test_tools_reach_the_template_without_what_changes_between_turns() -> None:
    plain = chat_of({"tools": [WEATHER]}).tools
    extras = {"cache_control": {"type": "ephemeral"}, "strict": False, "eager_input_streaming": True, "type": "custom"}
    assert chat_of({"tools": [{**WEATHER, **extras}]}).tools == plain
    assert plain[0].definition == {
        "name": "get_weather",
        "description": "Tells the weather",
        "parameters": WEATHER["input_schema"],
    }
    (untyped,) = chat_of({"tools": [{"name": "f", "input_schema": {"properties": {}}}]}).tools
    assert untyped.definition["parameters"] == {"type": "object", "properties": {}}
    ask = ask_of({"tools": [WEATHER], "tool_choice": {"type": "none"}})
    assert (ask.form.parse_tools, ask.prompt.tools) == (False, ())  # type: ignore[union-attr]


def test_a_deferred_tool_is_listed_where_a_result_refers_to_it() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [
            {"type": "tool_reference", "tool_name": "get_weather"},
            {"type": "tool_reference", "tool_name": "?"},
        ],
    }
    found = {"type": "tool_use", "id": "t", "name": "search", "input": {}}
    body = {
        "tools": [{**WEATHER, "defer_loading": True}, {"name": "search", "input_schema": {}}],
        "messages": [*HI["messages"], said("assistant", found), said("user", result)],
    }
    system, _, rest = as_text(TEMPLATE(chat_of(body))).partition("<|user|>")
    listed = as_text(TEMPLATE(chat_of({"tools": [WEATHER]})))
    line = next(line for line in listed.split("\n") if "get_weather" in line)
    assert "get_weather" not in system
    assert f"<tool_response><tools>\n{line}\n</tools>\n?</tool_response>" in rest


@pytest.mark.parametrize(
    ("thinking", "switches"),
    [
        (None, {}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "adaptive", "display": "summarized"}, {"enable_thinking": True}),
        ({"type": "between_tools"}, {"enable_thinking": True}),
    ],
)
def test_thinking_turns_the_templates_switch(thinking: Any, switches: dict[str, Any]) -> None:
    assert chat_of({"thinking": thinking}).template == switches
    assert chat_of(
        {"thinking": thinking, "output_config": {"effort": "low", "task_budget": {"total": 1}}}
    ).template == {
        **switches,
        "reasoning_effort": "low",
    }
    kwargs = {"enable_thinking": False, "clear_thinking": True}
    assert chat_of({"thinking": thinking, "chat_template_kwargs": kwargs}).template == kwargs


def test_a_session_is_the_one_named_or_claude_codes_or_the_users() -> None:
    user = {"metadata": {"user_id": "user_1_session_2", "more": 1}}
    header = {"x-claude-code-session-id": "s-1"}
    assert ask_of({}).session is None
    assert ask_of(user).session == "user_1_session_2"
    assert ask_of(user, header).session == "s-1"
    assert ask_of({**user, "session_id": "mine"}, header).session == "mine"
    assert ask_of({"metadata": {"user_id": None}}).session is None
    assert ask_of({"metadata": {"user_id": 7}}).session is None
    assert len(ask_of({"metadata": {"user_id": "x" * 5000}}).session or "") == 32


CLAUDE_CODE: dict[str, Any] = {
    "model": "glm",
    "max_tokens": 2000,
    "stream": True,
    "temperature": 1,
    "system": [
        text("x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=00000;"),
        text("You are a coding assistant.", cache_control={"type": "ephemeral", "ttl": "1h"}),
    ],
    "metadata": {"user_id": "user_ab_account__session_cd"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium", "task_budget": {"type": "tokens", "total": 9}},
    "tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "strict": True}],
    "tool_choice": {"type": "auto"},
    "messages": [
        said("user", text("<system-reminder>x</system-reminder>"), text("go", cache_control={"type": "ephemeral"})),
        said(
            "assistant",
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {
                "type": "tool_use",
                "id": "t",
                "name": "get_weather",
                "input": {"city": "x"},
                "caller": {"type": "direct"},
            },
        ),
        said("user", {"type": "tool_result", "tool_use_id": "t", "is_error": False, "content": [text("ok")]}),
        {"role": "system", "content": "The date has changed."},
    ],
    **dict.fromkeys(("service_tier", "speed", "inference_geo", "container", "diagnostics", "cache_control"), "auto"),
    **{key: ["x"] for key in ("user_profile_id", "workspace_id", "betas", "fallbacks", "compaction", "thread")},
    "mcp_servers": [],
    "billing_policy": {"a": 1},
    "something_of_next_year": {"deep": [None]},
}
BETAS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,of-next-year-2027-01-01",
}


def test_every_field_claude_code_sends_is_taken_or_ignored() -> None:
    ask = ask_of(CLAUDE_CODE, BETAS)
    assert ask.stream
    assert ask.prompt.template == {"enable_thinking": True, "reasoning_effort": "medium"}  # type: ignore[union-attr]
    assert count_of(CLAUDE_CODE).works == (ask.prompt,)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused
# ---------------------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"messages": [said("user", 5)]}, "messages.0.content.0"),
    ({"messages": [said("user", {"text": "x"})]}, "messages.0.content.0.type"),
    ({"messages": [said("user", {"type": "text"})]}, "messages.0.content.0.text"),
    ({"messages": [said("user", text("x"), {"type": "image", "source": {}})]}, "messages.0.content.1"),
    ({"messages": [said("user", {"type": "document", "source": {}})]}, "messages.0.content.0"),
    ({"messages": [said("user", {"type": "container_upload"})]}, "messages.0.content.0"),
    ({"messages": [said("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}})]}, "messages.0.content.0"),
    ({"messages": [said("user", {"type": "of_next_year"})]}, "messages.0.content.0"),
    (
        {"messages": [said("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]})]},
        "messages.0.content.0.content.0",
    ),
    ({"messages": [said("user", {"type": "tool_result"})]}, "messages.0.content.0.tool_use_id"),
    ({"messages": [said("assistant", {"type": "tool_result", "tool_use_id": "t"})]}, "messages.0.content.0"),
    ({"messages": [said("assistant", {"type": "tool_use", "id": "t", "name": "f"})]}, "messages.0.content.0.input"),
    ({"system": [{"type": "image"}]}, "system.0"),
    ({"system": 5}, "system"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"stream": 1}, "stream"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": ["x", " "]}, "stop_sequences.1"),
    ({"stop_sequences": ["x"] * 33}, "stop_sequences"),
    ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "immense"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
    ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
    ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
    ({"tools": [{"name": "", "input_schema": {}}]}, "tools.0.name"),
    ({"tools": [{"name": "f", "input_schema": {"type": "thing"}}]}, "tools.0.input_schema"),
    ({"tools": [WEATHER, WEATHER]}, "tools.1.name"),
    ({"tools": [5]}, "tools.0"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"n": 2}, "n"),
    ({"stop": ["x"]}, "stop"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"guided_json": {}}, "guided_json"),
    ({"metadata": "x"}, "metadata"),
    ({"request_timeout": -1}, "request_timeout"),
]


@pytest.mark.parametrize(("more", "param"), REFUSED, ids=[f"{param} {n}" for n, (_, param) in enumerate(REFUSED)])
def test_what_is_wrong_or_not_served_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    body = {**HI, **more}
    error = refusal(DIALECT, body)
    assert (error.status, error.param) == (400, param)
    told = error_body(DIALECT, body)
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert param in told["error"]["message"]
    needs_limit = param == "max_tokens" or more.get("thinking", {}).get("budget_tokens") == 2000
    if not needs_limit:
        assert refusal(COUNT, body).param == param


def test_an_unknown_model_is_named() -> None:
    told = error_body(DIALECT, {**HI, "model": "claude-x"})
    assert told["error"] == {"type": "not_found_error", "message": "The model `claude-x` does not exist."}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("bad", "x"), 400, "invalid_request_error"),
        (BodyTooLarge("large"), 413, "request_too_large"),
        (QueueFull(), 503, "overloaded_error"),
        (EngineFailure("secret"), 500, "api_error"),
        (Aborted(), 500, "api_error"),
    ],
)
def test_errors_have_anthropics_types(error: Exception, status: int, kind: str) -> None:
    told: Any = DIALECT.error(error, status, "req")
    assert (told["type"], told["error"]["type"], told["request_id"]) == ("error", kind, "req")
    assert "secret" not in str(told)


def test_a_prompt_beyond_the_context_is_told_in_the_words_agents_look_for() -> None:
    alone = ContextOverflow("x", prompt_tokens=4096, requested_tokens=9, context_tokens=4096)
    told: Any = DIALECT.error(alone, 400, "req")
    assert told["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 4096 tokens > 4095 maximum",
    }


def test_a_limit_that_the_context_has_no_room_for_is_cut_and_the_end_says_so() -> None:
    ask = ask_of({"max_tokens": 32_000})
    assert ask.limits.max_new_tokens == 32_000
    assert fit(ask, 4000, MODEL) == 96
    with pytest.raises(ContextOverflow):
        fit(ask, 4096, MODEL)
    full = both({"max_tokens": 3}, generated(spoken(text="a"), spoken(text="b"), finish=Finish("length")))
    assert full["stop_reason"] == "model_context_window_exceeded"
    asked = both({"max_tokens": 2}, generated(spoken(text="a"), spoken(text="b"), finish=Finish("length")))
    assert asked == {**full, "stop_reason": "max_tokens"}


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def test_a_stream_has_exactly_these_events_in_this_order() -> None:
    deltas = [
        spoken(reasoning="hm", cached=1),
        spoken(text="Hi"),
        spoken(text=" 😀"),
        called(0, "get_weather"),
        called(0, None, '{"city": '),
        called(0, None, '"Paris"}'),
    ]
    events = stream_of({"tools": [WEATHER]}, generated(*deltas, cached=1))
    shapes = [
        (
            event["type"],
            event.get("index"),
            event.get("delta", {}).get("type") or event.get("content_block", {}).get("type"),
        )
        for event in events
    ]
    assert shapes == [
        ("message_start", None, None),
        ("ping", None, None),
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, "text"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, "tool_use"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 2
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 1
    answer = both({"tools": [WEATHER]}, generated(*deltas, cached=1))
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["content"][0]["signature"]
    assert answer["content"][2]["id"].startswith("toolu_")
    assert answer["content"][2]["input"] == {"city": "Paris"}
    assert answer["id"] == events[0]["message"]["id"]


def test_calls_are_blocks_of_their_own_and_text_stays_where_it_was_said() -> None:
    events = generated(
        called(0, "f", "{}"), spoken(text="then"), called(1, "g", '{"a": 1}'), called(2, "h", "{}"), spoken(text="done")
    )
    content = both({"tools": [WEATHER]}, events)["content"]
    assert [block.get("name") or block["text"] for block in content] == ["f", "then", "g", "h", "done"]
    assert len({block["id"] for block in content if block["type"] == "tool_use"}) == 3


def test_one_call_is_kept_where_parallel_calls_are_off() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    events = generated(called(0, "f", "{}"), called(1, "g", "{"))
    answer = both({"tools": [WEATHER], "tool_choice": choice}, events)
    assert [block["name"] for block in answer["content"]] == ["f"]
    assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("arguments", "finish", "reason", "sequence"),
    [
        (None, Finish("stop", EOS), "end_turn", None),
        (None, Finish("stop", 99), "end_turn", None),
        (None, Finish("stop", "END"), "stop_sequence", "END"),
        (None, Finish("length"), "max_tokens", None),
        ("{}", Finish("stop", EOS), "tool_use", None),
        ("{}", Finish("stop", "END"), "stop_sequence", "END"),
        ("{}", Finish("length"), "max_tokens", None),
        ('{"a": ', Finish("length"), "max_tokens", None),
        ('{"a": ', Finish("stop", EOS), "end_turn", None),
    ],
)
def test_every_end_has_its_stop_reason(arguments: str | None, finish: Finish, reason: str, sequence: Any) -> None:
    deltas = [spoken(text="x")] + ([called(0, "f", arguments)] if arguments else [])
    body = {"tools": [WEATHER], "stop_sequences": ["END"], "max_tokens": len(deltas)}
    answer = both(body, generated(*deltas, finish=finish))
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    if arguments:
        assert answer["content"][1]["input"] == {}


def test_a_stop_of_the_templates_own_is_the_end_of_a_turn() -> None:
    model = evolve(kit.MODEL, chat_stop=("<|im_end|>",))
    answer = kit.whole(DIALECT, HI, generated(spoken(text="x"), finish=Finish("stop", "<|im_end|>")), model)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


def test_an_answer_of_nothing_is_one_empty_text_block() -> None:
    answer = both({}, generated())
    assert answer["content"] == [{"type": "text", "text": ""}]
    assert answer["stop_reason"] == "end_turn"


def test_thinking_can_be_left_out_of_its_block() -> None:
    body = {"thinking": {"type": "adaptive", "display": "omitted"}}
    (thought, _) = both(body, generated(spoken(reasoning="secret"), spoken(text="Hi")))["content"]
    assert thought["thinking"] == ""
    assert thought["signature"]


def test_input_tokens_and_cached_ones_add_up_to_the_prompt() -> None:
    for cached in (0, 1, 3):
        usage = both({}, generated(spoken(text="x", cached=cached), cached=cached))["usage"]
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert [usage[part] for part in parts] == [3 - cached, cached, 0]
        assert count_of(HI).body([PROMPT]) == {"input_tokens": 3}


def test_numbers_too_large_for_64_bits_stay_exact() -> None:
    digits = "9" * 40
    parsed = kit.parse(DIALECT, {**HI, "tools": [WEATHER]})
    events = tuple(event for _, event in generated(called(0, "f", f'{{"n": {digits}}}')))
    _, value = parsed.encoder.body([Collected(PROMPT, events)])
    assert f'"input":{{"n": {digits}}}' in orjson.dumps(value).decode()


ENDS = [
    (Finish("error", message="device"), "api_error", EngineFailure),
    (Finish("abort", message="Aborted"), "api_error", Aborted),
    (Finish("abort", message="No room.", status=503), "overloaded_error", Unavailable),
    (Finish("abort", message="No.", status=400), "invalid_request_error", InvalidRequest),
]


@pytest.mark.parametrize(("finish", "kind", "error"), ENDS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("began", [False, True])
def test_an_end_that_is_no_answer_is_an_error(finish: Finish, kind: str, error: type[Exception], began: bool) -> None:
    encoder = kit.parse(DIALECT, {**HI, "stream": True}).encoder
    out = encoder.start()
    if began:
        out += encoder.event(0, PROMPT, spoken(text="x"))
    with pytest.raises(error) as caught:
        encoder.event(0, PROMPT, Ended(0, finish, Usage(3, 1)))
    (told,) = events_of(b"".join(encoder.failed(caught.value)))
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert "device" not in str(told)
    whole = kit.parse(DIALECT, HI).encoder
    with pytest.raises(error):
        whole.body([Collected(PROMPT, (Ended(0, finish, Usage(3, 1)),))])


@given(st.data())
def test_a_stream_joins_to_the_whole_answer(data: st.DataObject) -> None:
    script = data.draw(scripts(chat=True).filter(lambda script: script.finish.kind != "abort"))
    body = {"tools": [WEATHER], "stop_sequences": ["END"]}
    once = both(body, kit.one_by_one([(0, 0, script)]))
    again = both(body, data.draw(splits([(0, 0, script)])))
    assert once == again
