"""The text completions dialect: prompts, batches, echo, legacy logprobs, and streams equal to whole answers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion

from stages.errors import ContextOverflow
from stages.ingress.dialects.openai_completions import DIALECT
from stages.messages import Ask, Finish, Limits, Sampling, TextForm
from tests.stages.ingress.dialects.kit import (
    EOS,
    MODEL,
    Script,
    Token,
    error_body,
    one_by_one,
    parse,
    refusal,
    scripts,
    splits,
    streamed,
    whole,
)

HELLO: dict[str, Any] = {"prompt": "Hello"}
PLAIN = Script(
    (Token(20, b" wor", -0.5, text=" wor"), Token(21, b"ld", -0.25, text="ld"), Token(EOS, b"", -0.1)),
    Finish("stop", EOS),
)


def asks_of(**more: Any) -> tuple[Ask, ...]:
    return parse(DIALECT, {**HELLO, **more}).asks


def test_a_bare_request_takes_sixteen_tokens_and_the_protocols_sampling_not_the_models() -> None:
    (ask,) = asks_of()
    assert ask.limits == Limits(16)
    assert ask.sampling == Sampling(1.0, 0, 1.0, 0.0)
    assert ask.form == TextForm()
    assert ask.request_id == "cmpl-" + "f" * 32
    assert MODEL.default_sampling != ask.sampling
    assert asks_of(max_tokens=None) == (ask,)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
    ],
)
def test_a_prompt_is_text_or_ids_one_or_several(prompt: Any, prompts: Any) -> None:
    asks = asks_of(prompt=prompt)
    assert [ask.prompt for ask in asks] == prompts
    assert len({ask.request_id for ask in asks}) == len(prompts)


@pytest.mark.parametrize("prompt", [[-1], [1000], [[5], [1000]], [2**40]])
def test_an_id_outside_the_vocabulary_is_refused_by_the_name_the_client_knows(prompt: Any) -> None:
    error = refusal(DIALECT, {"prompt": prompt})

    assert (error.param, error.code) == ("prompt", "invalid_value")
    assert "[0, 999]" in error.message


@pytest.mark.parametrize("prompt", [None, "", [], [""], ["a", ""], [[]], [[1], []]])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    error = refusal(DIALECT, {"prompt": prompt})
    assert (error.message, error.param) == ("Prompt cannot be empty", "prompt")


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (5, "prompt"),
        ({}, "prompt"),
        ([True], "prompt.0"),
        ([1, "a"], "prompt.1"),
        (["a", 1], "prompt.1"),
        ([[1], [1.5]], "prompt.1.0"),
        ([[1], "a"], "prompt.1"),
    ],
)
def test_a_prompt_of_mixed_or_wrong_kinds_is_named_by_its_path(prompt: Any, param: str) -> None:
    assert refusal(DIALECT, {"prompt": prompt}).param == param


def test_choices_of_a_batch_are_numbered_prompt_by_prompt() -> None:
    body = {"prompt": ["a", "b"], "n": 2}
    by_choice = [
        (ask, choice, Script((Token(20, b"", 0, text=f"{ask}{choice}"),), Finish("length")))
        for ask in (1, 0)
        for choice in (1, 0)
    ]
    events = one_by_one(by_choice)
    answer = whole(DIALECT, body, events)
    assert [(entry["index"], entry["text"]) for entry in answer["choices"]] == [
        (0, "00"),
        (1, "01"),
        (2, "10"),
        (3, "11"),
    ]
    chunks = streamed(DIALECT, body, events)
    texts = {
        chunk["choices"][0]["index"]: chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"][0]["text"]
    }
    assert texts == {0: "00", 1: "01", 2: "10", 3: "11"}
    assert answer["usage"]["prompt_tokens"] == 6
    assert answer["usage"]["completion_tokens"] == 4


def test_request_ids_of_a_batch_are_checked() -> None:
    body = {"prompt": ["a", "b"]}
    assert [ask.request_id for ask in parse(DIALECT, {**body, "rid": ["x", "y"]}).asks] == ["x", "y"]
    assert [ask.request_id for ask in parse(DIALECT, {**body, "rid": "x"}).asks] == ["x_0", "x_1"]
    assert refusal(DIALECT, {**body, "rid": ["x"]}).message == (
        "The specified rids length mismatch with the batch_size for batch processing."
    )
    assert refusal(DIALECT, {**body, "rid": ["x", "x"]}).message == (
        "Duplicate request IDs detected within the request: ['x']"
    )
    assert refusal(DIALECT, {**body, "rid": ["x", ""]}).param == "rid.1"


def test_echo_puts_the_prompt_before_the_text_in_both_modes() -> None:
    body = {"prompt": ["Hello", "Hi"], "echo": True, "n": 2}
    events = one_by_one([(ask, choice, PLAIN) for ask in range(2) for choice in range(2)])
    answer = whole(DIALECT, body, events)
    assert [entry["text"] for entry in answer["choices"]] == ["Hello world", "Hello world", "Hi world", "Hi world"]
    texts = [""] * 4
    for chunk in streamed(DIALECT, body, events):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [entry["text"] for entry in answer["choices"]]


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"prompt_embeds": "x"}, "prompt_embeds", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
        ({"logit_bias": {"1": 2}}, "logit_bias", "unsupported_parameter"),
        ({"presence_penalty": 1}, "presence_penalty", "unsupported_parameter"),
        ({"regex": "a"}, "regex", "unsupported_parameter"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": -1}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_value"),
        ({"echo": 1}, "echo", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
    ],
)
def test_what_is_not_served_or_wrong_is_refused_by_name(more: Any, param: str, code: str) -> None:
    error = error_body(DIALECT, {**HELLO, **more})["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")


def test_max_tokens_must_be_positive_in_sglangs_words() -> None:
    assert refusal(DIALECT, {**HELLO, "max_tokens": 0}).message == "max_tokens must be positive"


def test_best_of_equal_to_n_asks_for_nothing() -> None:
    assert asks_of(best_of=1, suffix="") == asks_of()


def test_a_context_overflow_names_the_prompt() -> None:
    error = ContextOverflow("x", prompt_tokens=5000, requested_tokens=16, context_tokens=4096)
    body = DIALECT.error(error, 400, "r")["error"]
    assert (body["param"], body["code"]) == ("prompt", "context_length_exceeded")


def test_a_whole_answer_reads_like_this() -> None:
    answer = whole(DIALECT, HELLO, one_by_one([(0, 0, PLAIN)]))
    assert answer["choices"] == [
        {
            "index": 0,
            "text": " world",
            "logprobs": None,
            "finish_reason": "stop",
            "matched_stop": EOS,
            "stop_reason": None,
        }
    ]
    assert (answer["object"], answer["id"], answer["model"]) == ("text_completion", "cmpl-" + "f" * 32, "glm")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_legacy_logprobs_have_the_sampled_token_and_offsets_in_characters() -> None:
    tokens = (
        Token(20, "é".encode(), -0.5, text="é"),
        Token(21, b"\xf0\x9f", float("-inf")),
        Token(22, b"\x98\x80", -0.25, text="😀"),
        Token(23, b"x", -0.125, text="x"),
    )
    events = one_by_one([(0, 0, Script(tokens, Finish("length")))], logprobs=True)
    (choice,) = whole(DIALECT, {**HELLO, "logprobs": 2}, events)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["é", "\ufffd", "\ufffd\ufffd", "x"],
        "token_logprobs": [-0.5, -9999.0, -0.25, -0.125],
        "top_logprobs": [
            {"é": -0.5, "\ufffd": -9999.0},
            {"\ufffd": -9999.0},
            {"\ufffd\ufffd": -0.25, "\ufffd": -9999.0},
            {"x": -0.125, "\ufffd": -9999.0},
        ],
        "text_offset": [0, 1, 1, 2],
    }
    (choice,) = whole(DIALECT, {**HELLO, "logprobs": 0}, events)["choices"]
    assert choice["logprobs"]["top_logprobs"][0] == {"é": -0.5}


def test_continuous_usage_counts_up_on_every_chunk_with_tokens() -> None:
    options = {"stream_options": {"continuous_usage_stats": True}}
    chunks = streamed(DIALECT, {**HELLO, "n": 2, **options}, one_by_one([(0, 0, PLAIN), (0, 1, PLAIN)]))
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        counts = [chunk["usage"]["completion_tokens"] for chunk in own]
        assert counts == sorted(counts)
        assert counts[-1] == len(PLAIN.tokens)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {3}


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_ids_joined_from_a_stream_are_the_whole_answers_and_as_many_as_usage_counts(data: st.DataObject) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "return_token_ids": True}
    by_choice = [(ask, choice, data.draw(scripts(chat=False))) for ask in range(2) for choice in range(2)]
    answer = whole(DIALECT, body, one_by_one(by_choice))
    ids: list[list[int]] = [[] for _ in range(4)]
    prompts: list[list[int]] = [[] for _ in range(4)]
    for chunk in streamed(DIALECT, body, data.draw(splits(by_choice))):
        (entry,) = chunk["choices"]
        ids[entry["index"]] += entry["token_ids"]
        prompts[entry["index"]] += entry.get("prompt_token_ids", [])
    assert ids == [[token.token_id for token in script.tokens] for _, _, script in by_choice]
    assert [entry["token_ids"] for entry in answer["choices"]] == ids
    assert [list(entry["prompt_token_ids"]) for entry in answer["choices"]] == prompts == [[11, 12, 13]] * 4
    assert answer["usage"]["completion_tokens"] == sum(map(len, ids))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_however_events_are_split_the_stream_joins_to_the_whole_answer(data: st.DataObject) -> None:
    n, size = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    logprobs = data.draw(st.booleans())
    body: dict[str, Any] = {"prompt": ["Hi"] * size, "n": n, "echo": not logprobs and data.draw(st.booleans())}
    body |= {"logprobs": 2} if logprobs else {}
    by_choice = [(ask, choice, data.draw(scripts(chat=False))) for ask in range(size) for choice in range(n)]
    answer = whole(DIALECT, body, data.draw(splits(by_choice, logprobs=logprobs)))
    assert answer == whole(DIALECT, body, one_by_one(by_choice, logprobs=logprobs))
    options = {"stream_options": {"include_usage": True}}
    *chunks, last = streamed(DIALECT, {**body, **options}, data.draw(splits(by_choice, logprobs=logprobs)))
    assert last["choices"] == []
    assert last["usage"] == answer["usage"]
    joined: list[Any] = [{"index": index, "text": "", "logprobs": None} for index in range(n * size)]
    for chunk in chunks:
        (entry,) = chunk["choices"]
        choice = joined[entry["index"]]
        assert "finish_reason" not in choice
        choice["text"] += entry["text"]
        if entry["logprobs"]:
            lists = choice["logprobs"] or {name: [] for name in entry["logprobs"]}
            choice["logprobs"] = {name: lists[name] + entry["logprobs"][name] for name in lists}
        if entry["finish_reason"]:
            choice |= {name: entry[name] for name in ("finish_reason", "matched_stop", "stop_reason")}
    for choice in joined if logprobs else []:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        choice["logprobs"] = choice["logprobs"] or {name: [] for name in names}
    assert joined == answer["choices"]
    if all(script.finish.kind != "abort" for _, _, script in by_choice):
        assert Completion.model_validate(answer, strict=True).choices[0].text == answer["choices"][0]["text"]
