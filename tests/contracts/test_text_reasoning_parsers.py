"""What every file of parsers/reasoning keeps to: reasoning and text come apart the same however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.parsers import reasoning
from stages.detokenizer.parsers.loading import load_reasoning_parser, names
from tests.stages.detokenizer.parsers.saying import cut, say
from tests.stages.detokenizer.parsers.thoughts import THINKERS

ALL = sorted(THINKERS)
# It tells nothing apart.
APART = "minimax_append_think"


def test_every_format_is_described() -> None:
    assert sorted({*ALL, APART}) == names(reasoning)


@pytest.mark.parametrize("name", [*ALL, APART])
def test_a_parser_carries_its_files_name(name: str) -> None:
    assert load_reasoning_parser(name).name == name


def apart(name: str, text: str, in_reasoning: bool | None = None) -> tuple[str, str]:
    said = say([text], reasoning=name, in_reasoning=in_reasoning)
    assert say(list(text), reasoning=name, in_reasoning=in_reasoning) == said
    for place in range(1, len(text)):
        assert say(cut(text, place), reasoning=name, in_reasoning=in_reasoning) == said, place
    return said.reasoning, said.content


@pytest.mark.parametrize("name", ALL)
def test_a_block_is_reasoning_and_the_rest_is_text(name: str) -> None:
    each = THINKERS[name]
    text = f"{each.opening}wh<y [a]{each.closing}{each.before_text}an<s [b]"
    assert apart(name, text) == apart(name, text, False) == ("wh<y [a]", "an<s [b]")
    assert apart(name, f"why{each.closing}{each.before_text}ans", True) == ("why", "ans")


@pytest.mark.parametrize("name", ALL)
def test_an_opening_tag_at_the_beginning_of_reasoning_is_no_text(name: str) -> None:
    each = THINKERS[name]
    assert apart(name, f"{each.opening}why{each.closing}{each.before_text}ans", True) == ("why", "ans")


@pytest.mark.parametrize("name", ALL)
def test_a_block_without_an_end_is_all_reasoning(name: str) -> None:
    each = THINKERS[name]
    assert apart(name, f"{each.opening}why") == ("why", "")
    assert apart(name, "why", True) == ("why", "")


@pytest.mark.parametrize("name", ALL)
def test_text_without_tags_goes_where_generation_began(name: str) -> None:
    each = THINKERS[name]
    assert apart(name, "plain < [ \n") == (("plain < [ \n", "") if each.begins_inside else ("", "plain < [ \n"))
    assert apart(name, "plain", False) == ("", "plain")
    assert apart(name, "") == ("", "")


@pytest.mark.parametrize("name", ALL)
def test_text_before_a_block_and_several_blocks(name: str) -> None:
    each = THINKERS[name]
    block = f"{each.opening}%s{each.closing}{each.before_text}"
    assert apart(name, "\npre " + block % "a" + "mid " + block % "b" + "end", False) == ("ab", "\npre mid end")


@pytest.mark.parametrize("name", ALL)
def test_a_closing_tag_without_a_block_is_no_text(name: str) -> None:
    each = THINKERS[name]
    assert apart(name, f"a{each.closing}b", False) == ("", "ab")


@pytest.mark.parametrize("name", ALL)
def test_half_a_tag_at_the_end_is_text(name: str) -> None:
    each = THINKERS[name]
    assert apart(name, f"a{each.opening[:4]}", False) == ("", f"a{each.opening[:4]}")
    assert apart(name, f"a{each.closing[:3]}", True) == (f"a{each.closing[:3]}", "")


@pytest.mark.parametrize(("name", "mark"), [(name, mark) for name in ALL for mark in THINKERS[name].exits])
def test_a_tool_call_ends_reasoning_where_the_format_says_so(name: str, mark: str) -> None:
    assert apart(name, f"why{mark}x", True) == ("why", f"{mark}x")


@pytest.mark.parametrize("name", [*ALL, APART])
@given(
    st.lists(st.integers(0, 1000), max_size=10),
    st.lists(st.integers(1, 100), max_size=5),
    st.sampled_from([None, True, False]),
)
def test_broken_blocks_come_apart_the_same(
    name: str, choices: list[int], places: list[int], inside: bool | None
) -> None:
    markers = load_reasoning_parser(name).markers
    bits = [*markers, *(marker[:3] for marker in markers), "x", " ", "\n", "<"]
    text = "".join(bits[choice % len(bits)] for choice in choices)
    whole = say([text], reasoning=name, in_reasoning=inside)
    assert say(list(text), reasoning=name, in_reasoning=inside) == whole
    assert say(cut(text, *places), reasoning=name, in_reasoning=inside) == whole


def test_a_text_that_clients_take_apart_begins_with_its_tag() -> None:
    assert apart(APART, "why</think>ans") == ("", "<think>why</think>ans")
    assert apart(APART, "") == ("", "")


def test_where_the_prompt_does_not_say_the_first_tag_does() -> None:
    assert apart("minimax_m3", "why</mm:think>ans") == ("why", "ans")
    assert apart("minimax_m3", "pre<mm:think>why</mm:think>ans") == ("why", "preans")
    assert apart("minimax_m3", "pre]<]minimax[>[<tool_call>") == ("", "pre]<]minimax[>[<tool_call>")


def test_the_tags_around_an_answer_are_no_text() -> None:
    text = "<|close|>think<|sep|><|open|>response<|sep|>ans<|close|>response<|sep|><|end_of_msg|>"
    assert apart("kimi_k3", "why" + text, True) == ("why", "ans")


def test_other_spellings_of_a_phrase_are_known() -> None:
    assert apart("granite", "Here's my thought process: a Here's my response: b") == (" a ", " b")


def test_a_message_to_a_function_is_left_to_the_parser_of_calls() -> None:
    call = '<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{"tz": "U"}<|call|>'
    text = f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{call}"
    for pieces in ([text], list(text)):
        said = say(pieces, "harmony", "gpt_oss")
        assert (said.reasoning, said.content, said.calls) == ("hm", "", (("get_time", '{"tz":"U"}'),))
