import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs.devices.sim import edited_row
from graphs.ending import edited
from graphs.layers.edits import adjusted, masked, word_bits
from graphs.layers.scores import total, wanted_logprobs
from graphs.step import Edits
from tests.graphs.steps import Change, adjusting, allowing

floats = st.floats(-30, 30, width=32, allow_nan=False)


def logits_of(vocab_size: int, num_rows: int, seed: int = 0) -> torch.Tensor:
    return 5 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 100, 2560])
def test_a_mask_rules_out_exactly_the_tokens_whose_bits_are_unset(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    rows = [{0}, {vocab_size - 1}, set(range(vocab_size)), set(random.integers(0, vocab_size, 20).tolist())]
    logits = logits_of(vocab_size, 4)
    found = masked(logits, torch.from_numpy(allowing(vocab_size, *rows)), word_bits())
    for row, tokens in enumerate(rows):
        for token_id in range(vocab_size):
            expected = logits[row, token_id] if token_id in tokens else -torch.inf
            assert found[row, token_id] == expected


def test_bits_past_the_vocabulary_allow_nothing() -> None:
    words = np.full((1, 2), -1, np.int32)
    assert torch.equal(masked(logits_of(40, 1), torch.from_numpy(words), word_bits()), logits_of(40, 1))


@st.composite
def changes(draw: st.DrawFn, vocab_size: int) -> Change:
    ids = draw(st.lists(st.integers(0, vocab_size - 1), unique=True, max_size=8))
    count = st.integers(0, 50).map(float)
    return Change(
        tokens={
            token_id: (draw(count), float(draw(st.booleans())), draw(st.just(0.0) | st.floats(-100, 100, width=32)))
            for token_id in ids
        },
        repetition=draw(st.just(1.0) | st.floats(0.125, 2, width=32)),
        frequency=draw(st.just(0.0) | st.floats(-2, 2, width=32)),
        presence=draw(st.just(0.0) | st.floats(-2, 2, width=32)),
    )


@given(st.data())
def test_penalties_and_biases_equal_a_plain_loop_over_tokens(data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([8, 33]))
    rows = data.draw(st.lists(changes(vocab_size), min_size=1, max_size=3))
    logits = np.array(
        data.draw(st.lists(st.lists(floats, min_size=vocab_size, max_size=vocab_size), min_size=3, max_size=3)),
        np.float32,
    )[: len(rows)]
    edits = Edits(adjust=adjusting(vocab_size, data.draw(st.sampled_from([8, vocab_size])), *rows))
    found = edited(torch.from_numpy(logits), edits, {}).numpy()
    for row, change in enumerate(rows):
        for token_id in range(vocab_size):
            x = float(logits[row, token_id])
            if token_id not in change.tokens:
                assert found[row, token_id].tobytes() == logits[row, token_id].tobytes()
                continue
            count, seen, bias = change.tokens[token_id]
            x -= change.frequency * count
            x -= change.presence if count > 0 else 0.0
            if seen:
                x = x / change.repetition if x > 0 else x * change.repetition
            # A logit that lost nearly all it had keeps the rounding of what it was.
            assert found[row, token_id] == pytest.approx(x + bias, rel=1e-5, abs=5e-4)
        np.testing.assert_allclose(edited_row(logits[row], edits, row), found[row], rtol=1e-5, atol=5e-4)


def test_what_a_token_loses_by_coming_by_being_seen_and_by_bias() -> None:
    tokens = {0: (0.0, 0.0, 0.0), 1: (0.0, 1.0, 0.0), 2: (3.0, 1.0, 0.0), 3: (1.0, 0.0, 5.0), 4: (2.0, 1.0, -1.0)}
    change = Change(tokens=tokens, repetition=2.0, frequency=0.5, presence=0.25)
    logits = torch.tensor([[1.0, 1.0, 4.0, 1.0, -1.0, 1.0]])
    found = edited(logits, Edits(adjust=adjusting(6, 6, change)), {})
    assert found.tolist() == [[1.0, 0.5, (4.0 - 1.75) / 2, 1.0 - 0.75 + 5.0, (-1.0 - 1.25) * 2 - 1.0, 1.0]]


def test_places_that_name_no_token_change_none_whatever_they_hold() -> None:
    logits = logits_of(9, 2)
    ids = torch.full((2, 4), 9)
    wild = torch.full((2, 4), 1e30)
    row = torch.tensor([2.0, 0.5])
    found = adjusted(logits, ids, wild, wild, wild, row, row, row)
    assert found.numpy().tobytes() == logits.numpy().tobytes()
    assert found.is_contiguous()


def test_the_mask_comes_after_the_bias() -> None:
    adjust = adjusting(4, 4, Change(tokens={2: (0.0, 0.0, 100.0)}))
    found = edited(torch.zeros(1, 4), Edits(allowing(4, [0, 1]), adjust), {})
    assert found.tolist() == [[0.0, 0.0, -torch.inf, -torch.inf]]


def test_totals_are_log_sums_of_exponentials() -> None:
    logits = logits_of(1000, 5)
    torch.testing.assert_close(total(logits), torch.logsumexp(logits, -1))
    logits[:, 3:] = -torch.inf
    torch.testing.assert_close(total(logits), torch.logsumexp(logits, -1))


def test_wanted_logprobs_are_after_temperature_and_minus_infinity_where_ruled_out() -> None:
    logits = logits_of(10, 2)
    logits[0, 4] = -torch.inf
    found = wanted_logprobs(logits, torch.tensor([2.0, 0.0]), torch.tensor([[4, 5], [9, -1]]))
    expected = torch.stack([(logits[0] / 2).log_softmax(-1), logits[1].log_softmax(-1)])
    assert found[0, 0] == -torch.inf
    assert found[0, 1] == pytest.approx(float(expected[0, 5]), abs=1e-6)
    assert found[1, 0] == pytest.approx(float(expected[1, 9]), abs=1e-6)
