"""Answers taken apart by the routes for it: what the parsers that serve chat would say of the same text."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import RequestError
from stages.ingress.dialect import Call, Lookup
from stages.ingress.dialects import find_dialects
from stages.ingress.dialects.sglang_parsing import DIALECT
from stages.prompt.stage import Prompter, open_prompter
from stages.settings import PromptSettings
from tests.fakes import silent
from tests.small_tokenizer import TAGS, write_small_tokenizer
from tests.stages.ingress.dialects.kit import MODEL
from tests.stages.ingress.http import ask, running

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "other"}},
    {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
]
CALL = (
    "<tool_call>look<arg_key>city</arg_key><arg_value>12 é🙂</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
)


@pytest.fixture(scope="module")
def prompter(tmp_path_factory: pytest.TempPathFactory) -> Prompter:
    return open_prompter(PromptSettings(str(write_small_tokenizer(tmp_path_factory.mktemp("model")))))


def call_of(path: str, body: dict[str, Any]) -> Call:
    return Call(body, {}, path, "r", 0)


def answer(prompter: Prompter, path: str, **body: Any) -> Any:
    lookup = DIALECT.parse(call_of(path, body), MODEL)
    assert isinstance(lookup, Lookup)
    (done,) = prompter.answers(list(lookup.works))
    if isinstance(done, Exception):
        raise done
    return orjson.loads(orjson.dumps(lookup.body([done])))


def test_calls_are_typed_by_their_tools_and_the_text_around_them_stays(prompter: Prompter) -> None:
    got = answer(prompter, "/parse_function_call", text=f"Both: {CALL}{CALL}", tools=TOOLS, tool_call_parser="glm47")
    call = {"tool_index": 1, "name": "look", "parameters": '{"city": "12 é🙂", "days": 3}'}
    assert got == {"normal_text": "Both:", "calls": [call, call]}


def test_the_servers_own_parser_is_the_default(prompter: Prompter) -> None:
    for named in ({}, {"tool_call_parser": None}, {"tool_call_parser": "auto"}):
        assert len(answer(prompter, "/parse_function_call", text=CALL, tools=TOOLS, **named)["calls"]) == 1
    for named in ({}, {"reasoning_parser": None}, {"reasoning_parser": "auto"}):
        assert answer(prompter, "/separate_reasoning", text="a</think>b", **named)["reasoning_text"] == "a"


def test_a_call_of_a_tool_nobody_sent_has_no_place_in_the_list(prompter: Prompter) -> None:
    (call,) = answer(prompter, "/parse_function_call", text="<tool_call>f</tool_call>")["calls"]
    assert call == {"tool_index": -1, "name": "f", "parameters": "{}"}


def test_text_without_calls_is_all_text_and_no_text_is_none(prompter: Prompter) -> None:
    for text in ("", "The weather is clear.\n", "a </think> b"):
        assert answer(prompter, "/parse_function_call", text=text, tools=TOOLS) == {"normal_text": text, "calls": []}


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("hm</think>Paris", "hm", "Paris"),
        ("<think>hm</think>Paris", "hm", "Paris"),
        ("<think>hm", "hm", ""),
        ("Paris", "", "Paris"),
        ("", "", ""),
        ("a</think>b<think>c</think>d", "ac", "bd"),
        ("hm <tool_call>f</tool_call>", "", "hm <tool_call>f</tool_call>"),
        ("<think>hm <tool_call>f</tool_call>", "hm ", "<tool_call>f</tool_call>"),
        ("🙂 é</think>\n\n🙂", "🙂 é", "\n\n🙂"),
    ],
)
def test_reasoning_is_told_from_the_rest(prompter: Prompter, text: str, reasoning: str, rest: str) -> None:
    got = answer(prompter, "/separate_reasoning", text=text, reasoning_parser="glm45")
    assert got == {"reasoning_text": reasoning, "text": rest}


def test_blocks_come_in_order_when_asked_for(prompter: Prompter) -> None:
    got = answer(prompter, "/separate_reasoning", text="a b</think>c d<think>e</think>f", return_blocks=True)
    kinds = [("reasoning", "a b"), ("text", "c d"), ("reasoning", "e"), ("text", "f")]
    assert got["blocks"] == [{"type": kind, "text": text} for kind, text in kinds]
    assert (got["reasoning_blocks"], got["text_blocks"]) == (["a b", "e"], ["c d", "f"])
    assert (got["reasoning_text"], got["text"]) == ("a be", "c df")


@given(st.lists(st.text(max_size=6) | st.sampled_from([*TAGS, CALL]), max_size=8).map("".join))
@settings(max_examples=200, deadline=None)
def test_any_text_is_taken_apart_and_blocks_join_to_the_whole(prompter: Prompter, text: str) -> None:
    got = answer(prompter, "/separate_reasoning", text=text, return_blocks=True)
    assert "".join(got["reasoning_blocks"]) == got["reasoning_text"]
    assert "".join(got["text_blocks"]) == got["text"]
    assert all(one["type"] != two["type"] for one, two in zip(got["blocks"], got["blocks"][1:], strict=False))
    answer(prompter, "/parse_function_call", text=text, tools=TOOLS)


def test_a_long_answer_is_taken_in_many_steps_and_one_longer_than_the_context_is_refused(prompter: Prompter) -> None:
    words = "The weather 🙂 " * 500
    got = answer(prompter, "/separate_reasoning", text=f"{words}</think>{words}")
    assert got == {"reasoning_text": words, "text": words}
    for path in ("/separate_reasoning", "/parse_function_call"):
        with pytest.raises(RequestError, match="longer than any answer: at most 4096") as caught:
            answer(prompter, path, text=words * 4)
        assert caught.value.param == "text"


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/parse_function_call", {}, "text", "text must be a string"),
        ("/parse_function_call", {"text": CALL, "tools": [{"type": "web"}]}, "tools.0.type", "must be function"),
        ("/separate_reasoning", {"text": 5}, "text", "text must be a string"),
        ("/separate_reasoning", {"text": "", "return_blocks": "x"}, "return_blocks", "must be a boolean"),
    ],
)
def test_a_wrong_body_is_refused_by_name(path: str, body: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        DIALECT.parse(call_of(path, body), MODEL)
    assert caught.value.param == param


def test_a_server_without_a_parser_asks_for_a_name() -> None:
    model = evolve(MODEL, reasoning_parser=None, tool_call_parser=None)
    for path, param in (("/parse_function_call", "tool_call_parser"), ("/separate_reasoning", "reasoning_parser")):
        with pytest.raises(RequestError, match="no parser of its own") as caught:
            DIALECT.parse(call_of(path, {"text": "x"}), model)
        assert caught.value.param == param


async def test_an_unknown_parser_is_a_400_that_lists_the_ones_there_are(tmp_path: Path) -> None:
    folder = str(write_small_tokenizer(tmp_path))
    async with running(silent, dialects=find_dialects(), tokenizer=folder) as server:
        for path, name, known in (
            ("/parse_function_call", "tool_call_parser", "glm47"),
            ("/separate_reasoning", "reasoning_parser", "glm45"),
        ):
            reply = await ask(server.port, path, {"text": "x", name: "nothing"})
            assert (reply.status, reply.json["object"]) == (400, "error")
            assert "nothing" in reply.json["message"]
            assert known in reply.json["message"]
        assert (await ask(server.port, "/separate_reasoning", {"text": "a</think>b"})).json["text"] == "b"
