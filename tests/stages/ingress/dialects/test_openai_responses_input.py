"""Input items of the Responses API as a chat's messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.ingress.dialects.openai_responses import DIALECT
from stages.ingress.dialects.openai_responses_blob import MAX_UNPACKED_BYTES, PREFIX, pack, unpack
from stages.messages import Chat
from tests.stages.ingress.dialects.kit import parse, refusal

USER = {"role": "user", "content": "x"}


def messages(*items: Any, **more: Any) -> list[dict[str, Any]]:
    prompt = parse(DIALECT, {"input": list(items), **more}).asks[0].prompt
    assert isinstance(prompt, Chat)
    return [dict(message) for message in prompt.messages]


def call(call_id: str, name: str = "f", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: str, text: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def reasoning(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, **more}


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def assistant(content: str = "", thought: str | None = None, *calls: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought is not None:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [{"id": call_id, "name": "f", "arguments": {}} for call_id in calls]
    return message


def tool(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def test_a_string_is_a_users_message_and_instructions_come_first() -> None:
    prompt = parse(DIALECT, {"input": "hi", "instructions": "Be brief."}).asks[0].prompt
    assert isinstance(prompt, Chat)
    assert prompt.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})


def test_an_empty_list_is_an_empty_conversation() -> None:
    assert messages() == []


def test_messages_of_every_form_are_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "output_text", "text": "c"}]
    assert messages(
        USER,
        {"role": "developer", "content": parts},
        {"type": "message", "role": "system", "content": []},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": "final"},
    ) == [
        {"role": "user", "content": "x"},
        {"role": "developer", "content": "abc"},
        {"role": "system", "content": ""},
        {"role": "assistant", "content": "no"},
    ]


def test_the_items_of_one_turn_are_one_message() -> None:
    items = [
        USER,
        reasoning("hm"),
        said("Hi"),
        call("1"),
        call("2"),
        output("1"),
        output("2"),
        reasoning("so"),
        said("b"),
    ]
    assert messages(*items) == [
        {"role": "user", "content": "x"}, assistant("Hi", "hm", "1", "2"), tool("1"), tool("2"), assistant("b", "so"),
    ]  # fmt: skip


def test_reasoning_after_an_answer_begins_a_turn() -> None:
    assert messages(said("a"), reasoning("r"), said("b")) == [assistant("a"), assistant("b", "r")]
    assert messages(call("1"), reasoning("r"), call("2")) == [assistant("", None, "1"), assistant("", "r", "2")]


def test_neighbouring_texts_and_thoughts_are_joined() -> None:
    assert messages(reasoning("r"), reasoning("s"), said("a"), said("b"), call("1"), said("c")) == [
        assistant("a\nb\nc", "r\ns", "1")
    ]


def test_outputs_go_behind_the_turn_that_called() -> None:
    assert messages(call("1"), call("2"), USER, output("2"), output("1"), said("a")) == [
        assistant("", None, "1", "2"), tool("2"), tool("1"), {"role": "user", "content": "x"}, assistant("a"),
    ]  # fmt: skip
    assert messages(call("1"), output("1"), call("2"), output("2")) == [
        assistant("", None, "1"), tool("1"), assistant("", None, "2"), tool("2"),
    ]  # fmt: skip
    assert messages(USER, output("nobody's"), said("a")) == [USER, tool("nobody's"), assistant("a")]


def test_outputs_may_be_lists_of_texts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(call("1"), output("1", parts))[1] == tool("1", "ab")
    custom = {"type": "custom_tool_call_output", "call_id": "1", "output": parts}
    assert messages(call("1"), custom)[1] == tool("1", "ab")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1, "b": {"c": [null]}}', {"a": 1, "b": {"c": [None]}}),
        ("", {}),
        (" ", {}),
        ('{"a": "cut', {"arguments": '{"a": "cut'}),
        ("[1]", {"arguments": [1]}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_past_arguments_need_not_be_an_object(text: str, arguments: Any) -> None:
    (message,) = messages(call("1", arguments=text))
    assert message["tool_calls"][0]["arguments"] == arguments


def test_a_call_in_a_namespace_has_the_name_the_model_knew() -> None:
    custom = {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "text", "namespace": "ns"}
    (message,) = messages(call("1", namespace="ns"), custom)
    assert message["tool_calls"] == [
        {"id": "1", "name": "ns__f", "arguments": {}}, {"id": "2", "name": "ns__g", "arguments": {"input": "text"}},
    ]  # fmt: skip


# --- reasoning ---


def test_reasoning_is_taken_from_the_best_there_is() -> None:
    summary = [{"type": "summary_text", "text": "s"}, {"type": "summary_text", "text": "t"}]
    assert messages(reasoning("c", summary=summary, encrypted_content=pack("own")))[0] == assistant("", "own")
    assert messages(reasoning("c", summary=summary, encrypted_content="foreign"))[0] == assistant("", "c")
    assert messages(reasoning("", summary=summary, encrypted_content="foreign"))[0] == assistant("", "s\nt")
    assert messages(reasoning("", content=None, encrypted_content="foreign")) == []


@given(st.text(st.characters(codec="utf-8")))
def test_a_blob_gives_its_text_back_and_nothing_else_does(text: str) -> None:
    assert unpack(pack(text)) == text
    assert unpack(pack(text)[:-5]) is None
    assert unpack(pack(text).removeprefix(PREFIX)) is None
    assert unpack(text) is None


@pytest.mark.parametrize("blob", [PREFIX, PREFIX + "!", PREFIX + "AAAA", PREFIX + "é", pack("a")[:-1] + "\u20ac"])
def test_a_broken_blob_is_none(blob: str) -> None:
    assert unpack(blob) is None


def test_a_blob_that_unpacks_without_end_is_none() -> None:
    assert unpack(pack("a" * MAX_UNPACKED_BYTES)) is not None
    assert unpack(pack("a" * (MAX_UNPACKED_BYTES + 1))) is None


def test_the_blobs_of_one_call_unpack_to_so_much_and_no_more() -> None:
    half = reasoning("shown", encrypted_content=pack("a" * (MAX_UNPACKED_BYTES // 2)))
    more = reasoning("shown", encrypted_content=pack("b"))
    (message,) = messages(half, half, more)
    assert message["reasoning_content"].rpartition("\n")[2] == "shown"
    assert message["reasoning_content"].count("a") == MAX_UNPACKED_BYTES


# --- refusals ---


@pytest.mark.parametrize(
    "kind",
    ["web_search_call", "computer_call_output", "mcp_list_tools", "compaction", "shell_call", "tool_search_call"],
)
def test_what_other_providers_left_is_skipped(kind: str) -> None:
    assert messages(USER, {"type": kind, "id": "x", "anything": [1]}) == [USER]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (5, "input.1"),
        ({}, "input.1.type"),
        ({"type": 5}, "input.1.type"),
        ({"type": "dance"}, "input.1.type"),
        ({"id": "msg_1"}, "input.1"),
        ({"type": "item_reference", "id": "msg_1"}, "input.1"),
        ({"role": "user"}, "input.1.content"),
        ({"role": "user", "content": 5}, "input.1.content"),
        ({"role": "tool", "content": "x"}, "input.1.role"),
        ({"type": "message", "content": "x"}, "input.1.role"),
        ({"role": "user", "content": ["x"]}, "input.1.content.0"),
        ({"role": "user", "content": [{"text": "x"}]}, "input.1.content.0.type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input.1.content.0.text"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input.1.content.0"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input.1.content.0"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "input.1.content.0"),
        ({"type": "function_call", "name": "f"}, "input.1.call_id"),
        ({"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}, "input.1.arguments"),
        ({"type": "custom_tool_call", "call_id": "1"}, "input.1.name"),
        ({"type": "function_call_output", "call_id": "1"}, "input.1.output"),
        ({"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]}, "input.1.output.0"),
        ({"type": "reasoning", "summary": [{}]}, "input.1.summary.0.text"),
        ({"type": "reasoning", "summary": "x"}, "input.1.summary"),
        ({"type": "additional_tools", "tools": [{"type": "function"}]}, "input.1.tools.0.name"),
    ],
)
def test_what_is_wrong_with_an_item_is_named_by_its_path(item: Any, param: str) -> None:
    error = refusal(DIALECT, {"input": [USER, item]})
    assert (error.status, error.param) == (400, param)
