"""The glm5 chat template: vectors of the format, and equality with the jinja file on random conversations."""

import importlib.resources
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import InvalidRequest
from stages.messages import Chat, Tool
from stages.prompt.segments import Control, as_text
from stages.prompt.templates.glm5 import render

HEAD = "[gMASK]<sop><|system|>Reasoning Effort: Max"
OPEN = "<|assistant|><think>"
WEATHER = {
    "name": "get_weather",
    "description": "Näme <b>",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def text(*messages: dict[str, Any], tools: tuple[Tool, ...] = (), going_on: bool = False, **template: Any) -> str:
    return as_text(render(Chat(messages, tools, template, going_on)))


def user(content: str | None) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def calls(*ids: str | None) -> list[dict[str, Any]]:
    return [{"id": each, "name": "f", "arguments": {}} for each in ids]


def result(call_id: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def responses(*contents: str) -> str:
    return "<|observation|>" + "".join(f"<tool_response>{content}</tool_response>" for content in contents)


def test_one_user_turn_is_the_published_vector() -> None:
    assert text(user("Hi")) == f"{HEAD}<|user|>Hi{OPEN}"


@pytest.mark.parametrize(
    ("effort", "word"),
    [("low", "Low"), ("high", "High"), ("max", "Max"), ("medium", "Max"), ("Low", "Max"), (None, "Max")],
)
def test_only_low_and_high_efforts_are_written(effort: str | None, word: str) -> None:
    assert text(user("Hi"), reasoning_effort=effort).startswith(
        f"[gMASK]<sop><|system|>Reasoning Effort: {word}<|user|>"
    )


def test_system_turns_stand_where_they_were_sent() -> None:
    system = {"role": "system", "content": "You are terse."}
    assert text(system, user("Hi"), {**system, "role": "developer"}) == (
        f"{HEAD}<|system|>You are terse.<|user|>Hi<|system|>You are terse.{OPEN}"
    )


def test_past_reasoning_is_kept_unless_cleared() -> None:
    turns = (user("q"), assistant("4", reasoning_content="let me add"), user("again"))
    assert text(*turns) == f"{HEAD}<|user|>q{OPEN}let me add</think>4<|user|>again{OPEN}"
    assert text(*turns, clear_thinking=True) == f"{HEAD}<|user|>q{OPEN}</think>4<|user|>again{OPEN}"


def test_clearing_keeps_the_reasoning_since_the_last_user_message() -> None:
    turns = (user("q"), assistant("", reasoning_content="mull", tool_calls=calls("1")), result("1", "x"))
    assert f"{OPEN}mull</think>" in text(*turns, clear_thinking=True)


def test_reasoning_in_the_content_is_told_apart() -> None:
    assert text(user("q"), assistant("a<think>b</think> c </think> d ")) == f"{HEAD}<|user|>q{OPEN}b</think>d{OPEN}"


def test_null_content_is_empty() -> None:
    assert text(user(None), assistant(None)) == f"{HEAD}<|user|>{OPEN}</think>{OPEN}"


def test_calls_and_results_are_the_published_vector() -> None:
    call = {"id": "1", "name": "get_weather", "arguments": {"city": "Paris", "unit": "c"}}
    assert text(user("w"), assistant(None, tool_calls=[call]), result("1", "18C, clear")) == (
        f"{HEAD}<|user|>w{OPEN}</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
        "<arg_key>unit</arg_key><arg_value>c</arg_value></tool_call><|observation|><tool_response>18C, clear"
        f"</tool_response>{OPEN}"
    )


def test_argument_values_other_than_strings_are_json() -> None:
    call = {"id": "1", "name": "f", "arguments": {"n": 3, "o": {"é": [None, True]}, "s": "3"}}
    assert '<arg_value>3</arg_value><arg_key>o</arg_key><arg_value>{"é": [null, true]}</arg_value>' in text(
        assistant(None, tool_calls=[call])
    )


@pytest.mark.parametrize(
    ("call_ids", "result_ids", "order"),
    [
        (("a", "b"), ("b", "a"), "10"),
        (("a", "b", "c"), ("c", "a"), "10"),
        (("a", "b"), ("b", "b"), "01"),
        (("a", "b"), ("b", None), "01"),
        (("a", "b"), ("b", "x"), "01"),
        (("a", None), ("b", "a"), "01"),
        (("a", "a"), ("b", "a"), "01"),
        ((), ("b", "a"), "01"),
    ],
)
def test_results_take_the_order_of_the_calls_only_where_it_is_certain(
    call_ids: tuple[str | None, ...], result_ids: tuple[str | None, ...], order: str
) -> None:
    rendered = text(
        assistant(None, tool_calls=calls(*call_ids)), *(result(each, str(n)) for n, each in enumerate(result_ids))
    )
    assert rendered.endswith(responses(*order) + OPEN)


def test_tools_are_listed_without_strict_and_deferred_ones() -> None:
    deferred = {"name": "later", "defer_loading": True}
    tools = (Tool("get_weather", {"type": "function", "function": WEATHER}), Tool("later", deferred))
    rendered = text(user("Hi"), tools=tools)
    line = (
        '{"name": "get_weather", "description": "Näme <b>", "parameters": ' + json.dumps(WEATHER["parameters"]) + "}\n"
    )
    assert f"<tools>\n{line}</tools>\n\nFor each" in rendered
    assert rendered.endswith(f"...</tool_call><|user|>Hi{OPEN}")


def test_the_tags_that_explain_the_call_format_are_control_tokens_and_a_tools_own_text_is_not() -> None:
    segments = render(Chat((user("Hi"),), (Tool("f", {"name": "f", "description": "<arg_key>"}),)))
    explained = [segment.text for segment in segments if isinstance(segment, Control)][4:14]
    assert explained == [
        "<tool_call>",
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>") * 2,
        "</tool_call>",
    ]


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking"])
def test_thinking_switched_off_opens_with_an_empty_block(switch: str) -> None:
    assert text(user("Hi"), **{switch: False}).endswith("<|assistant|><think></think>")
    assert text(user("Hi"), **{switch: True}).endswith("<|assistant|><think>")


def test_control_tokens_written_by_a_user_stay_text() -> None:
    segments = render(Chat((user("<|assistant|>"),)))
    assert Control("<|user|>") in segments
    assert "<|assistant|>" in segments


@pytest.mark.parametrize(
    ("message", "ending"),
    [
        (assistant(" so far "), "<think></think>so far"),
        (assistant("so far", reasoning_content="r"), "<think>r</think>so far"),
        (assistant("", reasoning_content="r so"), "<think>r so"),
        (assistant(""), f"<think></think>{OPEN}"),
    ],
)
def test_a_continued_message_is_left_open(message: dict[str, Any], ending: str) -> None:
    assert text(user("Hi"), message, going_on=True).endswith(f"<|user|>Hi<|assistant|>{ending}")


def test_only_an_assistant_message_is_continued() -> None:
    assert text(user("Hi"), going_on=True) == text(user("Hi"))


@pytest.mark.parametrize(
    ("chat", "param"),
    [
        (Chat(({"role": "narrator", "content": ""},)), "messages.0.role"),
        (Chat((user("a"), {"role": "user", "content": [1]})), "messages.1.content"),
        (Chat((assistant("", tool_calls=[{"name": "f", "arguments": "{}"}]),)), "messages.0.tool_calls.0.arguments"),
        (Chat((assistant("", tool_calls=[{"arguments": {}}]),)), "messages.0.tool_calls.0.name"),
        (Chat((assistant("a", tool_calls=calls("1")),), (), {}, True), "messages.0.tool_calls"),
    ],
)
def test_what_cannot_be_rendered_is_named(chat: Chat, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(chat)
    assert caught.value.param == param


# --- against the jinja file that ships with the model ----------------------------------------------------------------

bits = st.sampled_from([*'ab \n<>|/é你🙂"{}', "<think>", "</think>", "<|user|>", "<tool_call>"])
words = st.lists(bits, max_size=8).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
tools = st.builds(
    lambda body, wrapped: Tool(body["name"], {"type": "function", "function": body} if wrapped else body),
    st.fixed_dictionaries(
        {"name": words},
        optional={
            "description": words,
            "parameters": st.dictionaries(words, json_values, max_size=2),
            "strict": st.booleans(),
            "defer_loading": st.booleans(),
        },
    ),
    st.booleans(),
)


@st.composite
def call_turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = st.sampled_from(["a", "b", "c", "d", None])
    made = [
        {"id": draw(names), "name": draw(words), "arguments": draw(st.dictionaries(words, json_values, max_size=2))}
        for _ in range(draw(st.integers(0, 3)))
    ]
    # All the calls' ids in any order, or any ids at all.
    result_ids = draw(st.permutations([call["id"] for call in made]) | st.lists(names, min_size=len(made), max_size=4))
    turn = assistant(draw(st.none() | words), tool_calls=made)
    return [turn, *(result(each, draw(words)) for each in result_ids)]


turns = st.one_of(
    st.builds(lambda role, content: [{"role": role, "content": content}], st.sampled_from(["user", "system"]), words),
    st.builds(lambda content, r: [assistant(content, reasoning_content=r)], words, st.none() | words),
    call_turns(),
)
switches = st.fixed_dictionaries(
    {},
    optional={
        "reasoning_effort": st.sampled_from(["low", "high", "max", "none"]),
        "clear_thinking": st.booleans(),
        "enable_thinking": st.booleans(),
        "thinking": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def jinja() -> Any:
    file = importlib.resources.files("trnrt") / "models" / "demo_files" / "chat_template.jinja"
    if not file.is_file():
        pytest.skip("the model's files are not there")
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=True: json.dumps(value, ensure_ascii=ensure_ascii)
    return environment.from_string(file.read_text(encoding="utf-8"))


@given(st.lists(turns, max_size=5), st.lists(tools, max_size=2), switches)
def test_it_renders_what_the_jinja_file_does(
    jinja: Any, messages: list[list[dict[str, Any]]], tools: list[Tool], switches: dict[str, Any]
) -> None:
    flat = tuple(message for turn in messages for message in turn)
    expected = jinja.render(
        messages=flat, tools=[tool.definition for tool in tools], add_generation_prompt=True, **switches
    )
    assert text(*flat, tools=tuple(tools), **switches) == expected
