"""Logprobs of a prompt's tokens and of ids that a request names, from the scheduler's arrays to entries with bytes."""

import math
from typing import Any

import numpy as np
from attrs import evolve

from stages.detokenizer.choice import Choice
from stages.messages import Delta, Ended, PromptScores, Submit, TokenLogprob, TokensRow, Usage
from tests.small_tokenizer import ids
from tests.stages.detokenizer.rows import LENGTH, PARSED, decoding, submit, vocabulary


def scored(**changes: Any) -> Submit:
    return submit(prompt_ids=(40, 41, 42, 43), prompt_logprobs_from=1, num_top_logprobs=2, **changes)


def scores(wanted: bool = False) -> PromptScores:
    return PromptScores(
        np.array([-0.5, -1.5], np.float32),
        np.array([[50, 51], [52, 53]], np.int32),
        np.array([[-0.25, -0.5], [-0.75, -2.0]], np.float32),
        np.array([[-4.0], [-8.0]], np.float32) if wanted else None,
    )


def test_a_prompts_logprobs_come_with_the_first_delta_and_begin_with_a_token_of_which_nothing_is_known() -> None:
    piece = vocabulary().piece
    choice = Choice(scored(logprob_token_ids=(7,)), decoding())
    row = TokensRow(scored(logprob_token_ids=(7,)), (60,), usage=Usage(4, 1), prompt=scores(wanted=True))
    (delta,) = choice.take(row)
    assert isinstance(delta, Delta)
    first, *others = delta.prompt_logprobs
    assert (first.token_id, first.token_bytes, first.top, first.wanted) == (41, piece(41), (), ())
    assert math.isnan(first.logprob)
    assert others == [
        TokenLogprob(42, -0.5, piece(42), ((50, -0.25, piece(50)), (51, -0.5, piece(51))), ((7, -4.0, piece(7)),)),
        TokenLogprob(43, -1.5, piece(43), ((52, -0.75, piece(52)), (53, -2.0, piece(53))), ((7, -8.0, piece(7)),)),
    ]
    assert delta.token_ids == (60,)


def test_a_prompts_logprobs_come_without_a_token_in_a_delta_before_the_end() -> None:
    row = TokensRow(scored(), (), finish=LENGTH, usage=Usage(4, 0), prompt=scores())
    delta, ended = Choice(scored(), decoding()).take(row)
    assert isinstance(delta, Delta)
    assert ([entry.token_id for entry in delta.prompt_logprobs], delta.usage) == ([41, 42, 43], Usage(4, 0))
    assert ended == Ended(0, LENGTH, Usage(4, 0))


def test_of_several_deltas_of_a_step_the_first_has_the_prompts_logprobs() -> None:
    # Text behind a call cannot stand in the call's Delta.
    token_ids = tuple(ids("a<tool_call>f\n</tool_call>b<tool_call>g\n</tool_call>"))
    sent = evolve(scored(), form=PARSED)
    row = TokensRow(sent, token_ids, finish=LENGTH, usage=Usage(4, len(token_ids)), prompt=scores())
    *deltas, _ = Choice(sent, decoding()).take(row)
    assert len(deltas) > 1
    assert [len(delta.prompt_logprobs) for delta in deltas if isinstance(delta, Delta)][:2] == [3, 0]


def test_a_prompt_with_nothing_after_its_first_scored_token_brings_that_token_alone() -> None:
    nothing = PromptScores(np.zeros(0, np.float32), np.zeros((0, 2), np.int32), np.zeros((0, 2), np.float32))
    sent = evolve(scored(), prompt_logprobs_from=3)
    (delta,) = Choice(sent, decoding()).take(TokensRow(sent, (60,), usage=Usage(4, 1), prompt=nothing))
    assert isinstance(delta, Delta)
    assert [entry.token_id for entry in delta.prompt_logprobs] == [43]


def test_the_logprobs_of_named_ids_come_with_each_token() -> None:
    piece = vocabulary().piece
    sent = submit(logprobs=True, logprob_token_ids=(7, 8))
    row = TokensRow(sent, (60, 61), (-1.0, -2.0), wanted=((-3.0, -4.0), (-math.inf, -6.0)), usage=Usage(1, 2))
    (delta,) = Choice(sent, decoding()).take(row)
    assert isinstance(delta, Delta)
    assert [entry.wanted for entry in delta.logprobs] == [
        ((7, -3.0, piece(7)), (8, -4.0, piece(8))),
        ((7, -math.inf, piece(7)), (8, -6.0, piece(8))),
    ]
