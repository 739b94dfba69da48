"""Logprobs of prompts and of named ids: every API's own form, null where nothing came before, streams as whole answers.

Public reports on other servers are tried here too, by the scripted engine: text of minus infinity (vLLM 10234, SGLang
5984) and an echo whose logprobs leave out the prompt (llama.cpp 27174).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.ingress.dialect import Dialect
from stages.ingress.dialects import openai_chat, openai_completions, sglang_generate
from stages.messages import Ask, Delta, Ended, Event, Finish, TokenLogprob, Usage
from tests.stages.ingress.dialects.kit import (
    ABLE,
    EOS,
    MODEL,
    PROMPT,
    one_by_one,
    parse,
    refusal,
    splits,
    streamed,
    whole,
)
from tests.stages.ingress.dialects.kit import Script as Choice
from tests.stages.ingress.dialects.kit import Token as Piece

MINUS = -math.inf
BYTES = {11: b"The", 12: b" c\xc3", 13: b"\xa4t"}
WANTED = ((5, MINUS, b"five"), (6, -6.0, b"six"))
PLAIN = Choice((Piece(20, b" sat", -0.5, text=" sat"), Piece(EOS, b"<e>", -0.1)), Finish("stop", EOS))
ONE = {"text": "The cät", "return_logprob": True}
COMPLETION = {"prompt": "The cät"}
INCREMENTAL = evolve(MODEL, incremental_streaming_output=True)


def scored(
    start: int = 0, num_top: int = 2, wanted: Sequence[tuple[int, float, bytes]] = ()
) -> tuple[TokenLogprob, ...]:
    """Entries of the prompt's tokens from `start`, as the detokenizer sends them."""
    ids = PROMPT.token_ids[start:]
    best = ((40, -0.25, b"dog"), (13, -1.0, BYTES[13]))[:num_top]
    first = TokenLogprob(ids[0], math.nan, BYTES[ids[0]])
    logprobs = {12: MINUS, 13: -1.0}
    return (first, *(TokenLogprob(one, logprobs[one], BYTES[one], best, tuple(wanted)) for one in ids[1:]))


def with_scores(
    events: Sequence[tuple[int, Event]],
    entries: tuple[TokenLogprob, ...],
    wanted: tuple[tuple[int, float, bytes], ...] = (),
) -> list[tuple[int, Event]]:
    """The events with the scores in each ask's first Delta of choice 0, and wanted ids with every token."""
    seen: set[int] = set()
    told: list[tuple[int, Event]] = []
    for ask, event in events:
        if isinstance(event, Delta):
            event = evolve(event, logprobs=tuple(evolve(one, wanted=wanted) for one in event.logprobs))
            if event.choice == 0 and ask not in seen:
                seen.add(ask)
                event = evolve(event, prompt_logprobs=entries)
        told.append((ask, event))
    return told


def events_of(*scripts: tuple[int, int, Choice]) -> list[tuple[int, Event]]:
    return one_by_one(scripts, logprobs=True)


def empty(choice: int = 0, entries: tuple[TokenLogprob, ...] = ()) -> list[tuple[int, Event]]:
    """A choice that generates nothing: the scores, and the end."""
    usage = Usage(len(PROMPT.token_ids), 0)
    return [(0, Delta(choice, (), prompt_logprobs=entries, usage=usage)), (0, Ended(choice, Finish("length"), usage))]


def ask_of(dialect: Dialect, body: Mapping[str, Any]) -> Ask:
    (ask,) = parse(dialect, body, ABLE).asks
    return ask


# --- /generate ---


def generate(body: Mapping[str, Any], events: Sequence[tuple[int, Event]]) -> Any:
    return whole(sglang_generate.DIALECT, {**ONE, **body}, events)


def test_generate_asks_for_the_prompts_logprobs_from_where_the_client_says() -> None:
    for start, asked in ((None, None), (-1, None), (0, 0), (2, 2)):
        body = {**ONE, "logprob_start_len": start, "top_logprobs_num": 3, "token_ids_logprob": [5, 6]}
        ask = ask_of(sglang_generate.DIALECT, body)
        assert (ask.prompt_logprobs_from, ask.num_top_logprobs, ask.logprob_token_ids) == (asked, 3, (5, 6))
    ask = ask_of(sglang_generate.DIALECT, {"text": "x", "logprob_start_len": 0, "token_ids_logprob": [5]})
    assert (ask.prompt_logprobs_from, ask.logprobs, ask.logprob_token_ids) == (None, False, ())


def test_a_batch_has_starts_and_ids_for_each_prompt_or_the_same_for_all() -> None:
    body = {"text": ["a", "b"], "return_logprob": [True, False], "logprob_start_len": [1, 0], "top_logprobs_num": 2}
    first, second = parse(sglang_generate.DIALECT, {**body, "token_ids_logprob": [[5], []]}).asks
    assert (first.prompt_logprobs_from, first.logprob_token_ids, first.num_top_logprobs) == (1, (5,), 2)
    assert (second.prompt_logprobs_from, second.logprob_token_ids, second.logprobs) == (None, (), False)
    both = parse(sglang_generate.DIALECT, {**body, "return_logprob": True, "token_ids_logprob": [5, 6]}).asks
    assert [ask.logprob_token_ids for ask in both] == [(5, 6), (5, 6)]


def test_generates_lists_begin_with_a_null_and_cover_the_prompt_from_the_start_asked_for() -> None:
    events = with_scores(events_of((0, 0, PLAIN)), scored(wanted=WANTED), WANTED)
    body = {"logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [5, 6]}
    meta = generate(body, events)["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 11, None], [-9999.0, 12, None], [-1.0, 13, None]]
    top = [[-0.25, 40, None], [-1.0, 13, None]]
    assert meta["input_top_logprobs"] == [None, top, top]
    ids = [[-9999.0, 5, None], [-6.0, 6, None]]
    assert meta["input_token_ids_logprobs"] == [None, ids, ids]
    assert meta["output_token_ids_logprobs"] == [ids, ids]
    assert [entry[:2] for entry in meta["output_token_logprobs"]] == [[-0.5, 20], [-0.1, EOS]]
    assert meta["prompt_tokens"] == len(meta["input_token_logprobs"])


def test_a_start_in_the_middle_still_begins_with_a_null_and_text_comes_where_it_is_asked_for() -> None:
    events = with_scores(events_of((0, 0, PLAIN)), scored(1, num_top=0))
    meta = generate({"logprob_start_len": 1, "return_text_in_logprobs": True}, events)["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 12, " c\ufffd"], [-1.0, 13, "\ufffdt"]]
    assert "input_top_logprobs" not in meta
    assert "input_token_ids_logprobs" not in meta


def test_a_start_at_the_prompts_end_has_no_entries_and_ids_without_a_start_are_told_of_the_last_token() -> None:
    events = events_of((0, 0, PLAIN))
    at_end = generate({"logprob_start_len": 3, "top_logprobs_num": 1}, events)["meta_info"]
    assert (at_end["input_token_logprobs"], at_end["input_top_logprobs"]) == ([], [])
    body = {"token_ids_logprob": [5, 6], "top_logprobs_num": 1}
    meta = generate(body, with_scores(events, (), WANTED))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 13, None]]
    assert (meta["input_top_logprobs"], meta["input_token_ids_logprobs"]) == ([None], [None])
    assert len(meta["output_token_ids_logprobs"]) == 2


def test_scoring_alone_generates_nothing_that_shows_but_one_logprob_as_sglang_does() -> None:
    body = {**ONE, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}
    assert ask_of(sglang_generate.DIALECT, body).limits.max_new_tokens == 1
    for token, finish in ((20, Finish("length")), (EOS, Finish("stop", EOS))):
        choice = Choice((Piece(token, b"x", -0.5, text="x"),), finish)
        events = with_scores(events_of((0, 0, choice)), scored())
        answer = whole(sglang_generate.DIALECT, body, events)
        assert (answer["text"], answer["output_ids"]) == ("", [])
        meta = answer["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 0}
        assert (meta["completion_tokens"], len(meta["input_token_logprobs"])) == (0, 3)
        assert meta["output_token_logprobs"] == [[-0.5, token, None]]
        assert streamed(sglang_generate.DIALECT, body, events)[-1] == answer
    plain = {"text": "x", "sampling_params": {"max_new_tokens": 0}}
    assert ask_of(sglang_generate.DIALECT, plain).limits.max_new_tokens == 0


@pytest.mark.parametrize("model", [MODEL, INCREMENTAL], ids=["cumulative", "incremental"])
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_event_of_generates_stream_has_the_prompts_lists_whoever_comes_first(
    model: Any, data: st.DataObject
) -> None:
    body = {**ONE, "logprob_start_len": 0, "top_logprobs_num": 2, "sampling_params": {"n": 2}}
    drawn = data.draw(splits([(0, 0, PLAIN), (0, 1, PLAIN)], logprobs=True))
    events = with_scores(drawn, scored())
    answers = whole(sglang_generate.DIALECT, body, events, model)
    chunks = streamed(sglang_generate.DIALECT, body, events, model)
    for name in ("input_token_logprobs", "input_top_logprobs"):
        lists = [chunk["meta_info"][name] for chunk in chunks]
        assert lists == [answers[0]["meta_info"][name]] * len(chunks)
        assert answers[1]["meta_info"][name] == answers[0]["meta_info"][name]
    assert {chunk["index"] for chunk in chunks} == {0, 1}
    for index, answer in enumerate(answers):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert mine[-1]["meta_info"]["finish_reason"] == answer["meta_info"]["finish_reason"]
        texts = [chunk["text"] for chunk in mine]
        assert ("".join(texts) if model is INCREMENTAL else texts[-1]) == answer["text"]


def test_a_choice_that_ends_before_the_prompt_was_scored_keeps_nobody_waiting() -> None:
    body = {**ONE, "logprob_start_len": 0, "sampling_params": {"n": 2}}
    ends = [(0, Ended(choice, Finish("abort", message="Aborted"), Usage(3, 0))) for choice in (1, 0)]
    chunks = streamed(sglang_generate.DIALECT, body, ends)
    assert [chunk["index"] for chunk in chunks] == [0, 1]
    assert chunks[0]["meta_info"]["input_token_logprobs"] == [[None, 11, None]]


# --- completions ---


def completion(body: Mapping[str, Any], events: Sequence[tuple[int, Event]]) -> Any:
    return whole(openai_completions.DIALECT, {**COMPLETION, **body}, events)["choices"]


def test_an_echo_asks_for_the_prompts_scores_where_it_needs_them() -> None:
    for more, start in (
        ({"echo": True}, None),
        ({"logprobs": 2}, None),
        ({"echo": True, "logprobs": 0}, 0),
        ({"echo": True, "logprobs": 2}, 0),
        ({"echo": True, "prompt": [11, 12, 13]}, None),
        ({"prompt_logprobs": 0}, 0),
    ):
        assert ask_of(openai_completions.DIALECT, {**COMPLETION, **more}).prompt_logprobs_from == start
    ask = ask_of(openai_completions.DIALECT, {**COMPLETION, "echo": True, "logprobs": 2, "prompt_logprobs": 5})
    assert (ask.num_top_logprobs, ask.logprobs) == (5, True)


def test_llama_cpp_27174_an_echo_with_logprobs_covers_the_prompt() -> None:
    body = {"echo": True, "logprobs": 1, "max_tokens": 0}
    assert ask_of(openai_completions.DIALECT, {**COMPLETION, **body}).limits.max_new_tokens == 0
    (choice,) = completion(body, empty(entries=scored()))
    assert (choice["text"], choice["finish_reason"]) == ("The cät", "length")
    assert choice["logprobs"] == {
        "tokens": ["The", " c\ufffd", "\ufffdt"],
        "token_logprobs": [None, -9999.0, -1.0],
        "top_logprobs": [None, {"dog": -0.25, " c\ufffd": -9999.0}, {"dog": -0.25, "\ufffdt": -1.0}],
        "text_offset": [0, 3, 5],
    }
    answer = whole(openai_completions.DIALECT, {**COMPLETION, **body}, empty(entries=scored()))
    assert answer["usage"]["completion_tokens"] == 0


def test_an_echo_goes_on_with_what_was_generated_and_offsets_count_the_whole_text() -> None:
    (choice,) = completion({"echo": True, "logprobs": 0}, with_scores(events_of((0, 0, PLAIN)), scored()))
    assert choice["text"] == "The cät sat"
    lists = choice["logprobs"]
    assert lists["tokens"] == ["The", " c\ufffd", "\ufffdt", " sat", "<e>"]
    assert lists["token_logprobs"] == [None, -9999.0, -1.0, -0.5, -0.1]
    assert lists["top_logprobs"][0] is None
    assert lists["top_logprobs"][2:4] == [{"\ufffdt": -1.0}, {" sat": -0.5}]
    assert lists["text_offset"] == [0, 3, 5, 7, 11]


def test_an_echo_of_ids_is_their_text() -> None:
    for more in ({}, {"logprobs": 1}):
        (choice,) = completion(
            {"prompt": [11, 12, 13], "echo": True, **more}, with_scores(events_of((0, 0, PLAIN)), scored())
        )
        assert choice["text"] == "The cät sat"


def test_nothing_is_generated_only_for_an_echo_or_the_prompts_logprobs() -> None:
    assert refusal(openai_completions.DIALECT, {**COMPLETION, "max_tokens": 0}).param == "max_tokens"
    assert refusal(openai_completions.DIALECT, {**COMPLETION, "max_tokens": -1, "echo": True}).param == "max_tokens"
    for more in ({"echo": True}, {"prompt_logprobs": 1}):
        assert ask_of(openai_completions.DIALECT, {**COMPLETION, **more, "max_tokens": 0}).limits.max_new_tokens == 0


@pytest.mark.parametrize("prompt", ["The cät", [11, 12, 13], ["The cät", "The cät"]], ids=["text", "ids", "batch"])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_streamed_echo_joins_to_the_whole_one(prompt: Any, logprobs: int | None, data: st.DataObject) -> None:
    body: dict[str, Any] = {"prompt": prompt, "echo": True, "n": 2}
    if logprobs is not None:
        body["logprobs"] = logprobs
    asks = 2 if isinstance(prompt[0], str) and isinstance(prompt, list) else 1
    by_choice = [(ask, choice, PLAIN) for ask in range(asks) for choice in range(2)]
    drawn = data.draw(splits(by_choice, logprobs=logprobs is not None))
    is_scored = parse(openai_completions.DIALECT, body).asks[0].prompt_logprobs_from is not None
    events = with_scores(drawn, scored()) if is_scored else drawn
    expected = whole(openai_completions.DIALECT, body, events)["choices"]
    texts = [""] * len(expected)
    lists: list[dict[str, list[Any]]] = [{} for _ in expected]
    for chunk in streamed(openai_completions.DIALECT, body, events):
        (entry,) = chunk["choices"]
        texts[entry["index"]] += entry["text"]
        for name, values in (entry["logprobs"] or {}).items():
            lists[entry["index"]].setdefault(name, []).extend(values)
    assert texts == [choice["text"] for choice in expected]
    assert [one or None for one in lists] == [choice["logprobs"] for choice in expected]


# --- vLLM's prompt_logprobs and logprob_token_ids ---

POSITIONS = [
    None,
    {
        "12": {"logprob": -9999.0, "rank": None, "decoded_token": " c\ufffd"},
        "40": {"logprob": -0.25, "rank": 1, "decoded_token": "dog"},
        "13": {"logprob": -1.0, "rank": 2, "decoded_token": "\ufffdt"},
    },
    {
        "13": {"logprob": -1.0, "rank": 2, "decoded_token": "\ufffdt"},
        "40": {"logprob": -0.25, "rank": 1, "decoded_token": "dog"},
    },
]
HELLO = {"messages": [{"role": "user", "content": "x"}]}


def test_prompt_logprobs_stand_beside_a_chats_choices_and_in_a_completions() -> None:
    events = with_scores(events_of((0, 0, PLAIN)), scored())
    chat = whole(openai_chat.DIALECT, {**HELLO, "prompt_logprobs": 2}, events)
    assert chat["prompt_logprobs"] == POSITIONS
    assert chat["choices"][0]["logprobs"] is None
    (choice,) = completion({"prompt_logprobs": 2}, events)
    assert (choice["prompt_logprobs"], choice["logprobs"], choice["text"]) == (POSITIONS, None, " sat")
    (choice,) = completion({"prompt_logprobs": 0}, events)
    assert [list(one) for one in choice["prompt_logprobs"][1:]] == [["12"], ["13"]]
    assert "prompt_logprobs" not in whole(openai_chat.DIALECT, HELLO, events_of((0, 0, PLAIN)))


@pytest.mark.parametrize(("dialect", "base"), [(openai_chat.DIALECT, HELLO), (openai_completions.DIALECT, COMPLETION)])
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprob_token_ids": [1000], "logprobs": 1}, "logprob_token_ids"),
        ({"logprob_token_ids": list(range(129)), "logprobs": 1}, "logprob_token_ids"),
    ],
)
def test_wrong_ones_are_refused_by_name(dialect: Dialect, base: Any, more: Any, param: str) -> None:
    if dialect is openai_chat.DIALECT and "logprobs" in more:
        more = {**more, "logprobs": True}
    assert refusal(dialect, {**base, **more}).param == param


def test_named_ids_stand_behind_the_best_ones_each_once() -> None:
    assert ask_of(
        openai_chat.DIALECT, {**HELLO, "logprobs": True, "logprob_token_ids": [6, 5, 6]}
    ).logprob_token_ids == (6, 5)
    wanted = ((20, -0.5, b" sat"), *WANTED)
    events = with_scores(events_of((0, 0, PLAIN)), (), wanted)
    body = {"logprobs": True, "top_logprobs": 2, "logprob_token_ids": [20, 5, 6]}
    chat = whole(openai_chat.DIALECT, {**HELLO, **body}, events)["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in chat[0]["top_logprobs"]] == [" sat", "\ufffd", "five", "six"]
    assert [one["logprob"] for one in chat[0]["top_logprobs"]] == [-0.5, -9999.0, -9999.0, -6.0]
    (choice,) = completion({"logprobs": 1, "logprob_token_ids": [20, 5, 6]}, events)
    assert choice["logprobs"]["top_logprobs"][0] == {" sat": -0.5, "five": -9999.0, "six": -6.0}


def low(logprob: float) -> list[tuple[int, Event]]:
    """One token, of which, as of the prompt's, nothing is likely."""
    nothing = ((1, logprob, b"a"), (2, logprob, b"b"))
    usage = Usage(3, 1)
    entries = tuple(evolve(one, top=nothing, wanted=nothing) for one in scored())
    token = TokenLogprob(20, logprob, b"x", nothing, nothing)
    delta = Delta(0, (20,), "x", logprobs=(token,), usage=usage, prompt_logprobs=entries)
    return [(0, delta), (0, Ended(0, Finish("stop", EOS), usage))]


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (openai_chat.DIALECT, {**HELLO, "logprobs": True, "top_logprobs": 20, "allowed_token_ids": [1, 2]}),
        (openai_completions.DIALECT, {**COMPLETION, "logprobs": 20, "echo": True, "logit_bias": {"1": -100}}),
        (sglang_generate.DIALECT, {**ONE, "top_logprobs_num": 20, "logprob_start_len": 0, "token_ids_logprob": [1, 2]}),
    ],
)
def test_vllm_10234_minus_infinity_is_a_number_everywhere(dialect: Dialect, body: Mapping[str, Any]) -> None:
    assert whole(dialect, body, low(MINUS), ABLE) == whole(dialect, body, low(-9999.0), ABLE)
    assert streamed(dialect, body, low(MINUS), ABLE) == streamed(dialect, body, low(-9999.0), ABLE)
    assert "-9999.0" in str(whole(dialect, body, low(MINUS), ABLE))
