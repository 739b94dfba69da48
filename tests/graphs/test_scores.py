"""A prompt's scores equal the log-softmax of the reference implementation's logits, and cost only what is asked."""

import numpy as np
import pytest
import torch
from attrs import evolve

from graphs import ending
from graphs.devices.cpu import CpuDevice
from graphs.step import Scores
from tests.contracts.edits_contract import targets_of
from tests.graphs.conftest import Model
from tests.graphs.steps import SETTINGS as SMALL
from tests.graphs.steps import Change, adjusting, allowing, ask, decode, prefill, scored, with_edits
from tests.graphs.tiny import random_tokens

SETTINGS = evolve(SMALL, buckets=evolve(SMALL.buckets, tokens=(64, 128, 192), pages=(2, 4, 6)), num_pages=60)
TOLERANCE = {"rtol": 0.0, "atol": 1e-4}


@pytest.fixture
def device(model: Model) -> CpuDevice:
    return CpuDevice(model.config, model.weights, SETTINGS, "eager")


def reference_of(model: Model, tokens: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    return model.reference.logits(torch.tensor([tokens]))[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("num_tokens", [2, 63, 64, 65, 128, 150])
@pytest.mark.parametrize("first", [0, 1])
def test_scores_equal_the_reference(model: Model, device: CpuDevice, num_tokens: int, first: int) -> None:
    tokens = random_tokens(num_tokens, seed=num_tokens).tolist()
    other = random_tokens(30, seed=1).tolist()
    wanted = np.array([[3, 200, 0], [3, 255, 9]])
    rows = [
        (evolve(ask(1), pages=(1, 2, 3, 4, 5, 6)), tokens, 0),
        (evolve(ask(4), pages=(9, 10, 11, 12, 13, 14)), other, 0),
    ]
    targets = [(0, at, tokens[at + 1]) for at in range(first, num_tokens - 1)]
    targets += [(1, at, other[at + 1]) for at in range(5, 29)]
    scores = device.run(scored(prefill(device.capacity, rows), targets, wanted)).scores
    assert scores is not None
    expected = [reference_of(model, text) for text in (tokens, other)]
    for row, offset, target in targets:
        check(scores, row, offset, expected[row][offset], target, wanted[row])


def check(scores: Scores, row: int, offset: int, expected: np.ndarray, target: int, wanted: np.ndarray) -> None:  # type: ignore[type-arg]
    assert scores.wanted is not None
    np.testing.assert_allclose(scores.logprobs[row, offset], expected[target], **TOLERANCE)
    np.testing.assert_allclose(scores.wanted[row, offset], expected[wanted], **TOLERANCE)
    np.testing.assert_allclose(scores.top_logprobs[row, offset], np.sort(expected)[::-1][:5], **TOLERANCE)
    np.testing.assert_allclose(expected[scores.top_ids[row, offset]], scores.top_logprobs[row, offset], **TOLERANCE)


def test_scores_are_of_plain_logits_whatever_is_sampled_after_them(device: CpuDevice) -> None:
    tokens = random_tokens(20, seed=2).tolist()
    step = prefill(device.capacity, [(ask(1, temperature=1.7, top_k=3, seed=4), tokens, 0)], "sample_logprobs")
    step = scored(step, targets_of(0, tokens, 0, 20))
    plain = device.run(step).scores
    edits = with_edits(step, allowing(256, [9]), adjusting(256, 4, Change(tokens={9: (0.0, 0.0, -50.0)})))
    output = device.run(edits)
    assert output.token_ids[0] == 9
    assert plain is not None
    assert output.scores is not None
    assert output.scores.logprobs.tobytes() == plain.logprobs.tobytes()


def test_only_blocks_of_rows_with_a_target_are_scored(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def counting(logits: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(logits.shape))
        return torch.logsumexp(logits, -1)

    monkeypatch.setattr(ending, "total", counting)
    rows = [
        (evolve(ask(1), pages=(1, 2, 3, 4, 5, 6)), [5] * 150, 0),
        (evolve(ask(4), pages=(9, 10, 11, 12, 13, 14)), [5] * 64, 0),
    ]
    step = prefill(device.capacity, rows)
    device.run(step)
    assert seen == []
    device.run(scored(step, [(0, 130, 9), (0, 140, 9), (1, 63, 8)]))
    # One block of each of two rows, never the whole prompt.
    assert seen == [(64, 256)] * 2
    device.run(scored(step, [(0, 0, 9), (0, 63, 9), (0, 64, 9), (0, 149, 1)]))
    assert len(seen) == 2 + 3


def test_the_last_tokens_score_is_what_decoding_reports(device: CpuDevice) -> None:
    tokens = random_tokens(30, seed=6).tolist()
    output = device.run(prefill(device.capacity, [(ask(1), tokens, 0)], "greedy_logprobs"))
    newest = int(output.token_ids[0])
    scores = device.run(scored(prefill(device.capacity, [(ask(2), tokens, 0)]), [(0, 29, newest)])).scores
    assert scores is not None
    assert output.top_ids is not None
    assert scores.logprobs[0, 29] == pytest.approx(float(output.logprobs[0]), abs=1e-5)
    assert scores.top_ids[0, 29].tolist() == output.top_ids[0].tolist()
    following = device.run(decode(device.capacity, [(ask(1), 30)], "greedy_logprobs"))
    longer = [*tokens, newest]
    target = int(following.token_ids[0])
    scores = device.run(scored(prefill(device.capacity, [(ask(2), longer, 0)]), [(0, 30, target)])).scores
    assert scores is not None
    assert scores.logprobs[0, 30] == pytest.approx(float(following.logprobs[0]), abs=1e-5)


def test_wanted_logprobs_are_those_of_the_best_list_after_edits(device: CpuDevice) -> None:
    tokens = random_tokens(30, seed=7).tolist()
    for variant, temperature in (("greedy_logprobs", 0.0), ("sample_logprobs", 1.6)):
        row = ask(1, temperature=temperature, seed=3)
        step = with_edits(
            prefill(device.capacity, [(row, tokens, 0)], variant),
            allowing(256, range(100, 200)),
            adjusting(256, 4, Change(tokens={150: (0.0, 0.0, 4.0)})),
        )
        best = device.run(step)
        assert best.top_ids is not None
        assert best.top_logprobs is not None
        wanted = np.concatenate([best.top_ids, best.token_ids[:, None], [[7]]], axis=1)
        output = device.run(evolve(step, wanted_ids=wanted))
        assert output.wanted is not None
        np.testing.assert_allclose(output.wanted[0, :5], best.top_logprobs[0], atol=1e-5)
        assert output.wanted[0, 5] == pytest.approx(float(best.logprobs[0]), abs=1e-5)
        assert output.wanted[0, 6] == -np.inf
