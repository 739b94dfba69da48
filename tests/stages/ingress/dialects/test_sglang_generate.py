"""SGLang's /generate: batches and ids, exact complaints, and streams that agree with the whole answer."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import BodyTooLarge, ContextOverflow, EngineFailure, InvalidRequest, QueueFull, Unavailable
from stages.ingress.dialect import Collected
from stages.ingress.dialects.sglang_generate import DIALECT
from stages.messages import Ask, Ended, Finish, Limits, Sampling, TextForm, Usage
from tests.stages.ingress.dialects.kit import (
    EOS,
    MODEL,
    PROMPT,
    Script,
    Token,
    call_of,
    error_body,
    one_by_one,
    parse,
    refusal,
    scripts,
    splits,
    streamed,
    values_of,
    whole,
)

HELLO: dict[str, Any] = {"text": "Hello"}
PLAIN = Script(
    (Token(20, b" wor", -0.5, text=" wor"), Token(21, b"ld", -0.25, text="ld"), Token(EOS, b"", -0.1)),
    Finish("stop", EOS),
)
INCREMENTAL = evolve(MODEL, incremental_streaming_output=True)


def asks_of(**more: Any) -> tuple[Ask, ...]:
    return parse(DIALECT, {**HELLO, **more}).asks


def message(**more: Any) -> str:
    body = error_body(DIALECT, {**HELLO, **more})
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message"]
    return str(body["error"]["message"])


def gate(**more: Any) -> str:
    body = error_body(DIALECT, {**HELLO, **more})
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    return body["error"]


# ---------------------------------------------------------------------------------------------------------------------
# Requests
# ---------------------------------------------------------------------------------------------------------------------


def test_a_bare_request_has_sglangs_defaults_not_the_models() -> None:
    (ask,) = asks_of()
    assert ask.limits == Limits(128)
    assert ask.sampling == Sampling(1.0, 0, 1.0, 0.0)
    assert ask.form == TextForm()
    assert ask.request_id == "f" * 32
    assert asks_of(sampling_params=None, rid=None, stream=None, return_logprob=None) == (ask,)


def test_max_new_tokens_null_is_the_rest_of_the_context_and_zero_is_legal() -> None:
    assert asks_of(sampling_params={"max_new_tokens": None})[0].limits.max_new_tokens is None
    assert asks_of(sampling_params={"max_new_tokens": 0})[0].limits.max_new_tokens == 0


def test_every_sampling_param_reaches_the_ask() -> None:
    params = {
        "max_new_tokens": 9, "min_new_tokens": 1, "temperature": 1e-7, "top_p": 0.5, "top_k": 3, "min_p": 0.1,
        "stop": ["a", "b"], "stop_regex": ["c+", ""], "stop_token_ids": [5, None], "ignore_eos": True,
        "skip_special_tokens": False, "no_stop_trim": True, "sampling_seed": 4, "n": 2, "stream_interval": 3,
        "json_schema": "", "regex": None, "frequency_penalty": 0, "logit_bias": {},
        "spaces_between_special_tokens": True, "beam_width": 1,
    }  # fmt: skip
    (ask,) = asks_of(sampling_params=params, priority=3)
    assert ask.sampling == Sampling(0.0, 3, 0.5, 0.1, 4)
    assert ask.limits == Limits(9, 1, ("a", "b"), frozenset({5}), ("c+",), ignore_eos=True)
    assert ask.form == TextForm(skip_special_tokens=False, keep_stop=True)
    assert (ask.num_choices, ask.priority) == (2, 3)


def test_one_token_to_choose_from_is_greedy_even_where_several_share_the_highest_logit() -> None:
    (ask,) = asks_of(sampling_params={"temperature": 1.0, "top_k": 1})
    assert (ask.sampling.temperature, ask.sampling.top_k) == (0.0, 1)


def test_null_for_a_sampling_param_means_its_default() -> None:
    names = [
        "stop", "temperature", "top_p", "top_k", "min_p", "min_new_tokens", "n", "ignore_eos", "skip_special_tokens",
        "no_stop_trim", "sampling_seed", "custom_params", "frequency_penalty", "repetition_penalty", "logit_bias",
    ]  # fmt: skip
    assert asks_of(sampling_params=dict.fromkeys(names)) == asks_of()


@pytest.mark.parametrize(
    ("given_fields", "prompts", "is_list"),
    [
        ({"text": "a"}, ["a"], False),
        ({"text": ["a"]}, ["a"], True),
        ({"text": ["a", "b"]}, ["a", "b"], True),
        ({"text": None, "input_ids": [1, 2]}, [(1, 2)], False),
        ({"text": None, "input_ids": [[1], [2]]}, [(1,), (2,)], True),
        ({"text": "a", "input_ids": [1, 2]}, [(1, 2)], False),
        ({"text": ["a"], "input_ids": [[1, 2]]}, [(1, 2)], True),
        ({"text": "a", "sampling_params": {"n": 2}}, ["a"], True),
    ],
)
def test_what_is_a_batch_follows_the_shape_of_the_prompt(given_fields: Any, prompts: Any, is_list: bool) -> None:
    parsed = parse(DIALECT, given_fields)
    assert [ask.prompt for ask in parsed.asks] == prompts
    by_choice = [(i, c, PLAIN) for i, ask in enumerate(parsed.asks) for c in range(ask.num_choices)]
    answer = whole(DIALECT, given_fields, one_by_one(by_choice))
    assert isinstance(answer, list) == is_list
    events = streamed(DIALECT, given_fields, one_by_one(by_choice))
    assert all(("index" in event) == is_list for event in events)


def test_scalars_go_to_every_item_of_a_batch_and_lists_are_taken_item_by_item() -> None:
    batch = {"text": ["a", "b"]}
    both = asks_of(**batch, sampling_params={"max_new_tokens": 3}, return_logprob=True, top_logprobs_num=2)
    assert [(ask.limits.max_new_tokens, ask.logprobs, ask.num_top_logprobs) for ask in both] == [(3, True, 2)] * 2
    each = asks_of(
        **batch,
        sampling_params=[{"max_new_tokens": 3}, {"max_new_tokens": None}],
        return_logprob=[True, False],
        top_logprobs_num=[2, 5],
        logprob_start_len=[-1, 0],
    )
    assert [(ask.limits.max_new_tokens, ask.logprobs, ask.num_top_logprobs) for ask in each] == [
        (3, True, 2),
        (None, False, 0),
    ]


def test_ids_are_the_clients_numbered_in_a_batch_and_fresh_where_samples_would_share_one() -> None:
    def ids(**more: Any) -> list[str]:
        return [ask.request_id for ask in asks_of(**more)]

    assert ids(rid="x") == ["x"]
    assert ids(rid="x", text=["a"]) == ["x_0"]
    assert ids(rid="x", text=["a", "b"]) == ["x_0", "x_1"]
    assert ids(rid=["x", "y"], text=["a", "b"]) == ["x", "y"]
    fresh = [*ids(text=["a", "b"]), *ids(rid="x", sampling_params={"n": 2})]
    assert len(set(fresh)) == 3
    assert all(len(one) == 32 and "x" not in one for one in fresh)


def test_samples_of_one_prompt_are_told_under_ids_of_their_own() -> None:
    answer = whole(
        DIALECT, {**HELLO, "rid": "x", "sampling_params": {"n": 2}}, one_by_one([(0, 0, PLAIN), (0, 1, PLAIN)])
    )
    assert len({value["meta_info"]["id"] for value in answer}) == 2
    assert whole(DIALECT, {**HELLO, "rid": "x"}, one_by_one([(0, 0, PLAIN)]))["meta_info"]["id"] == "x"


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1."),
        ({"min_new_tokens": -1}, "min_new_tokens must be in [0, max_new_tokens], got -1."),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens must be in [0, max_new_tokens(8)], got 9."),
        ({"temperature": -0.5}, "temperature must be a non-negative finite number, got -0.5."),
        ({"temperature": float("inf")}, "temperature must be a non-negative finite number, got inf."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0."),
        ({"top_p": 1.5}, "top_p must be in (0, 1], got 1.5."),
        ({"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"top_k": -2}, "top_k must be -1 (disable) or at least 1, got -2."),
        ({"min_p": 1.5}, "min_p must be in [0, 1], got 1.5."),
        ({"frequency_penalty": 2.5}, "frequency_penalty must be in [-2, 2], got 2.5."),
        ({"presence_penalty": -3}, "presence_penalty must be in [-2, 2], got -3."),
        ({"repetition_penalty": 0}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 0."),
        ({"stop": ["x"] * 33}, "at most 32 stop strings are allowed, got 33"),
        ({"stop_regex": ["x"] * 33}, "at most 32 stop_regex patterns are allowed, got 33"),
        ({"stop_regex": "é" * 129}, "stop_regex is 258 bytes, over the 256-byte limit"),
        ({"stop_regex": "(a"}, "invalid stop_regex '(a': missing ), unterminated subpattern at position 0"),
        ({"stop_regex": r"(.)\1"}, r"invalid stop_regex '(.)\\1': backreferences are not supported"),
        ({"logit_bias": {"1000": 1}}, "logit_bias must has keys in [0, 999], got 1000."),
        ({"logit_bias": {"x": 1}}, "logit_bias must has keys in [0, 999], got x."),
        ({"sampling_seed": "5"}, "sampling_seed must be an integer, got str."),
        ({"sampling_seed": 1.5}, "sampling_seed must be an integer, got float."),
        ({"sampling_seed": True}, "sampling_seed must be an integer, got bool."),
        ({"sampling_seed": 2**63}, "sampling_seed must be in [-2**63, 2**63 - 1]."),
        ({"regex": "a", "ebnf": "b"}, "Only one of json_schema, regex, ebnf, or structural_tag can be set."),
        ({"beam_width": 0}, "beam_width must be at least 1, got 0."),
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 129}, "n must be at most 128, got 129."),
        ({"stream_interval": 0}, "stream_interval must be at least 1, got 0."),
        ({"stop": ""}, "stop must not contain an empty string."),
        ({"stop_token_ids": [1000]}, "stop_token_ids must be in [0, 999], got 1000."),
    ],
)
def test_a_value_out_of_range_is_refused_in_sglangs_exact_words(params: Any, text: str) -> None:
    assert message(sampling_params=params) == text


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"temperature": "0.7"}, 'invalid type: string "0.7", expected f64 at `sampling_params.temperature`'),
        ({"top_k": True}, "invalid type: boolean `true`, expected i64 at `sampling_params.top_k`"),
        (
            {"max_new_tokens": 1.5},
            "invalid type: floating point `1.5`, expected i64 at `sampling_params.max_new_tokens`",
        ),
        ({"n": -1}, "invalid value: integer `-1`, expected u64 at `sampling_params.n`"),
        ({"json_schema": {}}, "invalid type: map, expected a string at `sampling_params.json_schema`"),
        ({"ignore_eos": 1}, "invalid type: integer `1`, expected a boolean at `sampling_params.ignore_eos`"),
        ({"stop_token_ids": ["x"]}, 'invalid type: string "x", expected i64 at `sampling_params.stop_token_ids.0`'),
        ({"logit_bias": {"5": "x"}}, 'invalid type: string "x", expected f64 at `sampling_params.logit_bias.5`'),
    ],
)
def test_a_wrong_type_is_refused_by_the_gate_in_serdes_words_with_the_fields_path(params: Any, text: str) -> None:
    assert gate(sampling_params=params) == text


def test_the_gate_looks_at_the_body_too() -> None:
    assert gate(text=5).startswith("invalid type: integer `5`, expected a string or a sequence at `text`")
    assert gate(stream="yes").endswith("expected a boolean at `stream`")
    assert gate(sampling_params=5).endswith("at `sampling_params`")
    assert gate(input_ids=["x"]).endswith("at `input_ids.0`")
    assert gate(return_prompt_token_ids=None).startswith("invalid type: null")
    assert gate(top_logprobs_num=-1) == "invalid value: integer `-1`, expected u64 at `top_logprobs_num`"
    assert gate(text=["a"], sampling_params=[{"top_p": "x"}]).endswith("at `sampling_params.0.top_p`")


@pytest.mark.parametrize("name", ["max_tokens", "seed", "min_tokens", "frobnicate"])
def test_an_unknown_sampling_key_is_refused_with_the_list_of_known_ones(name: str) -> None:
    text = gate(sampling_params={name: 4})
    assert text == (
        f"unknown field `{name}`, expected one of `max_new_tokens`, `stop`, `stop_token_ids`, `stop_regex`, "
        "`temperature`, `top_p`, `top_k`, `min_p`, `frequency_penalty`, `presence_penalty`, `repetition_penalty`, "
        "`min_new_tokens`, `n`, `json_schema`, `regex`, `ebnf`, `structural_tag`, `ignore_eos`, "
        "`skip_special_tokens`, `spaces_between_special_tokens`, `no_stop_trim`, `stream_interval`, `logit_bias`, "
        "`sampling_seed`, `custom_params`, `beam_width`, `watermark`, `choice`"
    )


def test_unknown_keys_of_the_body_are_ignored() -> None:
    assert asks_of(frobnicate=1, log_metrics=True, custom_labels={"a": "b"}) == asks_of()


UNSERVED_PARAMS = {
    "beam_width": 2, "watermark": {"a": 1}, "spaces_between_special_tokens": False, "choice": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", UNSERVED_PARAMS)
def test_a_sampling_param_that_is_not_served_is_refused_by_name(name: str) -> None:
    assert message(sampling_params={name: UNSERVED_PARAMS[name]}) == f"{name} is not supported by this server."
    assert refusal(DIALECT, {**HELLO, "sampling_params": {name: UNSERVED_PARAMS[name]}}).param == (
        f"sampling_params.{name}"
    )


UNSERVED = {
    "custom_logit_processor": "x",
    "return_hidden_states": "last", "return_sampling_mask": True, "sampling_logprobs_mode": "x",
    "return_flat_raw_logprobs": True, "return_routed_experts": True, "watermark": {"k": 1}, "lora_path": "x",
    "image_data": ["x"], "audio_data": ["x"], "video_data": ["x"], "input_embeds": [[0.5]], "bootstrap_host": "x",
    "bootstrap_room": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"token_ids_logprob": [1] * 129}, "at most 128 token_ids_logprob are allowed, got 129"),
        ({"token_ids_logprob": [[1]]}, "token_ids_logprob must be a flat list of integers."),
        (
            {"text": ["a", "b"], "token_ids_logprob": [[1]]},
            "The length of token_ids_logprob should be equal to the batch size.",
        ),
        (
            {"token_ids_logprob": [1, 1000]},
            "token_ids_logprob contains out-of-vocabulary token id 1000; valid range is [0, 1000).",
        ),
        (
            {"text": ["a"], "token_ids_logprob": [[-1]]},
            "token_ids_logprob contains out-of-vocabulary token id -1; valid range is [0, 1000).",
        ),
    ],
)
def test_ids_to_score_are_checked_as_sglang_does(more: dict[str, Any], text: str) -> None:
    assert message(**more) == text


def test_no_ids_to_score_ask_for_nothing() -> None:
    for nothing in (None, []):
        assert asks_of(token_ids_logprob=nothing) == asks_of()
    assert len(asks_of(text=["a", "b"], token_ids_logprob=[[], []])) == 2
    assert gate(token_ids_logprob="1").endswith("at `token_ids_logprob`")
    assert gate(token_ids_logprob=[1, True]).endswith("at `token_ids_logprob.1`")


@pytest.mark.parametrize("name", UNSERVED)
def test_a_field_that_is_not_served_is_refused_by_name(name: str) -> None:
    assert message(**{name: UNSERVED[name]}) == f"{name} is not supported by this server."


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"text": None}, "Either text, input_ids or input_embeds should be provided."),
        ({"text": None, "input_ids": []}, "input_ids cannot be empty."),
        ({"text": None, "input_ids": [[]]}, "input_ids cannot be empty."),
        ({"text": None, "input_ids": [[1], []]}, "input_ids cannot be empty."),
        ({"text": []}, "text cannot be empty."),
        ({"text": "a", "input_ids": [[1]]}, "text and input_ids must both be single or both be a batch."),
        ({"text": ["a"], "input_ids": [[1], [2]]}, "The length of text should be equal to the batch size."),
        (
            {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]},
            "The parallel_sample_num should be the same for all samples in sample params.",
        ),
        (
            {"text": ["a", "b"], "sampling_params": {"n": 2}, "return_logprob": [True, False]},
            "Cannot use list return_logprob with parallel_sample_num > 1",
        ),
        (
            {"text": ["a", "b"], "sampling_params": [{}]},
            "The length of sampling_params should be equal to the batch size.",
        ),
        ({"sampling_params": [{}]}, "sampling_params cannot be a list for a single prompt."),
        ({"text": ["a"], "extra_key": ["x", "y"]}, "The length of extra_key should be equal to the batch size."),
        (
            {"text": ["a", "b"], "rid": ["x"]},
            "The specified rids length mismatch with the batch_size for batch processing.",
        ),
        (
            {"text": ["a", "b", "c"], "rid": ["x", "y", "x"]},
            "Duplicate request IDs detected within the request: ['x']",
        ),
        ({"rid": "x" * 257}, "rid must have between 1 and 256 characters."),
        ({"rid": ""}, "rid must have between 1 and 256 characters."),
        ({"logprob_start_len": -2}, "logprob_start_len must be at least -1, got -2."),
        ({"top_logprobs_num": 21}, "top_logprobs_num must be at most 20, got 21."),
        (
            {"max_thinking_tokens": 5},
            "max_thinking_tokens requires the server to be launched with --structured-outputs.",
        ),
    ],
)
def test_a_bad_combination_is_refused_in_these_words(more: Any, text: str) -> None:
    assert message(**more) == text


def test_a_batch_has_an_end() -> None:
    assert message(text=["a"] * 4097) == "at most 4096 prompts are allowed in a batch, got 4097"


def test_a_stream_tells_a_bad_value_as_an_event_but_a_bad_type_by_status() -> None:
    body = {**HELLO, "stream": True, "sampling_params": {"top_k": 0}}
    parsed = parse(DIALECT, body)
    assert parsed.asks == ()
    assert parsed.stream
    (event,) = values_of(parsed.encoder.start() + parsed.encoder.finish())
    assert event == {
        "error": {
            "message": "top_k must be -1 (disable) or at least 1, got 0.",
            "type": "invalid_request_error",
            "code": 400,
            "retryable": False,
        }
    }
    assert refusal(DIALECT, {**body, "sampling_params": {"top_k": "x"}}).status == 400
    assert parse(DIALECT, {**HELLO, "stream": True}).errors_in_stream


def test_errors_have_sglangs_several_shapes() -> None:
    overflow = ContextOverflow("too long", prompt_tokens=5, requested_tokens=None, context_tokens=4)
    assert DIALECT.error(overflow, 400, "r") == {"error": {"message": "too long"}}
    assert DIALECT.error(InvalidRequest("Duplicate request ID detected: x", "rid"), 400, "r") == {
        "error": {"message": "Duplicate request ID detected: x"}
    }
    assert DIALECT.error(QueueFull(), 503, "r") == {
        "object": "error",
        "message": "The request queue is full.",
        "type": "503",
        "param": None,
        "code": 503,
    }
    assert DIALECT.error(BodyTooLarge("too large"), 413, "r")["code"] == 413
    assert DIALECT.error(EngineFailure("/secret"), 500, "r")["message"] == "Internal server error"


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def test_a_whole_answer_reads_like_this() -> None:
    body = {**HELLO, "return_prompt_token_ids": True}
    assert whole(DIALECT, body, one_by_one([(0, 0, PLAIN)])) == {
        "text": " world",
        "output_ids": [20, 21, EOS],
        "prompt_token_ids": [11, 12, 13],
        "meta_info": {
            "id": "f" * 32,
            "finish_reason": {"type": "stop", "matched": EOS},
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "cached_tokens": 1,
            "reasoning_tokens": 0,
            "cached_tokens_details": {"device": 1, "host": 0},
            "weight_version": "default",
            "num_retractions": 0,
            "dp_rank": None,
        },
    }


def test_a_finished_answer_tells_its_latency_where_somebody_measures_it() -> None:
    encoder = DIALECT.parse(call_of(HELLO, elapsed_s=lambda: 1.5), MODEL).encoder
    _, value = encoder.body([Collected(PROMPT, tuple(event for _, event in one_by_one([(0, 0, PLAIN)])))])
    assert isinstance(value, dict)
    assert value["meta_info"]["e2e_latency"] == 1.5


@pytest.mark.parametrize(
    ("finish", "told"),
    [
        (Finish("stop", EOS), {"type": "stop", "matched": EOS}),
        (Finish("stop", "END"), {"type": "stop", "matched": "END"}),
        (Finish("length"), {"type": "length", "length": 8}),
        (
            Finish("abort", message="Aborted"),
            {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
        ),
    ],
)
def test_finish_reasons_are_objects(finish: Finish, told: Any) -> None:
    body = {**HELLO, "sampling_params": {"max_new_tokens": 8}}
    events = [(0, Ended(0, finish, Usage(3, 8)))]
    assert whole(DIALECT, body, events)["meta_info"]["finish_reason"] == told
    assert streamed(DIALECT, body, events)[-1]["meta_info"]["finish_reason"] == told


def test_an_abort_with_a_status_is_the_answers_status_and_in_a_stream_the_finish_reason() -> None:
    def answer(finish: Finish) -> tuple[int, Any]:
        good = [event for _, event in one_by_one([(0, 0, PLAIN)])]
        encoder = parse(DIALECT, {"text": ["a", "b"]}).encoder
        return encoder.body([Collected(PROMPT, tuple(good)), Collected(PROMPT, (Ended(0, finish, Usage(3, 0)),))])

    assert answer(Finish("abort", message="too long", status=400)) == (400, {"error": {"message": "too long"}})
    status, body = answer(Finish("abort", message="out of memory", status=500))
    assert (status, body["type"], body["code"]) == (500, "500", 500)
    with pytest.raises(Unavailable, match=r"^come again$"):
        answer(Finish("abort", message="come again", status=503))
    (event,) = streamed(DIALECT, HELLO, [(0, Ended(0, Finish("abort", message="m", status=400), Usage(3, 0)))])
    assert event["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "m",
        "status_code": 400,
        "err_type": "BadRequestError",
    }


def test_a_lost_device_fails_the_call() -> None:
    events = [(0, Ended(0, Finish("error", message="device lost"), Usage(3, 0)))]
    with pytest.raises(EngineFailure):
        whole(DIALECT, HELLO, events)
    with pytest.raises(EngineFailure):
        streamed(DIALECT, HELLO, events)
    (event,) = values_of(parse(DIALECT, {**HELLO, "stream": True}).encoder.failed(EngineFailure("device lost")))
    assert event["error"]["code"] == 500
    assert event["error"]["message"] == "Internal server error"


def test_logprobs_are_triples_with_text_only_when_asked_for() -> None:
    tokens = (Token(20, b"a", -0.5, text="a"), Token(21, b"\xf0", float("-inf")))
    events = one_by_one([(0, 0, Script(tokens, Finish("length")))], logprobs=True)
    body = {**HELLO, "return_logprob": True, "top_logprobs_num": 2}
    meta = whole(DIALECT, body, events)["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert meta["input_top_logprobs"] == []
    assert meta["output_token_logprobs"] == [[-0.5, 20, None], [-9999.0, 21, None]]
    assert meta["output_token_logprobs_length"] == 2
    assert meta["output_top_logprobs"] == [
        [[-0.5, 20, None], [-9999.0, 1, None]],
        [[-9999.0, 21, None], [-9999.0, 1, None]],
    ]
    meta = whole(DIALECT, {**body, "return_text_in_logprobs": True, "top_logprobs_num": 0}, events)["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 20, "a"], [-9999.0, 21, "\ufffd"]]
    assert "output_top_logprobs" not in meta
    assert "output_token_logprobs" not in whole(DIALECT, HELLO, events)["meta_info"]


def test_a_stream_is_cumulative_and_null_until_its_last_event() -> None:
    events = streamed(DIALECT, HELLO, one_by_one([(0, 0, PLAIN)]))
    assert [event["text"] for event in events] == [" wor", " world", " world", " world"]
    assert [len(event["output_ids"]) for event in events] == [1, 2, 3, 3]
    assert [event["meta_info"]["finish_reason"] is None for event in events] == [True, True, True, False]


def test_stream_interval_sends_the_first_token_at_once_and_the_rest_in_batches() -> None:
    tokens = tuple(Token(20 + i, b"", 0, text=str(i)) for i in range(7))
    body = {**HELLO, "sampling_params": {"stream_interval": 3}}
    script = [(0, 0, Script(tokens, Finish("length")))]
    whole_texts = [event["text"] for event in streamed(DIALECT, body, one_by_one(script))]
    assert whole_texts == ["0", "0123", "0123456", "0123456"]
    pieces = [event["text"] for event in streamed(DIALECT, body, one_by_one(script), INCREMENTAL)]
    assert pieces == ["0", "123", "456", ""]


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_however_events_are_split_both_kinds_of_stream_agree_with_the_whole_answer(data: st.DataObject) -> None:
    n, size = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    body: dict[str, Any] = {
        "text": ["Hi"] * size,
        "sampling_params": {"n": n, "stream_interval": data.draw(st.integers(1, 3))},
        "return_logprob": True,
        "top_logprobs_num": data.draw(st.integers(0, 2)),
    }
    by_choice = [(ask, choice, data.draw(scripts(chat=False))) for ask in range(size) for choice in range(n)]
    answer = whole(DIALECT, body, data.draw(splits(by_choice, logprobs=True)))
    assert answer == whole(DIALECT, body, one_by_one(by_choice, logprobs=True))
    last: dict[int, Any] = {}
    for event in streamed(DIALECT, body, data.draw(splits(by_choice, logprobs=True))):
        before = last.get(event["index"], {"text": "", "output_ids": [], "meta_info": {"finish_reason": None}})
        assert before["meta_info"]["finish_reason"] is None
        assert event["text"].startswith(before["text"])
        assert event["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        last[event.pop("index")] = event
    assert [last[index] for index in range(n * size)] == answer
    joined: dict[int, Any] = {}
    lists = ("output_token_logprobs", "output_top_logprobs")
    for event in streamed(DIALECT, body, data.draw(splits(by_choice, logprobs=True)), INCREMENTAL):
        index = event.pop("index")
        if (so_far := joined.get(index)) is not None:
            event["text"] = so_far["text"] + event["text"]
            event["output_ids"] = so_far["output_ids"] + event["output_ids"]
            for name in set(lists) & set(event["meta_info"]):
                event["meta_info"][name] = so_far["meta_info"][name] + event["meta_info"][name]
        joined[index] = event
    assert [joined[index] for index in range(n * size)] == answer
