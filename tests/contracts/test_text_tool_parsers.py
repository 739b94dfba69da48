"""What every file of parsers/tools keeps to: a family's calls come out as they went in, however the text is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.parsers import tools
from stages.detokenizer.parsers.loading import load_tool_parser, names
from tests.stages.detokenizer.parsers.cases import NESTED, TIME, WEATHER, cases
from tests.stages.detokenizer.parsers.families import FAMILIES
from tests.stages.detokenizer.parsers.saying import Said, cut, say

ALL = sorted(FAMILIES)
TEXT_WHERE_CUT_OFF = {"pythonic", "lfm2"}


def test_every_format_is_described() -> None:
    assert names(tools) == ALL


@pytest.mark.parametrize("name", ALL)
def test_a_parser_carries_its_files_name(name: str) -> None:
    assert load_tool_parser(name).name == name


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("calls", [(WEATHER,), (NESTED,), (TIME, TIME), (WEATHER, NESTED, TIME), (("get_time", {}),)])
def test_calls_come_out_as_they_went_in(name: str, calls: tuple[tuple[str, dict[str, object]], ...]) -> None:
    family = FAMILIES[name]
    said = say([family.write(*calls)], name)
    assert said.content == ""
    assert [(called, json.loads(arguments)) for called, arguments in said.calls] == list(calls)
    for (_, arguments), (_, wanted) in zip(said.calls, calls, strict=True):
        spelled = json.dumps(wanted, ensure_ascii=False)
        if family.keeps_json:
            assert arguments == spelled
        else:
            assert arguments == json.dumps(wanted, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("name", ALL)
def test_text_around_calls_is_kept(name: str) -> None:
    family = FAMILIES[name]
    said = say(["Hi. " + family.write(WEATHER) + " mid " + family.write(TIME) + " end"], name)
    assert " ".join(said.content.split()) == "Hi. mid end"
    assert said.content.startswith("Hi. ")
    assert said.order == ("content", "call", "content", "call", "content")


@pytest.mark.parametrize("name", ALL)
def test_whatever_is_cut_off_whole_calls_stay_and_half_ones_are_none(name: str) -> None:
    family = FAMILIES[name]
    text = "Hi. " + family.write(WEATHER, TIME)
    whole = say([text], name).calls
    num_calls = 0
    for size in range(4, len(text) + 1):
        said = say([text[:size]], name)
        assert said.calls == whole[: len(said.calls)]
        assert len(said.calls) >= num_calls
        num_calls = len(said.calls)
        assert said.content.startswith("Hi. ")
        # What is left over can only be the beginning of a tag.
        if name not in TEXT_WHERE_CUT_OFF:
            assert text[4:].lstrip().startswith(said.content[4:].lstrip()) or num_calls
    assert num_calls == 2
    shorter = text.removesuffix(family.is_whole_without)
    assert say([shorter], name).calls == whole


@pytest.mark.parametrize("name", ALL)
def test_what_is_said_does_not_depend_on_where_the_text_is_cut_in_two(name: str) -> None:
    for text in cases(name).values():
        whole = say([text], name)
        assert say(list(text), name) == whole
        for place in range(1, len(text)):
            assert say(cut(text, place), name) == whole, (text, place)


fragments = st.lists(st.integers(0, 10_000), max_size=8)


@pytest.mark.parametrize("name", ALL)
@given(fragments, st.lists(st.integers(1, 200), max_size=5))
def test_nor_does_it_where_calls_are_broken(name: str, choices: list[int], places: list[int]) -> None:
    family = FAMILIES[name]
    bits = [family.opening, family.closing, family.call(*TIME, 0), *load_tool_parser(name).markers]
    bits += [family.write(WEATHER)[:number] for number in range(0, 60, 7)] + ["x", " ", "\n", "{", '"', "}", "[", "]"]
    text = "".join(bits[choice % len(bits)] for choice in choices)
    whole = say([text], name)
    assert say(list(text), name) == whole
    assert say(cut(text, *places), name) == whole


@pytest.mark.parametrize("name", ALL)
@given(st.text(st.characters(codec="utf-8", exclude_characters='<[{]"'), max_size=40))
def test_text_without_tags_is_left_alone(name: str, text: str) -> None:
    assert say([text], name) == Said(text, order=("content",) if text else ())


@pytest.mark.parametrize("name", ALL)
def test_long_arguments_cost_as_much_as_they_are_long(name: str) -> None:
    """Ten thousand characters one by one; a parser that read all of them anew for each would not come to an end."""
    value = 'line "of" text\n' * 700
    text = FAMILIES[name].write(("get_time", {"tz": value}))
    (call,) = say(list(text), name).calls
    assert json.loads(call[1])["tz"].strip() == value.strip()
