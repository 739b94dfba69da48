import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphs.layers.sampling import (
    DrawRows,
    Kernels,
    best,
    exponential,
    greatest_threshold,
    greedy,
    ordered,
    sample,
    scaled,
)

CHI_SQUARE_999_9_DF = 27.88


def rows(
    count: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | list[int] = 0,
) -> DrawRows:
    return DrawRows(
        torch.full((count,), temperature),
        torch.full((count,), top_k),
        torch.full((count,), top_p),
        torch.full((count,), min_p),
        torch.tensor(seed) if isinstance(seed, list) else torch.full((count,), seed),
    )


def reference_allowed(x: Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """What a row of scaled logits [V] may draw, by sorting, in float64."""
    order = sorted(range(len(x)), key=lambda v: -float(x[v]))
    if top_k:
        least = float(x[order[min(top_k, len(x)) - 1]])
        order = [v for v in order if float(x[v]) >= least]
    mass = [math.exp(float(x[v])) for v in order]
    if top_p < 1:
        count, total = 0, 0.0
        while total < top_p * sum(mass) - 1e-9:
            total += mass[count]
            count += 1
        least = float(x[order[max(count, 1) - 1]])
        order = [v for v in order if float(x[v]) >= least]
    return {v for v in order if float(x[v]) >= math.log(min_p or 1e-300) or v == order[0]}


def drawn_tokens(logits: Tensor, num_draws: int, **parameters: float) -> Tensor:
    """Return how often each token is drawn at positions 0, 1, 2, ..."""
    many = rows(num_draws, **parameters)  # type: ignore[arg-type]
    ids, _ = sample(logits.expand(num_draws, -1), many, torch.arange(num_draws))
    return torch.bincount(ids, minlength=logits.shape[-1])


@pytest.mark.parametrize("seed", [0, 1, -5, 1 << 61])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(seed: int, temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, 0.2, -0.1, 0.9])
    counts = drawn_tokens(logits, 20_000, temperature=temperature, seed=seed).double()
    expected = 20_000 * torch.softmax(logits.double() / temperature, 0)
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_999_9_DF


def test_draws_over_seeds_follow_the_softmax_too() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 1.5, 0.2, -0.1, 0.9])
    seeds = rows(20_000, seed=list(range(20_000)))
    ids, _ = sample(logits.expand(20_000, -1), seeds, torch.zeros(20_000, dtype=torch.int64))
    expected = 20_000 * torch.softmax(logits.double(), 0)
    assert ((torch.bincount(ids, minlength=10) - expected) ** 2 / expected).sum() < CHI_SQUARE_999_9_DF


def test_filtered_draws_follow_the_renormalised_softmax() -> None:
    logits = torch.linspace(0, 3, 10)
    counts = drawn_tokens(logits, 20_000, top_k=6, top_p=0.9, min_p=0.1).double()
    allowed = sorted(reference_allowed(logits - 3, 6, 0.9, 0.1))
    expected = 20_000 * torch.softmax(logits.double()[allowed], 0)
    assert counts.sum() == counts[allowed].sum()
    assert ((counts[allowed] - expected) ** 2 / expected).sum() < CHI_SQUARE_999_9_DF


def test_consecutive_positions_are_independent() -> None:
    noise = exponential(torch.tensor([3]).expand(4096), torch.arange(4096), 8).log().double()
    noise = noise - noise.mean(0)
    for lag in (1, 2, 64):
        product = (noise[lag:] * noise[:-lag]).mean(0) / noise.square().mean(0)
        assert product.abs().max() < 5 / math.sqrt(4096)


def test_noise_is_positive_and_finite_for_any_seed() -> None:
    seeds = torch.tensor([0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1])
    noise = exponential(seeds, torch.full((5,), (1 << 40) + 3), 100_000)
    assert (noise > 0).all()
    assert torch.isfinite(noise).all()
    assert noise.mean(1) == pytest.approx(np.ones(5), abs=0.02)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 30), st.data())
@settings(max_examples=30, deadline=None)
def test_a_draw_depends_on_its_own_row_alone(seed: int, position: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(5, 300, generator=generator) * 3
    place = data.draw(st.integers(0, 4))
    many = rows(5, temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, seed=[11, seed, 13, -1, 99])
    many.seed[place] = seed
    where = torch.tensor([1, 2, 3, 4, 5])
    where[place] = position
    ids, logprobs = sample(logits, many, where)
    alone = sample(
        logits[place : place + 1],
        DrawRows(*(column[place : place + 1] for column in many)),
        where[place : place + 1],
    )
    assert (ids[place], logprobs[place]) == (alone[0][0], alone[1][0])


def test_seed_and_position_change_the_draw() -> None:
    logits = torch.zeros(1, 1000)
    zero = torch.zeros(1, dtype=torch.int64)
    drawn = {int(sample(logits, rows(1, seed=seed), zero + position)[0]) for seed in (0, 1) for position in (0, 1)}
    assert len(drawn) == 4


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40),
    st.integers(0, 45),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]),
    st.sampled_from([0.1, 1.0, 2.5]),
)
@settings(max_examples=150, deadline=None)
def test_filters_keep_what_a_plain_sort_keeps(
    values: list[float], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = torch.tensor([values])
    x = scaled(logits, torch.tensor([temperature]))
    kept: set[int] = set()

    def spy(x: Tensor, order: Tensor, least: Tensor, min_p: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        allowed = (order >= least) & (x >= min_p.log().unsqueeze(-1))
        kept.update(allowed[0].nonzero().flatten().tolist())
        return x.argmax(-1), x.amax(-1)

    parameters = rows(1, temperature, top_k, top_p, min_p)
    sample(logits, parameters, torch.zeros(1, dtype=torch.int64), Kernels(draw=spy))
    expected = reference_allowed(x[0], top_k, top_p, min_p)
    # Mass is summed in fp32: where the nucleus ends within rounding, its last value may be in or out.
    uncertain = {v for v in kept ^ expected if _is_borderline(x[0], v, top_k, top_p)}
    assert kept ^ expected == uncertain


def _is_borderline(x: Tensor, v: int, top_k: int, top_p: float) -> bool:
    allowed = sorted(reference_allowed(x, top_k, 1.0, 0.0), key=lambda u: -float(x[u]))
    mass = [math.exp(float(x[u])) for u in allowed]
    above = sum(m for m, u in zip(mass, allowed, strict=True) if float(x[u]) > float(x[v]))
    with_ties = sum(m for m, u in zip(mass, allowed, strict=True) if float(x[u]) >= float(x[v]))
    wanted = top_p * sum(mass)
    return min(abs(above - wanted), abs(with_ties - wanted)) < 1e-5 * sum(mass)


def test_what_spy_reads_is_what_draw_allows() -> None:
    logits = torch.linspace(0, 3, 10)
    counts = drawn_tokens(logits, 5_000, top_k=3)
    assert counts[:7].sum() == 0
    assert (counts[7:] > 0).all()
    assert drawn_tokens(logits, 500, min_p=1.0)[:9].sum() == 0
    assert drawn_tokens(logits, 500, top_p=1e-6)[:9].sum() == 0


def test_ties_at_a_threshold_are_all_kept() -> None:
    counts = drawn_tokens(torch.tensor([1.0, 1.0, 1.0, 0.0]), 2000, top_k=2)
    assert (counts[:3] > 500).all()
    assert counts[3] == 0


def test_greedy_takes_the_lowest_id_on_ties_and_its_logprob_at_temperature_one() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0]])
    ids, logprobs = greedy(logits)
    assert ids.tolist() == [1, 0]
    expected = torch.log_softmax(logits, -1).gather(1, ids.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(logprobs, expected)
    zero = rows(2, temperature=0.0, top_k=1, top_p=0.1, min_p=0.9, seed=5)
    sampled = sample(logits, zero, torch.tensor([4, 5]))
    assert sampled[0].tolist() == ids.tolist()
    torch.testing.assert_close(sampled[1], expected)


def test_a_row_of_temperature_zero_never_draws_beside_rows_that_do() -> None:
    logits = torch.tensor([0.0, 0.1, 0.2, 0.1]).expand(200, -1)
    mixed = rows(200)
    mixed.temperature[::2] = 0.0
    ids, _ = sample(logits, mixed, torch.arange(200))
    assert set(ids[::2].tolist()) == {2}
    assert set(ids[1::2].tolist()) == {0, 1, 2, 3}


def test_all_64_bits_of_a_seed_count() -> None:
    seeds = [0, 1, 1 << 31, 1 << 32, 1 << 62, -1]
    noise = exponential(torch.tensor(seeds), torch.zeros(len(seeds), dtype=torch.int64), 100)
    assert len({tuple(row) for row in noise.tolist()}) == len(seeds)


def test_neighbouring_floats_are_told_apart() -> None:
    values = [0.0]
    for _ in range(20):
        values.append(float(np.nextafter(np.float32(values[-1] - (0.5 if len(values) == 1 else 0)), np.float32(-1))))
    x = torch.tensor([values])
    for count in range(1, 21):
        least = greatest_threshold(ordered(x), torch.ones_like(x), torch.tensor([[float(count)]]))
        assert (ordered(x) >= least).sum() == count


def test_a_logprob_is_of_the_whole_vocabulary_after_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 100, generator=generator) * 4
    ids, logprobs = sample(logits, rows(4, temperature=0.7, top_k=3, seed=[1, 2, 3, 4]), torch.arange(4))
    expected = torch.log_softmax(logits / 0.7, -1)
    torch.testing.assert_close(logprobs, expected.gather(1, ids.unsqueeze(1)).squeeze(1))
    best_ids, best_logprobs = best(logits, torch.full((4,), 0.7), 5)
    torch.testing.assert_close(best_logprobs, expected.topk(5).values)
    assert torch.equal(best_ids, expected.topk(5).indices)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e30])
def test_extreme_temperatures_give_numbers(temperature: float) -> None:
    logits = torch.tensor([[1e3, -1e3, 999.0, 0.0]])
    ids, logprobs = sample(logits, rows(1, temperature=temperature, top_p=0.9), torch.zeros(1, dtype=torch.int64))
    assert torch.isfinite(logprobs).all()
    assert temperature > 1 or ids.item() == 0


@given(st.lists(st.floats(-(2.0**100), 0, width=32), min_size=1, max_size=60), st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_the_threshold_is_the_kth_greatest_value(values: list[float], count: int) -> None:
    x = torch.tensor([[0.0, *values]])
    count = min(count, x.shape[1])
    order = ordered(x)
    least = greatest_threshold(order, torch.ones_like(x), torch.tensor([[float(count)]]))
    kth = x.sort(descending=True).values[0, count - 1]
    assert torch.equal(order >= least, x >= kth)


def test_a_real_vocabulary_is_served() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 154_880, generator=generator) * 2
    ids, logprobs = sample(logits, rows(2, top_k=20, top_p=0.95, seed=[1, 2]), torch.arange(2))
    assert (logits.gather(1, ids.unsqueeze(1)) >= logits.topk(20).values[:, -1:]).all()
    assert torch.isfinite(logprobs).all()
