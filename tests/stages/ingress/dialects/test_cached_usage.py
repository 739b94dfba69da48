"""What an answer says of its prompt's cached tokens, and of the times it had to give its memory back."""

from typing import Any

import pytest

from stages.ingress.dialect import Dialect
from stages.ingress.dialects import openai_chat, openai_completions, openai_responses, sglang_generate
from stages.messages import Delta, Ended, Finish, Usage
from tests.stages.ingress.dialects import responses_kit
from tests.stages.ingress.dialects.kit import EOS, PROMPT, streamed, whole

CHAT: tuple[Dialect, dict[str, Any]] = (openai_chat.DIALECT, {"messages": [{"role": "user", "content": "hi"}]})
COMPLETION: tuple[Dialect, dict[str, Any]] = (openai_completions.DIALECT, {"prompt": "hi"})
GENERATE: tuple[Dialect, dict[str, Any]] = (sglang_generate.DIALECT, {"text": "hi"})
ASKS_FOR_DETAILS = {"return_cached_tokens_details": True}
ASKS_FOR_USAGE = {"stream_options": {"include_usage": True}}

on_openai_routes = pytest.mark.parametrize("api", [CHAT, COMPLETION], ids=["chat", "completions"])


def events_of(usage: Usage, ask: int = 0, choice: int = 0) -> list[Any]:
    return [(ask, Delta(choice, (20,), "a", usage=usage)), (ask, Ended(choice, Finish("stop", EOS), usage))]


def usage_of(cached: int, host: int = 0, retractions: int = 0) -> Usage:
    return Usage(len(PROMPT.token_ids), 2, cached, cached_host_tokens=host, num_retractions=retractions)


@pytest.mark.parametrize(
    ("cached", "host", "details"),
    [
        (0, 0, None),
        (2, 0, {"device": 2, "host": 0}),
        (2, 2, {"device": 0, "host": 2}),
        (2, 1, {"device": 1, "host": 1}),
    ],
)
def test_each_tier_is_told_apart_in_every_answer_and_mode(cached: int, host: int, details: Any) -> None:
    events = events_of(usage_of(cached, host))
    for meta in (
        whole(*GENERATE, events)["meta_info"],
        *(event["meta_info"] for event in streamed(*GENERATE, events)),
    ):
        assert (meta["cached_tokens"], meta["cached_tokens_details"]) == (cached, details)
    for dialect, body in (CHAT, COMPLETION):
        answer = whole(dialect, {**body, **ASKS_FOR_DETAILS}, events)
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert answer["sglext"] == {"cached_tokens_details": details}
        *_, extras, last = streamed(dialect, {**body, **ASKS_FOR_DETAILS, **ASKS_FOR_USAGE}, events)
        assert (extras["choices"], extras["sglext"]) == ([], answer["sglext"])
        assert (last["choices"], last["usage"]) == ([], answer["usage"])


def test_a_response_tells_them_to_those_who_ask() -> None:
    for told in (True, False):
        body = {"input": "hi", "return_cached_tokens_details": told}
        answer = whole(openai_responses.DIALECT, body, events_of(usage_of(2, 1)))
        assert answer["usage"]["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 0}
        assert answer.get("sglext") == ({"cached_tokens_details": {"device": 1, "host": 1}} if told else None)
        assert responses_kit.streamed(body, events_of(usage_of(2, 1))) == answer


@on_openai_routes
def test_details_are_told_to_those_who_ask_only(api: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, body = api
    events = events_of(usage_of(2))
    for more in ({}, {"return_cached_tokens_details": False}, {"return_cached_tokens_details": None}):
        assert "sglext" not in whole(dialect, {**body, **more}, events)
        assert all("sglext" not in chunk for chunk in streamed(dialect, {**body, **more, **ASKS_FOR_USAGE}, events))


@on_openai_routes
def test_details_in_a_stream_need_no_usage_chunk(api: tuple[Dialect, dict[str, Any]]) -> None:
    dialect, body = api
    chunks = streamed(dialect, {**body, **ASKS_FOR_DETAILS}, events_of(usage_of(2, 1)))
    assert chunks[-1]["sglext"] == {"cached_tokens_details": {"device": 1, "host": 1}}
    assert {chunk["id"] for chunk in chunks} == {chunks[-1]["id"]}
    assert all("usage" not in chunk and "sglext" not in chunk for chunk in chunks[:-1])


def test_the_details_of_several_prompts_are_their_sum_and_a_prompt_counts_once_for_all_its_choices() -> None:
    dialect, _ = COMPLETION
    body = {"prompt": ["a", "b"], "n": 2, **ASKS_FOR_DETAILS}
    tiers = {(0, 0): (2, 2), (0, 1): (1, 1), (1, 0): (1, 0), (1, 1): (2, 0)}
    events = [event for (ask, choice), tier in tiers.items() for event in events_of(usage_of(*tier), ask, choice)]
    answer = whole(dialect, body, events)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert answer["sglext"] == {"cached_tokens_details": {"device": 1, "host": 2}}


def test_generate_tells_how_often_each_sample_was_retracted() -> None:
    dialect, body = GENERATE
    events = [*events_of(usage_of(0, retractions=3)), *events_of(usage_of(0), choice=1)]
    body = {**body, "sampling_params": {"n": 2}}
    assert [one["meta_info"]["num_retractions"] for one in whole(dialect, body, events)] == [3, 0]
    told = {event["index"]: event["meta_info"]["num_retractions"] for event in streamed(dialect, body, events)}
    assert told == {0: 3, 1: 0}
