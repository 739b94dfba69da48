"""The same answer however it is cut: over HTTP, in every API, a stream of any steps joins to the whole answer."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.messages import Finish
from tests.contracts.test_scripted_answers import ANSWERS as CHAT_ANSWERS
from tests.scripted.apis import (
    APIS,
    CHAT,
    COMPLETIONS,
    GENERATE,
    INCREMENTAL,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPONSES,
    Api,
    Failure,
    put,
)
from tests.scripted.asking import Asked, answers
from tests.scripted.script import END, Script, call, encoded, script

STEPS = [1, 2, 7, 1000]
EDIT = '*** Begin\n+a "b" \\ 🧑‍🚀\n\t{"input": 1}'
ANSWERS = {
    **{name: text for name, (text, _) in CHAT_ANSWERS.items()},
    "more": "I think so</think>🧑‍🚀𠮷é한글 says alpha END and more",
    "mixed": "</think>One: " + call(s="1") + "\n\nthen 🧑‍🚀: " + call(s=EDIT) + call(i="3") + "\nthat was all",
    "thinks again": "a</think>b<think>c</think>d" + call() + "<think>é</think>",
    "cut off": "</think>" + call(s="1", i="2")[:-30],
    "special": "a<|begin_of_image|>b</think><|code_prefix|>c<tool_response>d<|begin_of_box|>e",
    "unknown tool": "</think>" + call("nobody", s="1"),
    "nothing": "</think>",
    "blanks": " \n</think> \n a \n ",
}
FINISHES = {
    "stop": None,
    "length": Finish("length"),
    "abort": Finish("abort", message="Aborted"),
    "refused": Finish("abort", message="There is no room.", status=500),
    "waited": Finish("abort", message="Request waiting timeout reached.", status=503),
    "error": Finish("error", message="secret", status=500),
}
CHAT_WAYS = {"logprobs": True, "top_logprobs": 3, "return_token_ids": True, "stop": ["END", "think"]}
# What may be asked of an API beside the answer, a way each.
WAYS: dict[str, list[dict[str, Any]]] = {
    CHAT.name: [
        CHAT_WAYS,
        {"logprobs": True, "top_logprobs": 20, "parallel_tool_calls": False},
        {"stream_reasoning": False, "stop_regex": "alph. ", "logprobs": True},
        {"separate_reasoning": False, "skip_special_tokens": False, "return_token_ids": True},
        {"include_reasoning": False, "no_stop_trim": True, "stop": " says", "logprobs": True},
        {"tool_choice": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"max_tokens": 7},
    ],
    COMPLETIONS.name: [
        {"logprobs": 3, "return_token_ids": True, "stop": ["END", "think"]},
        {"logprobs": 0, "skip_special_tokens": False, "max_tokens": 7},
        {"echo": True, "stop_regex": "alph. ", "include_stop_str_in_output": True},
    ],
    GENERATE.name: [
        {"return_logprob": True, "top_logprobs_num": 3, "return_text_in_logprobs": True, "sampling_params.stop": "END"},
        {"return_logprob": True, "return_prompt_token_ids": True, "sampling_params.max_new_tokens": 7},
        {"sampling_params.skip_special_tokens": False, "sampling_params.stream_interval": 5},
        {"sampling_params.stop_regex": "alph. ", "sampling_params.no_stop_trim": True},
    ],
    RESPONSES.name: [
        {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "stop": ["END", "think"]},
        {"parallel_tool_calls": False, "max_output_tokens": 7},
        {"tools": [{"type": "custom", "name": "f"}], "return_cached_tokens_details": True},
        {"tool_choice": "none"},
    ],
    MESSAGES.name: [
        {"stop_sequences": ["END", "think"]},
        {"thinking": {"type": "adaptive", "display": "omitted"}, "max_tokens": 7},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"thinking": {"type": "disabled"}},
    ],
    OLLAMA_CHAT.name: [
        {"logprobs": True, "top_logprobs": 3, "options.stop": ["END", "think"]},
        {"think": False, "options.num_predict": 7},
    ],
    OLLAMA_GENERATE.name: [
        {"logprobs": True, "top_logprobs": 3, "options.stop": ["END", "think"]},
        {"raw": True, "options.num_predict": 7},
    ],
}
WAYS[INCREMENTAL.name] = WAYS[GENERATE.name]
over_every_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
in_every_way = pytest.mark.parametrize(
    ("api", "way"),
    [pytest.param(api, way, id=f"{api.name}-{number}") for api in APIS for number, way in enumerate(WAYS[api.name])],
)


def both(api: Api, way: Mapping[str, Any], scripts: Sequence[Script], cuts: Sequence[Sequence[int]]) -> list[Any]:
    """The answers to a way of asking, whole and streamed, for each way of cutting."""
    asked: list[Asked] = []
    for stream in (False, True):
        body = api.ask(stream=stream, n=len(scripts))
        for name, value in way.items():
            put(body, name, deepcopy(value))
        asked += [(body, scripts, one) for one in cuts]
    return answers(api, *asked)


@over_every_api
@pytest.mark.parametrize("name", ANSWERS)
def test_a_stream_of_any_steps_joins_to_the_whole_answer_to_the_last_field(api: Api, name: str) -> None:
    once, *others = both(api, {}, [script(ANSWERS[name])], [[step] for step in STEPS])
    for other in others:
        assert other == once
    assert "\ufffd" not in str(once)


@in_every_way
def test_so_it_does_whatever_else_is_asked_for(api: Api, way: Mapping[str, Any]) -> None:
    for name in ("mixed", "more", "special", "wide"):
        once, *others = both(api, way, [script(ANSWERS[name])], [[1], [2], [7]])
        assert not isinstance(once, Failure)
        for other in others:
            assert other == once


@over_every_api
@pytest.mark.parametrize("kind", FINISHES)
def test_every_end_is_told_alike_streamed_or_not(api: Api, kind: str) -> None:
    for name in ("typed", "more", "cut off"):
        once, *others = both(api, {}, [script(ANSWERS[name], FINISHES[kind])], [[1], [7]])
        assert "secret" not in str(once)
        is_failure = kind in ("refused", "waited", "error") or (kind == "abort" and api in (RESPONSES, MESSAGES))
        assert isinstance(once, Failure) == is_failure
        for other in others:
            assert other == once


def alone(choice: Any) -> Any:
    """A choice without its number and what is derived of that."""
    if isinstance(choice, list):
        return [alone(item) for item in choice]
    if isinstance(choice, dict):
        return {name: alone(item) for name, item in choice.items() if name not in ("id", "index")}
    return choice


def choices_of(answer: Any) -> list[Any]:
    """The choices of an answer, which is a list of them in SGLang's API."""
    if isinstance(answer, list):
        return [alone(one) for one in answer]
    return [alone(one) for one in answer.get("choices", [answer])]


@pytest.mark.parametrize("api", [api for api in APIS if api.several], ids=lambda api: api.name)
@pytest.mark.parametrize("cuts", [[1], [2], [7], [1, 3, 2]], ids=str)
def test_each_of_several_choices_is_what_it_would_be_alone(api: Api, cuts: list[int]) -> None:
    texts = list(ANSWERS.values())
    for start in range(len(texts)):
        scripts = [script(texts[(start + offset) % len(texts)]) for offset in range(3)]
        one_each = [(api.ask(), [one], [1000]) for one in scripts]
        *apart, whole, streamed = answers(
            api, *one_each, (api.ask(n=3), scripts, cuts), (api.ask(stream=True, n=3), scripts, cuts)
        )
        assert choices_of(whole) == choices_of(streamed) == [one for answer in apart for one in choices_of(answer)]


# --- whatever a model may generate ---

WORDS = st.text(st.sampled_from('ab \n{}"\\<>:E🧑‍🚀𠮷é한글\u0301'), max_size=8)
TAGS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>"),
        *("</arg_value>", "<|code_prefix|>", "<|begin_of_image|>", "<|assistant|>", "END", "alpha"),
    ]
)
VALUES = st.one_of(WORDS, st.sampled_from(["5", "-1e3", "true", "null", "[]", '{"a": [1]}', '"q"', "{", "123"]))
CALLS = st.builds(
    lambda name, arguments: call(name, **arguments),
    st.sampled_from(["f", "f", "g"]),
    st.dictionaries(st.sampled_from("siolx"), VALUES, max_size=3),
)
# An id beyond the vocabulary has no text, and a part of a character alone is none.
IDS = st.one_of(
    st.builds(encoded, st.one_of(WORDS, TAGS, CALLS)),
    st.lists(st.integers(0, 2523), max_size=3).map(tuple),
    st.just((3000,)),
)
SCRIPTS = st.builds(
    lambda parts, finish: Script((*(one for part in parts for one in part), *(() if finish else (END,))), finish),
    st.lists(IDS, max_size=8),
    st.one_of(st.none(), st.sampled_from([*FINISHES.values(), None])),
)
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@over_every_api
@given(data=st.data())
@settings(max_examples=25)
def test_whatever_is_generated_and_however_it_is_cut_all_answers_are_one(api: Api, data: st.DataObject) -> None:
    way = data.draw(st.sampled_from([{}, *WAYS[api.name]]))
    num = data.draw(st.integers(1, 3)) if api.several else 1
    once, *others = both(
        api,
        way,
        data.draw(st.lists(SCRIPTS, min_size=num, max_size=num)),
        [[1], *data.draw(st.lists(CUTS, max_size=2))],
    )
    for other in others:
        # Of several choices that fail, a stream tells the first in time and a whole answer the first in order.
        both_fail = num > 1 and isinstance(other, Failure) and isinstance(once, Failure)
        assert other == once or both_fail
