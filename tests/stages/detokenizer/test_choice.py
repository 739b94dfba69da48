"""One choice from ids to text: any grouping of ids into steps gives the same, and it is what the ids say."""

import json
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.choice import Choice
from stages.messages import Delta, Finish, Submit, TextForm, TokensRow, Usage
from tests.small_tokenizer import SPECIAL, TAGS, ids, small_tokenizer, tag
from tests.stages.detokenizer.rows import (
    LENGTH,
    PARSED,
    Result,
    decoding,
    joined,
    rows,
    run,
    singly,
    submit,
    tool,
    vocabulary,
)

TOOLS = (tool("f", s={"type": "string"}, i={"type": "integer"}, o={"type": "object"}, u={"type": ["string", "null"]}),)
WITH_TOOLS = evolve(PARSED, tools=TOOLS)
GLM_TAGS = [text for text in TAGS if "think" in text or "tool_call" in text or "arg_" in text]

bits = st.sampled_from([*"ab \n.{1", "é", "你", "🙂", "f", "s", "i", "u", "null", "<|user|>", *GLM_TAGS * 2])
pieces = st.lists(bits, max_size=25).map(lambda texts: ids("".join(texts)))
any_ids = st.lists(st.integers(0, tag("<|video|>")), max_size=25).map(tuple)
forms = st.builds(
    TextForm,
    skip_special_tokens=st.booleans(),
    keep_stop=st.booleans(),
    parse_reasoning=st.booleans(),
    parse_tools=st.booleans(),
    stream_reasoning=st.booleans(),
    tools=st.just(TOOLS),
    stops_after_tokens=st.integers(0, 12),
)
stop_lists = st.lists(st.text("ab \n.1é", min_size=1, max_size=3) | st.just("<|user|>"), max_size=2).map(tuple)
patterns = st.lists(st.sampled_from([r"a.*b", r"\bb\b", r"\s\.", "[ab]{2,3}1", r"(?m)^\S+$", "é|1"]), max_size=2).map(
    tuple
)


def steps_of(token_ids: tuple[int, ...], cuts: list[int]) -> list[tuple[int, ...]]:
    edges = sorted({0, len(token_ids), *(cut for cut in cuts if cut < len(token_ids))})
    return [token_ids[start:end] for start, end in pairwise(edges)] or [()]


@given(
    pieces | any_ids,
    st.lists(st.integers(1, 25), max_size=6),
    forms,
    stop_lists,
    patterns,
    st.booleans(),
    st.booleans(),
)
def test_the_result_does_not_depend_on_how_ids_come(
    token_ids: tuple[int, ...],
    cuts: list[int],
    form: TextForm,
    stops: tuple[str, ...],
    stop_regex: tuple[str, ...],
    in_reasoning: bool,
    stop_token: bool,
) -> None:
    finish = Finish("stop", matched=token_ids[-1]) if stop_token and token_ids else LENGTH
    sent = submit(form, stop=stops, stop_regex=stop_regex, in_reasoning=in_reasoning, logprobs=True, num_top_logprobs=1)
    whole = run(sent, [token_ids], finish)
    assert run(sent, steps_of(token_ids, cuts), finish) == whole
    assert run(sent, singly(token_ids) or [()], finish) == whole
    assert len(whole.logprobs) == len(whole.token_ids) == whole.usage.completion_tokens  # type: ignore[union-attr]


@given(pieces, st.lists(st.integers(1, 25), max_size=6), stop_lists, patterns, st.booleans())
def test_what_follows_what_does_not_depend_on_how_ids_come(
    token_ids: tuple[int, ...],
    cuts: list[int],
    stops: tuple[str, ...],
    stop_regex: tuple[str, ...],
    in_reasoning: bool,
) -> None:
    sent = submit(WITH_TOOLS, stop=stops, stop_regex=stop_regex, in_reasoning=in_reasoning)
    whole = sequence(sent, [token_ids])
    assert sequence(sent, steps_of(token_ids, cuts)) == whole
    assert sequence(sent, singly(token_ids) or [()]) == whole


def sequence(sent: Submit, steps: list[tuple[int, ...]]) -> list[list[str]]:
    """What a choice says, in order: kind and text of each run; and no row brings more Deltas than it has ids."""
    choice = Choice(sent, decoding())
    said: list[list[str]] = []
    for row in rows(sent, steps, LENGTH):
        deltas = [event for event in choice.take(row) if isinstance(event, Delta)]
        assert len(deltas) <= max(1, len(row.token_ids))
        assert [delta.usage.completion_tokens for delta in deltas] == sorted(
            delta.usage.completion_tokens for delta in deltas
        )
        for delta in deltas:
            calls = [(f"call {call.index}", (call.name or "") + call.arguments) for call in delta.tool_calls]
            for kind, text in (("reasoning", delta.reasoning), ("text", delta.text), *calls):
                if text and said and said[-1][0] == kind:
                    said[-1][1] += text
                elif text:
                    said.append([kind, text])
    return said


@given(any_ids, st.booleans())
def test_raw_text_is_what_the_library_decodes(token_ids: tuple[int, ...], skip: bool) -> None:
    result = run(submit(TextForm(skip_special_tokens=skip)), singly(token_ids) or [()])
    assert result.text == small_tokenizer().decode(list(token_ids), skip_special_tokens=skip)
    assert result.token_ids == token_ids


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.text(st.characters(codec="utf-8"), max_size=20))
def test_reasoning_and_answer_are_exact_whatever_they_hold(reasoning: str, answer: str) -> None:
    plain = small_tokenizer().encode_batch([reasoning, answer])
    if any(token_id >= tag("<|endoftext|>") for encoded in plain for token_id in encoded.ids):
        return
    token_ids = (*plain[0].ids, tag("</think>"), *plain[1].ids)
    result = run(submit(PARSED, in_reasoning=True), singly(token_ids))
    assert (result.reasoning, result.text) == (reasoning, answer)
    assert result.usage == Usage(7, len(token_ids), 3, len(plain[0].ids) + 1)


@given(pieces, st.booleans())
def test_every_closed_call_is_one_json_object(token_ids: tuple[int, ...], in_reasoning: bool) -> None:
    sent = submit(WITH_TOOLS, in_reasoning=in_reasoning)
    choice = Choice(sent, decoding())
    result = joined(event for row in rows(sent, singly(token_ids) or [()], LENGTH) for event in choice.take(row))
    for number, (_, arguments) in enumerate(result.calls):
        is_open = number == len(result.calls) - 1 and choice._tools is not None and choice._tools.active
        if not is_open:
            assert isinstance(json.loads(arguments), dict)


def one(text: str, **changes: Any) -> Result:
    """What tokens of text come to, one a step."""
    form = changes.pop("form", WITH_TOOLS)
    finish = changes.pop("finish", LENGTH)
    return run(submit(form, **changes), singly(ids(text)), finish)


# --- reasoning ---


def test_without_an_end_everything_is_reasoning() -> None:
    assert one("so long", in_reasoning=True).reasoning == "so long"
    assert one("so long", in_reasoning=True).usage == Usage(7, len(ids("so long")), 3, len(ids("so long")))


def test_the_tags_of_the_block_are_no_text() -> None:
    result = one("<think>a</think>\nb</think>c", in_reasoning=True)
    assert (result.reasoning, result.text) == ("a", "\nbc")


def test_a_block_opened_in_the_answer_is_reasoning() -> None:
    result = one("a<think>b</think>c")
    assert (result.text, result.reasoning) == ("ac", "b")


def test_a_tool_call_ends_reasoning() -> None:
    result = one("hm<tool_call>f</tool_call>", in_reasoning=True)
    assert (result.reasoning, result.text, result.calls) == ("hm", "", (("f", "{}"),))
    assert result.usage == Usage(7, len(ids("hm")) + 3, 3, len(ids("hm")))


def test_reasoning_that_is_not_parsed_is_text_and_is_still_counted() -> None:
    result = one("a</think>b", form=TextForm(), in_reasoning=True)
    assert (result.text, result.reasoning) == ("a</think>b", "")
    assert result.usage == Usage(7, 3, 3, 2)


def test_reasoning_that_is_not_streamed_comes_in_one_piece_at_its_end() -> None:
    sent = submit(evolve(PARSED, stream_reasoning=False), in_reasoning=True)
    choice = Choice(sent, decoding())
    events = [event for row in rows(sent, singly(ids("a b c</think>d")), None) for event in choice.take(row)]
    pieces = [event.reasoning for event in events if isinstance(event, Delta) and event.reasoning]
    assert pieces == ["a b c"]


def test_reasoning_that_is_not_streamed_comes_once() -> None:
    assert one("a</think>b<think>c", form=evolve(PARSED, stream_reasoning=False), in_reasoning=True).reasoning == "ac"


def test_an_end_inside_reasoning_gives_all_that_was_held() -> None:
    result = one("a b", form=evolve(PARSED, stream_reasoning=False), in_reasoning=True)
    assert result.reasoning == "a b"
    lead = vocabulary().pieces.index("é".encode()[:1])
    assert run(submit(PARSED, in_reasoning=True), [(lead,)]).reasoning == "\ufffd"


def test_an_unfinished_character_does_not_reach_over_the_end_of_reasoning() -> None:
    lead, trail = (vocabulary().pieces.index(bytes([byte])) for byte in "é".encode())
    result = run(submit(PARSED, in_reasoning=True), singly((lead, tag("</think>"), trail)))
    assert (result.reasoning, result.text) == ("\ufffd", "\ufffd")


# --- stops ---


def test_a_stop_string_ends_the_choice_at_the_token_that_completes_it() -> None:
    token_ids = ids("alpha END beta")
    result = run(submit(stop=("ND", "END")), [token_ids])
    assert result.text == "alpha E"
    assert result.finish == Finish("stop", matched="ND")
    assert token_ids[: len(result.token_ids)] == result.token_ids
    assert vocabulary().text(result.token_ids).rstrip("b").endswith("END")
    assert result.usage == Usage(7, len(result.token_ids), 3)


def test_a_kept_stop_string_ends_the_text() -> None:
    assert one("alpha END beta", form=TextForm(keep_stop=True), stop=("END",)).text == "alpha END"


def test_a_stop_pattern_ends_the_choice_at_the_token_that_completes_it() -> None:
    result = one("alpha 12! beta", form=TextForm(), stop_regex=(r"\d+!",))
    assert (result.text, result.finish) == ("alpha ", Finish("stop", matched=r"\d+!"))
    assert vocabulary().text(result.token_ids) == "alpha 12!"
    assert one("alpha 12! beta", form=TextForm(keep_stop=True), stop_regex=(r"\d+!",)).text == "alpha 12!"


def test_a_stop_pattern_that_waits_for_the_end_of_the_text_stops_there_or_at_a_call() -> None:
    pattern = r"\bend\b"
    assert one("the end", form=TextForm(), stop_regex=(pattern,)).finish == Finish("stop", matched=pattern)
    called = one("the end<tool_call>f</tool_call>x", stop_regex=(pattern,))
    assert (called.text, called.calls, called.finish) == ("the ", (), Finish("stop", matched=pattern))


def test_blanks_held_back_for_a_pattern_are_no_text_before_a_call() -> None:
    assert one("a b \n<tool_call>f</tool_call>", stop_regex=(r"(?s)a.*z",)).text == "a b"


def test_stop_patterns_are_not_looked_for_in_reasoning_nor_in_calls() -> None:
    result = one(
        "alpha1</think>x<tool_call>f<arg_key>s</arg_key><arg_value>a1</arg_value></tool_call>b1",
        in_reasoning=True,
        stop_regex=(r"a\w*1",),
    )
    assert (result.reasoning, result.text, result.finish) == ("alpha1", "xb1", LENGTH)


def test_a_possible_stop_is_held_back_and_given_at_a_natural_end() -> None:
    sent = submit(stop=("beta!!",))
    choice = Choice(sent, decoding())
    made = rows(sent, singly(ids("x beta!")), LENGTH)
    early = joined(event for row in made[:-1] for event in choice.take(row))
    assert early.text == "x "
    assert joined(choice.take(made[-1])).text == "beta!"


def test_stop_strings_are_not_looked_for_in_parsed_reasoning() -> None:
    result = one("the answer</think>the answer", in_reasoning=True, stop=("answer",))
    assert (result.reasoning, result.text) == ("the answer", "the ")
    assert one("the answer</think>x", in_reasoning=True, stop=("answer",), form=TextForm()).text == "the "


def test_stop_strings_are_not_looked_for_in_tool_calls_nor_across_them() -> None:
    text = "a<tool_call>f<arg_key>s</arg_key><arg_value>ab</arg_value></tool_call>b"
    result = one(text, stop=("ab",))
    assert (result.text, result.calls, result.finish) == ("ab", (("f", '{"s": "ab"}'),), LENGTH)


def test_a_special_token_named_as_a_stop_string_stops() -> None:
    result = one("a<|user|>b", form=TextForm(), stop=("<|user|>",))
    assert (result.text, result.finish) == ("a", Finish("stop", matched="<|user|>"))
    shown = one("a<|user|>b", form=TextForm(skip_special_tokens=False), stop=("<|user|>",))
    assert (shown.text, shown.finish) == ("a", Finish("stop", matched="<|user|>"))


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (TextForm(), ("a", "a", "a")),
        (TextForm(skip_special_tokens=False), ("a", "a", "a")),
        (TextForm(keep_stop=True), ("a", "a,", "a<arg_key>")),
        (TextForm(keep_stop=True, skip_special_tokens=False), ("a<|user|>", "a,", "a<arg_key>")),
    ],
)
def test_a_stop_token_is_shown_only_when_kept_and_printable(form: TextForm, shown: tuple[str, str, str]) -> None:
    for text, expected in zip(("a<|user|>", "a,", "a<arg_key>"), shown, strict=True):
        token_ids = ids(text)
        finish = Finish("stop", matched=token_ids[-1])
        result = run(submit(form), singly(token_ids), finish)
        assert (result.text, result.finish, result.token_ids) == (expected, finish, token_ids)


def test_a_tag_that_is_a_stop_token_still_does_its_work() -> None:
    finish = Finish("stop", matched=tag("</tool_call>"))
    result = one("<tool_call>f<arg_key>i</arg_key><arg_value>1</arg_value></tool_call>", finish=finish)
    assert result.calls == (("f", '{"i": 1}'),)


def test_ids_after_a_stop_string_are_ignored() -> None:
    sent = submit(stop=("END",))
    choice = Choice(sent, decoding())
    made = rows(sent, [ids("END"), ids("more"), ids("x")], LENGTH)
    events = [choice.take(row) for row in made]
    assert joined(events[0]).finish == Finish("stop", matched="END")
    assert events[1:] == [(), ()]
    assert choice.ended
    assert choice.stopped


# --- tool calls ---

CALL = "<tool_call>f<arg_key>s</arg_key><arg_value>{}</arg_value></tool_call>"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call>f</tool_call>", [("f", {})]),
        ("<tool_call>f\n</tool_call>", [("f", {})]),
        ("<tool_call>g\n</tool_call>", [("g", {})]),
        (CALL.format("123"), [("f", {"s": "123"})]),
        (CALL.format(' a"\\b\n🙂'), [("f", {"s": ' a"\\b\n🙂'})]),
        (CALL.format(""), [("f", {"s": ""})]),
        (CALL.format("a<arg_key>b<tool_call>"), [("f", {"s": "a<arg_key>b<tool_call>"})]),
        (CALL.format("a") + "\n" + CALL.format("b"), [("f", {"s": "a"}), ("f", {"s": "b"})]),
        (
            "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n<arg_key>i</arg_key>\n<arg_value>1"
            "</arg_value>\n<arg_key>o</arg_key> <arg_value>{'a': [1]}</arg_value>\n<arg_key>u</arg_key>"
            "<arg_value>null</arg_value><arg_key>x</arg_key><arg_value>[1]</arg_value>\n</tool_call>",
            [("f", {"s": "1", "i": 1, "o": {"a": [1]}, "u": None, "x": [1]})],
        ),
        ("<tool_call>f<arg_key>s</arg_key>\n a</arg_value></tool_call>", [("f", {"s": "a"})]),
        ("<tool_call>f<arg_key>s</arg_key></arg_value></tool_call>", [("f", {"s": ""})]),
        ("<tool_call>f<arg_key>s<arg_value>a</arg_value></tool_call>", [("f", {"s": "a"})]),
        ("<tool_call>f<arg_key>s</arg_key><arg_value>a</tool_call>", [("f", {"s": "a"})]),
        ("<tool_call>f<arg_key>s</arg_key></tool_call>", [("f", {})]),
        (
            "<tool_call>f<arg_key>i</arg_key><arg_value>5</arg_value>" + CALL.format("b"),
            [("f", {"i": 5}), ("f", {"s": "b"})],
        ),
        ("<tool_call>" + CALL.format("b"), [("f", {"s": "b"})]),
        ("<tool_call>\n</tool_call>", []),
        ("<tool_call><arg_key>s</arg_key><arg_value>a</arg_value></tool_call>", []),
        ("<tool_call>f", []),
    ],
)
def test_calls(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    result = one(text)
    assert [(name, json.loads(arguments)) for name, arguments in result.calls] == calls
    assert result.text == ""


def test_a_call_cut_off_stays_as_far_as_it_came() -> None:
    result = one("<tool_call>f<arg_key>i</arg_key><arg_value>5</arg_value><arg_key>s</arg_key><arg_value>ab")
    assert result.calls == (("f", '{"i": 5, "s": "ab'),)
    assert result.finish == LENGTH


def test_a_string_value_streams_and_any_other_waits_for_its_end() -> None:
    sent = submit(WITH_TOOLS)
    choice = Choice(sent, decoding())

    def pieces(text: str) -> list[str]:
        events = [event for row in rows(sent, singly(ids(text)), None) for event in choice.take(row)]
        return [call.arguments for event in events for call in event.tool_calls]  # type: ignore[union-attr]

    assert pieces("<tool_call>f<arg_key>s</arg_key><arg_value>1 2") == ["", '{"s": "', "1", " ", "2"]
    assert pieces("</arg_value><arg_key>i</arg_key><arg_value>12") == ['"']
    assert pieces("</arg_value>") == [', "i": 12']


def test_whitespace_around_calls_is_no_text_and_other_text_is() -> None:
    assert one("Let me. \n" + CALL.format("a") + "\n").text == "Let me."
    assert one(CALL.format("a") + "\n" + CALL.format("a") + " Done. ").text == " Done. "
    assert one("ends \n").text == "ends \n"
    assert one("\n ").text == "\n "


def test_unparsed_calls_are_text() -> None:
    text = "a " + CALL.format("b") + "\n"
    assert one(text, form=TextForm(parse_reasoning=True)).text == text
    assert one(text, form=TextForm(parse_reasoning=True)).calls == ()


def test_a_tag_spelled_with_ordinary_tokens_is_text() -> None:
    spelled = tuple(vocabulary().pieces.index(bytes([byte])) for byte in b"<tool_call>f</tool_call>")
    result = run(submit(WITH_TOOLS), singly(spelled))
    assert (result.text, result.calls) == ("<tool_call>f</tool_call>", ())


# --- logprobs, usage, ends ---


def test_logprobs_carry_exact_bytes_and_the_asked_number_of_alternatives() -> None:
    token_ids = ids("é🙂<|user|>")
    result = run(submit(logprobs=True, num_top_logprobs=1), singly(token_ids))
    assert b"".join(entry.token_bytes for entry in result.logprobs) == "é🙂<|user|>".encode()
    assert [entry.logprob for entry in result.logprobs] == [-float(token_id) for token_id in token_ids]
    assert [entry.top for entry in result.logprobs] == [
        ((token_id, -1.0, vocabulary().piece(token_id)),) for token_id in token_ids
    ]


@pytest.mark.parametrize("num_steps", [1, 100])
def test_logprobs_say_which_tokens_went_to_the_visible_answer(num_steps: int) -> None:
    call = "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value></tool_call>"
    token_ids = ids(f"<think>a</think>b.{call}.a<|user|>")
    sent = submit(WITH_TOOLS, logprobs=True)
    result = run(sent, singly(token_ids) if num_steps > 1 else [token_ids])
    assert len(result.logprobs) == len(token_ids)
    assert [entry.token_bytes for entry in result.logprobs if entry.is_visible] == [b"b", b".", b".", b"a"]


def test_logprobs_come_only_when_asked_for() -> None:
    assert run(submit(), [ids("a b")]).logprobs == ()
    assert all(entry.top == () for entry in run(submit(logprobs=True), [ids("a b")]).logprobs)


def test_logprobs_end_with_the_stop_string_in_the_middle_of_a_step() -> None:
    result = run(submit(logprobs=True, stop=("b",)), [ids("a.b.c")])
    assert [entry.token_bytes for entry in result.logprobs] == [b"a", b".", b"b"]
    assert result.token_ids == ids("a.b")


def test_a_choice_that_ends_without_a_token_gives_what_was_held_and_its_end() -> None:
    sent = submit(stop=("ab",))
    choice = Choice(sent, decoding())
    choice.take(TokensRow(sent, ids("a"), usage=Usage(1, 1)))
    events = choice.take(TokensRow(sent, (), finish=Finish("abort", message="Aborted"), usage=Usage(1, 1)))
    result = joined(events)
    assert (result.text, result.finish, result.usage) == ("a", Finish("abort", message="Aborted"), Usage(1, 1))


def test_an_end_without_anything_is_the_end_alone() -> None:
    sent = submit()
    (ended,) = Choice(sent, decoding()).take(TokensRow(sent, (), finish=Finish("error", status=400)))
    assert not isinstance(ended, Delta)


def test_a_step_brings_a_delta_even_when_its_text_is_held_back() -> None:
    sent = submit(stop=("ab",))
    (delta,) = Choice(sent, decoding()).take(TokensRow(sent, ids("a"), usage=Usage(1, 1)))
    assert isinstance(delta, Delta)
    assert (delta.text, delta.token_ids) == ("", ids("a"))


def test_special_tokens_are_the_first_eighteen() -> None:
    assert {vocabulary().added[text] for text in SPECIAL} == vocabulary().special
