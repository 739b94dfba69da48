"""Priority, namespaces, sessions, routing keys and deadlines: the same fields in every dialect."""

from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import RequestError
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import openai_chat, openai_completions, openai_responses, sglang_generate
from stages.messages import Ask
from tests.stages.ingress.dialects.kit import MODEL, call_of

BODIES: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "chat": (openai_chat.DIALECT, {"messages": [{"role": "user", "content": "hi"}]}),
    "completions": (openai_completions.DIALECT, {"prompt": "hi"}),
    "responses": (openai_responses.DIALECT, {"input": "hi"}),
    "generate": (sglang_generate.DIALECT, {"text": "hi"}),
}
BATCHES: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "completions": (openai_completions.DIALECT, {"prompt": ["a", "b"]}),
    "generate": (sglang_generate.DIALECT, {"text": ["a", "b"]}),
}

in_every_dialect = pytest.mark.parametrize("api", BODIES)
in_both_modes = pytest.mark.parametrize("stream", [False, True])


def asks(api: tuple[Dialect, dict[str, Any]], more: Mapping[str, Any], headers: Mapping[str, str] = {}) -> list[Ask]:
    dialect, body = api
    return list(dialect.parse(evolve(call_of({**body, **more}), headers=headers), MODEL).asks)


def ask(api: str, more: Mapping[str, Any], headers: Mapping[str, str] = {}) -> Ask:
    (one,) = asks(BODIES[api], more, headers)
    return one


def complaint(api: str, more: Mapping[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        ask(api, more)
    return caught.value


@in_every_dialect
@in_both_modes
def test_a_body_without_the_fields_asks_for_no_place(api: str, stream: bool) -> None:
    plain = ask(api, {"stream": stream})
    empty = {"cache_salt": "", "extra_key": "", "routing_key": "", "session_id": "", "conversation_id": "",
             "session_params": {}, "priority": None}  # fmt: skip
    assert (plain.priority, plain.namespace, plain.session, plain.routing_key, plain.timeout_s) == (
        (None, "", None, None, None)
    )
    assert ask(api, {"stream": stream, **empty}) == plain


@in_every_dialect
@in_both_modes
@pytest.mark.parametrize("priority", [-(2**63), -3, 0, 2**63 - 1])
def test_a_priority_is_any_signed_64_bit_integer(api: str, stream: bool, priority: int) -> None:
    assert ask(api, {"priority": priority, "stream": stream}).priority == priority


@in_every_dialect
@pytest.mark.parametrize("priority", [2**63, 1.0, "1", True, [1]])
def test_a_priority_is_nothing_else(api: str, priority: object) -> None:
    assert complaint(api, {"priority": priority}).param == "priority"


@in_every_dialect
@in_both_modes
def test_salt_and_key_each_make_a_namespace(api: str, stream: bool) -> None:
    bodies: list[dict[str, Any]] = [
        {}, {"cache_salt": "a"}, {"extra_key": "a"}, {"cache_salt": "a", "extra_key": "b"}, {"cache_salt": "ab"},
        {"extra_key": "ab"}, {"cache_salt": "1:a"}, {"extra_key": "1:a"},
        {"cache_salt": "a:", "extra_key": "b"}, {"cache_salt": "a", "extra_key": ":b"},
    ]  # fmt: skip
    names = [ask(api, {**body, "stream": stream}).namespace for body in bodies]
    assert len(set(names)) == len(bodies)
    assert names == [ask(api, body).namespace for body in bodies]


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=2, max_size=2, unique=True))
def test_two_pairs_of_salt_and_key_never_share_a_namespace(pairs: list[tuple[str, str]]) -> None:
    names = [ask("generate", {"cache_salt": salt, "extra_key": key}).namespace for salt, key in pairs]
    assert names[0] != names[1]


@pytest.mark.parametrize("api", BATCHES)
@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_a_list_of_keys_is_one_for_each_prompt_and_one_key_is_for_all(api: str, field: str) -> None:
    first, second = asks(BATCHES[api], {field: ["x", "y"]})
    assert (first.namespace, second.namespace) == tuple(
        asks(BATCHES[api], {field: name})[0].namespace for name in ("x", "y")
    )
    same, too = asks(BATCHES[api], {field: "x"})
    assert same.namespace == too.namespace == first.namespace
    with pytest.raises(RequestError, match=f"The length of {field} should be equal to the batch size."):
        asks(BATCHES[api], {field: ["x"]})


def test_chat_takes_a_list_of_one_key() -> None:
    assert ask("chat", {"extra_key": ["x"]}) == ask("chat", {"extra_key": "x"})
    assert complaint("chat", {"extra_key": ["x", "y"]}).param == "extra_key"


@in_every_dialect
@in_both_modes
def test_a_routing_key_comes_in_the_header_or_else_in_the_body(api: str, stream: bool) -> None:
    body = {"routing_key": "body", "stream": stream}
    assert ask(api, body).routing_key == "body"
    assert ask(api, body, {"x-smg-routing-key": "header"}).routing_key == "header"
    assert ask(api, {}, {"x-smg-routing-key": "header"}).routing_key == "header"


@in_every_dialect
@in_both_modes
def test_a_session_is_named_most_strongly_by_its_own_id(api: str, stream: bool) -> None:
    fields: list[dict[str, Any]] = [
        {"session_id": "a"},
        {"conversation_id": "b"},
        {"prompt_cache_key": "c"},
        {"stream": stream},
    ]
    for number, expected in enumerate(("a", "b", "c", None)):
        body = {key: value for one in fields[number:] for key, value in one.items()}
        assert ask(api, body).session == expected
    params = {"id": "p", "rid": None, "offset": None, "replace": False, "drop_previous_output": False}
    assert ask(api, {**fields[1], **fields[2], **fields[3], "session_params": params}).session == "p"


@in_every_dialect
@pytest.mark.parametrize(
    ("more", "param", "text"),
    [
        (
            {"session_id": "a", "session_params": {"id": "a"}},
            "session_params",
            "session_id and session_params cannot both be given.",
        ),
        ({"session_params": {"offset": 3}}, "session_params.offset", "not supported"),
        ({"session_params": {"id": "a", "rid": "r"}}, "session_params.rid", "not supported"),
        ({"session_params": {"id": "a", "replace": True}}, "session_params.replace", "not supported"),
        ({"session_params": {"replace": False}}, "session_params.id", "required"),
        ({"session_id": "s" * 1025}, "session_id", "at most 1024 characters"),
        ({"session_params": {"id": "s" * 1025}}, "session_params.id", "at most 1024 characters"),
        ({"conversation_id": "s" * 1025}, "conversation_id", "at most 1024 characters"),
        ({"routing_key": "s" * 1025}, "routing_key", "at most 1024 characters"),
        ({"cache_salt": "s" * 1025}, "cache_salt", "at most 1024 characters"),
        ({"extra_key": "s" * 1025}, "extra_key", "at most 1024 characters"),
        ({"request_timeout": 0}, "request_timeout", "positive number of seconds"),
        ({"request_timeout": -1.5}, "request_timeout", "positive number of seconds"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(api: str, more: dict[str, Any], param: str, text: str) -> None:
    error = complaint(api, more)
    assert (error.param, error.status, text in error.message) == (param, 400, True)


@in_every_dialect
@pytest.mark.parametrize("field", ["session_id", "conversation_id", "routing_key", "cache_salt", "session_params"])
def test_names_are_strings(api: str, field: str) -> None:
    assert complaint(api, {field: 5}).param == field


@in_every_dialect
@in_both_modes
def test_a_request_can_set_its_own_deadline(api: str, stream: bool) -> None:
    assert ask(api, {"request_timeout": 2.5, "stream": stream}).timeout_s == 2.5
