"""Answers under constraints, each tried after a public report of a fault on another server, with a scripted engine."""

import json
from typing import Any

import pytest
from attrs import evolve

from stages.errors import EngineFailure, InvalidRequest
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import (
    anthropic_messages,
    ollama_chat,
    openai_chat,
    openai_completions,
    openai_responses,
    sglang_generate,
)
from stages.messages import Chat, Finish, TextGrammar, ToolCallDelta, ToolGrammar
from tests.stages.ingress.dialects import responses_kit
from tests.stages.ingress.dialects.anthropic_kit import events_of, message_of
from tests.stages.ingress.dialects.kit import (
    ABLE,
    EOS,
    MODEL,
    Script,
    Token,
    frames,
    one_by_one,
    parse,
    refusal,
    streamed,
    whole,
)

HELLO = {"messages": [{"role": "user", "content": "Say hello"}]}
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]}
TOOLS = {"tools": [{"type": "function", "function": TOOL}]}
NAMED = {"type": "function", "function": {"name": "look"}}
CALL = Script(
    (
        Token(20, b"t", -1, reasoning="I look."),
        Token(21, b"c", -1, tool_calls=(ToolCallDelta(0, "look"),)),
        Token(22, b"a", -1, tool_calls=(ToolCallDelta(0, None, '{"at": '),)),
        Token(23, b"b", -1, tool_calls=(ToolCallDelta(0, None, '"x"}'),)),
    ),
    Finish("stop", EOS),
)
CUT_OFF = evolve(CALL, tokens=CALL.tokens[:3], finish=Finish("length"))
THOUGHT = (Token(20, b"h", -1, reasoning="Hm."),)
JSON = (Token(21, b"{", -1, text='{"n":'), Token(22, b"}", -1, text=" 7}"))


def joined(chunks: list[Any]) -> dict[str, Any]:
    """What the deltas of a chat stream's only choice join to."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "arguments": "", "names": []}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning") or ""
        for piece in delta.get("tool_calls", ()):
            message["names"] += filter(None, [piece["function"].get("name")])
            message["arguments"] += piece["function"].get("arguments", "")
        message["finish_reason"] = choice["finish_reason"]
    return message


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop"), ("auto", "tool_calls")])
def test_vllm_24509_a_required_call_is_told_once_and_the_content_is_empty(choice: Any, reason: str) -> None:
    body = {**HELLO, **TOOLS, "tool_choice": choice}
    ((entry),) = whole(openai_chat.DIALECT, body, one_by_one([(0, 0, CALL)]), ABLE)["choices"]
    (call,) = entry["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"at": "x"})
    assert (entry["message"]["content"], entry["finish_reason"]) == ("", reason)
    told = joined(streamed(openai_chat.DIALECT, body, one_by_one([(0, 0, CALL)]), ABLE))
    assert (told["names"], told["arguments"]) == (["look"], call["function"]["arguments"])
    assert (told["content"], told["reasoning"], told["finish_reason"]) == ("", "I look.", reason)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_required_call_that_was_cut_off_ends_with_length(choice: Any) -> None:
    body = {**HELLO, **TOOLS, "tool_choice": choice}
    (entry,) = whole(openai_chat.DIALECT, body, one_by_one([(0, 0, CUT_OFF)]), ABLE)["choices"]
    told = joined(streamed(openai_chat.DIALECT, body, one_by_one([(0, 0, CUT_OFF)]), ABLE))
    assert entry["finish_reason"] == told["finish_reason"] == "length"


def test_vllm_24509_a_required_call_is_refused_where_it_cannot_be_kept() -> None:
    error = refusal(openai_chat.DIALECT, {**HELLO, **TOOLS, "tool_choice": "required", "stream": True}, MODEL)
    assert (error.status, error.param) == (400, "tool_choice")


def test_a_tool_a_message_names_ends_the_answer_as_any_tool_does() -> None:
    body = {
        "max_tokens": 9,
        **HELLO,
        "tools": [{"name": "look", "input_schema": TOOL["parameters"]}],
        "tool_choice": {"type": "tool", "name": "look"},
    }
    events = one_by_one([(0, 0, CALL)])
    answer = whole(anthropic_messages.DIALECT, body, events, ABLE)
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
    assert (answer["content"][1]["input"], answer["stop_reason"]) == ({"at": "x"}, "tool_use")
    told = message_of(events_of(b"".join(frames(anthropic_messages.DIALECT, body, events, ABLE))))
    assert told["content"] == answer["content"]
    (ask,) = parse(anthropic_messages.DIALECT, body, ABLE).asks
    assert isinstance(ask.constraint, ToolGrammar)


FORMAT = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}


def test_vllm_44012_a_schema_on_responses_is_enforced_after_thinking_or_refused() -> None:
    body = {"input": "Say hello", "text": {"format": FORMAT}}
    assert refusal(openai_responses.DIALECT, body, MODEL).param == "text.format"
    (ask,) = parse(openai_responses.DIALECT, body, ABLE).asks
    assert ask.form.parse_reasoning
    assert isinstance(ask.constraint, TextGrammar)
    assert ask.constraint.after_reasoning
    assert json.loads(ask.constraint.text) == SCHEMA
    events = one_by_one([(0, 0, Script((*THOUGHT, *JSON), Finish("stop", EOS)))])
    answer = whole(openai_responses.DIALECT, body, events, ABLE)
    assert responses_kit.shape(answer) == [("reasoning", "Hm."), ("message", '{"n": 7}')]
    assert answer["text"]["format"] == FORMAT
    told = responses_kit.streamed(body, events, ABLE)
    assert {**told, "completed_at": None} == {**answer, "completed_at": None}


@pytest.mark.parametrize("thinks", [True, False])
def test_vllm_47027_a_grammar_and_thinking_do_not_cost_one_another(thinks: bool) -> None:
    """The request says what is wanted; that the grammar begins where it must is the grammar stage's to test."""
    body = {
        **HELLO,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "chat_template_kwargs": {"enable_thinking": thinks},
    }
    (ask,) = parse(openai_chat.DIALECT, body, ABLE).asks
    assert isinstance(ask.prompt, Chat)
    assert ask.prompt.template == {"enable_thinking": thinks}
    assert ask.form.parse_reasoning
    assert isinstance(ask.constraint, TextGrammar)
    assert ask.constraint.after_reasoning
    events = one_by_one([(0, 0, Script((*(THOUGHT if thinks else ()), *JSON), Finish("stop", EOS)))])
    (entry,) = whole(openai_chat.DIALECT, body, events, ABLE)["choices"]
    told = joined(streamed(openai_chat.DIALECT, body, events, ABLE))
    for content, reasoning in (
        (entry["message"]["content"], entry["message"]["reasoning"]),
        (told["content"], told["reasoning"]),
    ):
        assert json.loads(content) == {"n": 7}
        assert bool(reasoning) is thinks


@pytest.mark.parametrize("more", [{"separate_reasoning": False}, {"include_reasoning": False}])
def test_thinking_that_is_not_shown_is_still_free(more: Any) -> None:
    (ask,) = parse(openai_chat.DIALECT, {**HELLO, "regex": "a", **more}, ABLE).asks
    assert isinstance(ask.constraint, TextGrammar)
    assert ask.constraint.after_reasoning


CLAUDE_CODE = {
    "max_tokens": 32000,
    **HELLO,
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "tools": [{"name": "look", "input_schema": {}, "strict": True}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
}
CLIENTS = [
    (anthropic_messages.DIALECT, CLAUDE_CODE),
    (
        openai_responses.DIALECT,
        {
            "input": "x",
            "tools": [{"type": "function", "strict": True, **TOOL}],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "text": {"format": {"type": "text"}, "verbosity": "low"},
        },
    ),
    (
        openai_chat.DIALECT,
        {
            **HELLO,
            **TOOLS,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "logit_bias": {},
            "parallel_tool_calls": True,
        },
    ),
]


@pytest.mark.parametrize(("dialect", "body"), CLIENTS)
def test_what_clients_always_send_breaks_no_default_server(dialect: Dialect, body: Any) -> None:
    (ask,) = parse(dialect, body, MODEL).asks
    assert (ask.constraint, ask.thinking_budget_tokens, ask.logit_bias) == (None, None, ())


IMPOSSIBLE = Finish("error", message="The answer cannot follow its grammar: nothing may come.", status=400)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (openai_chat.DIALECT, HELLO),
        (openai_completions.DIALECT, {"prompt": "x"}),
        (openai_responses.DIALECT, {"input": "x"}),
        (anthropic_messages.DIALECT, {"max_tokens": 9, **HELLO}),
        (sglang_generate.DIALECT, {"text": "x"}),
        (ollama_chat.DIALECT, {**HELLO, "stream": False}),
    ],
)
def test_an_answer_its_own_grammar_makes_impossible_is_the_clients_to_mend(dialect: Dialect, body: Any) -> None:
    events = one_by_one([(0, 0, Script(JSON, IMPOSSIBLE))])
    with pytest.raises(InvalidRequest, match="cannot follow its grammar"):
        whole(dialect, body, events, ABLE)
    with pytest.raises(InvalidRequest, match="cannot follow its grammar"):
        frames(dialect, body, events, ABLE)
    with pytest.raises(EngineFailure):
        whole(dialect, body, one_by_one([(0, 0, Script(JSON, Finish("error", message="lost", status=500)))]), ABLE)
