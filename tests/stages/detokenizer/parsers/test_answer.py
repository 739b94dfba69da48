"""Reasoning and calls in one answer, however it is cut, and each with the other's tags in it."""

import pytest

from tests.stages.detokenizer.parsers.families import FAMILIES
from tests.stages.detokenizer.parsers.saying import Said, cut, say

TIME = ("get_time", {"tz": "UTC"})
CALL = ("get_time", '{"tz": "UTC"}')


def apart(text: str, tools: str, reasoning: str, in_reasoning: bool | None = None) -> Said:
    whole = say([text], tools, reasoning, in_reasoning)
    assert say(list(text), tools, reasoning, in_reasoning) == whole
    for place in range(1, len(text)):
        assert say(cut(text, place), tools, reasoning, in_reasoning) == whole, place
    return whole


def test_a_thought_an_answer_and_a_call() -> None:
    said = apart("<think>need tool</think>Sure. " + FAMILIES["hermes"].write(TIME), "hermes", "qwen3")
    assert (said.reasoning, said.content, said.calls) == ("need tool", "Sure. ", (CALL,))
    assert said.order == ("reasoning", "content", "call")


def test_a_call_in_an_open_block_is_reasoning_where_the_format_does_not_end_it() -> None:
    said = apart("<think>hm" + FAMILIES["glm47"].write(TIME), "glm47", "glm45")
    assert (said.content, said.calls) == ("", ())
    assert said.reasoning == "hm" + FAMILIES["glm47"].write(TIME)


@pytest.mark.parametrize(
    ("tools", "reasoning"),
    [("kimi_k2", "kimi_k25"), ("minimax_m2", "minimax_m2"), ("deepseek_v4", "deepseek_v4"), ("kimi_k3", "kimi_k3")],
)
def test_a_call_in_an_open_block_is_found_where_the_format_ends_it(tools: str, reasoning: str) -> None:
    said = apart("hm" + FAMILIES[tools].write(TIME), tools, reasoning, True)
    assert said.reasoning.strip() == "hm"
    assert said.calls == (("get_time", '{"tz":"UTC"}'),)
    assert said.content == ""


@pytest.mark.parametrize("tools", ["hermes", "glm47", "qwen3_coder", "kimi_k2", "mistral", "deepseek_v3_1"])
def test_thinking_tags_in_an_argument_are_the_argument(tools: str) -> None:
    text = "</think>a" + FAMILIES[tools].write(("get_time", {"tz": "<think>x</think>"})) + "b<think>c</think>d"
    said = apart(text, tools, "deepseek_r1")
    assert (said.reasoning, said.content) == ("c", "abd")
    assert "<think>x</think>" in said.calls[0][1]


def test_inklings_blocks() -> None:
    text = (
        "<|message_model|><|content_thinking|>hm<|end_message|><|message_model|><|content_text|>Hi.<|end_message|>"
        + FAMILIES["inkling"].write(TIME)
    )
    said = apart(text, "inkling", "inkling")
    assert (said.reasoning, said.content, said.calls) == ("hm", "Hi.", (CALL,))


def test_a_format_that_thinks_between_calls() -> None:
    call = FAMILIES["hermes"].write(TIME)
    said = apart(f"<think>a</think>{call}<think>b</think>{call}", "hermes", "qwen3")
    assert (said.reasoning, said.content, said.calls) == ("ab", "", (CALL, CALL))
    assert said.order == ("reasoning", "call", "reasoning", "call")
