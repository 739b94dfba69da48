"""The body of /generate: all keys, and what the client asked for rather than what our scheduler would make of it."""

from typing import Any

import orjson
import pytest

from stages.engine.generate_body import PassedGrammar, generate_body, generate_fields
from stages.errors import InvalidRequest
from stages.messages import Constraint, Penalties, Rules, Sampling, TextForm, TextGrammar, ToolGrammar
from tests.stages.engine.kit import submits_of

SAMPLING_KEYS = (
    "max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty "
    "repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos skip_special_tokens "
    "spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed custom_params"
)


def fields_of(**fields: Any) -> dict[str, Any]:
    own_end_ids = fields.pop("own_end_ids", frozenset())
    return orjson.loads(generate_body(submits_of(**fields)[0][0], own_end_ids=own_end_ids))


def sampling_of(**fields: Any) -> dict[str, Any]:
    sampling: dict[str, Any] = fields_of(**fields)["sampling_params"]
    return sampling


def test_a_plain_body_has_exactly_the_keys_of_the_contract() -> None:
    body = fields_of()
    assert list(body["sampling_params"]) == SAMPLING_KEYS.split()
    assert {name: value for name, value in body.items() if name != "sampling_params"} == {
        "rid": "a-0",
        "input_ids": [1, 2, 3],
        "require_reasoning": False,
        "stream": True,
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "return_hidden_states": False,
        "return_text_in_logprobs": False,
    }


def test_a_rendered_body_is_the_submitted_one_but_for_two_fields() -> None:
    submit = submits_of(logprobs=True, num_top_logprobs=3)[0][0]
    shown = generate_fields(submit, stream=False)
    assert orjson.dumps({**shown, "stream": True, "return_text_in_logprobs": False}) == generate_body(submit)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"max_new_tokens": 64, "stop": None, "stop_token_ids": None, "sampling_seed": None, "n": 1}),
        ({"is_open_ended": True}, {"max_new_tokens": None}),
        ({"sampling": Sampling(temperature=0.0)}, {"temperature": 1.0, "top_k": 1}),
        ({"sampling": Sampling(temperature=0.4, top_p=0.9, min_p=0.1)}, {"temperature": 0.4, "top_k": 1 << 30}),
        ({"sampling": Sampling(seed=7), "seed": 9}, {"sampling_seed": 7}),
        ({"stop": ("b", "a"), "stop_regex": ("x+",)}, {"stop": ["b", "a"], "stop_regex": ["x+"]}),
        ({"stop_token_ids": frozenset({5, 3, 1}), "own_end_ids": frozenset({1})}, {"stop_token_ids": [3, 5]}),
        ({"ignores_eos": True, "min_new_tokens": 4}, {"ignore_eos": True, "min_new_tokens": 4}),
        ({"form": TextForm(skip_special_tokens=False, keep_stop=True)}, {"no_stop_trim": True}),
        ({"penalties": Penalties(0.5, 0.25, 1.5)}, {"presence_penalty": 0.25, "repetition_penalty": 1.5}),
        ({"logit_bias": ((5, -1.0),)}, {"logit_bias": {"5": -1.0}}),
        ({"rules": Rules(thinking_budget_tokens=9)}, {"custom_params": {"thinking_budget": 9}}),
        ({"passed_sampling": {"custom_params": {"x": 1}, "stream_interval": 4}}, {"custom_params": {"x": 1}}),
    ],
)
def test_sampling_params_say_what_was_asked(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected.items() <= sampling_of(**fields).items()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"engine_rid": "mine"}, {"rid": "mine"}),
        ({"priority": 3}, {"priority": 3}),
        ({"in_reasoning": True}, {"require_reasoning": True}),
        ({"prompt_logprobs_from": 0, "logprobs": True}, {"return_logprob": True, "logprob_start_len": 0}),
        ({"logprob_token_ids": (4, 5)}, {"token_ids_logprob": [4, 5]}),
        ({"passed_fields": {"bootstrap_host": None, "bootstrap_room": 7}}, {"bootstrap_host": None}),
    ],
)
def test_fields_beside_sampling_say_what_was_asked(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert expected.items() <= fields_of(**fields).items()


def ruled(constraint: Constraint) -> dict[str, Any]:
    return sampling_of(rules=Rules(grammar=PassedGrammar(constraint)))


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (TextGrammar("json_schema", '{"type": "array"}'), {"json_schema": '{"type": "array"}', "regex": None}),
        (TextGrammar("json_object"), {"json_schema": '{"type":"object"}'}),
        (TextGrammar("regex", "a+"), {"regex": "a+", "json_schema": None}),
        (TextGrammar("ebnf", "root ::= x"), {"ebnf": "root ::= x"}),
        (TextGrammar("structural_tag", "{}"), {"structural_tag": "{}"}),
        (TextGrammar("choice", '["a.b", "c"]'), {"regex": r"(a\.b)|(c)"}),
        (ToolGrammar((), False, ()), {"structural_tag": None}),
    ],
)
def test_a_constraint_goes_as_its_own_text(grammar: Constraint, expected: dict[str, Any]) -> None:
    assert expected.items() <= ruled(grammar).items()


def test_what_the_engine_cannot_be_asked_for_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ruled(ToolGrammar((), True, ()))
    assert caught.value.param == "tool_choice"
    with pytest.raises(InvalidRequest) as caught:
        sampling_of(rules=Rules(allowed_token_ids=frozenset({1})))
    assert caught.value.param == "allowed_token_ids"
