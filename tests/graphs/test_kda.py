"""The chunk form of KDA equals the recurrent form where that is hardest: aligned keys, fast and slow decay."""

import pytest
import torch
from torch import Tensor

from graphs.layers.kda import kda_chunk, kda_recurrent, unit_lower_inverse
from graphs.layers.norm import l2_norm

HEADS, WIDTH = 3, 32
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs(spread: float, decay: float, beta: float | None, num_tokens: int = 192, seed: int = 0) -> Inputs:
    """Draw q, k, v, g, beta [2, T, ..]: keys spread around one direction, g near decay, beta fixed or anything."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    shape = (2, num_tokens, HEADS, WIDTH)
    k = l2_norm(normal(1, 1, HEADS, WIDTH) + spread * normal(*shape))
    q = l2_norm(normal(*shape)) * WIDTH**-0.5
    g = (decay * (1.0 + 0.05 * normal(*shape))).clamp(-5.0, -1e-7)
    share = torch.sigmoid(normal(*shape[:3])) if beta is None else torch.full(shape[:3], beta)
    return q, k, normal(*shape), g, share


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run the recurrent form token by token in fp64."""
    outputs = []
    state = state.double()
    for t in range(q.shape[1]):
        parts = (part[:, t].double() for part in (q, k, v, g, beta))
        o, state = kda_recurrent(*parts, state)
        outputs.append(o)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("spread", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("decay", [-5.0, -1.0, -1e-3, -1e-6])
@pytest.mark.parametrize("beta", [0.999, None])
def test_chunk_form_equals_recurrent_form(spread: float, decay: float, beta: float | None) -> None:
    args = inputs(spread, decay, beta)
    state = 0.3 * torch.randn(2, HEADS, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
    o, after = kda_chunk(*args, state)
    expected_o, expected = recurrence(*args, state)
    assert torch.isfinite(o).all()
    torch.testing.assert_close(o.double(), expected_o, atol=1e-5, rtol=0)
    torch.testing.assert_close(after.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_gate_at_the_floor_for_a_whole_chunk_stays_finite_in_values_and_gradients() -> None:
    q, k, v, g, beta = inputs(0.01, -5.0, 0.999, num_tokens=64)
    g = torch.full_like(g, -5.0).requires_grad_()
    k.requires_grad_()
    o, after = kda_chunk(q, k, v, g, beta, torch.zeros(2, HEADS, WIDTH, WIDTH))
    (o.sum() + after.sum()).backward()
    for value in (o, after, g.grad, k.grad):
        assert value is not None
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("num_valid", [1, 15, 16, 17, 63, 64, 100])
def test_padding_leaves_state_and_outputs_as_they_are(num_valid: int) -> None:
    q, k, v, g, beta = inputs(0.3, -0.1, None, num_tokens=128)
    valid = torch.arange(128) < num_valid
    masked_g = torch.where(valid[:, None, None], g, 0.0)
    masked_beta = torch.where(valid[:, None], beta, 0.0)
    zero = torch.zeros(2, HEADS, WIDTH, WIDTH)
    o, after = kda_chunk(q, k, v, masked_g, masked_beta, zero)
    expected_o, expected = recurrence(*(part[:, :num_valid] for part in (q, k, v, g, beta)), zero)
    torch.testing.assert_close(o[:, :num_valid].double(), expected_o, atol=1e-5, rtol=0)
    torch.testing.assert_close(after.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("spread", [0.01, 0.3, 1.0])
def test_the_inverse_is_exact_for_near_parallel_keys(spread: float) -> None:
    _, k, _, _, _ = inputs(spread, -1.0, None, num_tokens=64)
    keys = k.transpose(1, 2)
    lower = torch.tril(0.999 * (keys @ keys.transpose(-1, -2)), -1)
    product = unit_lower_inverse(lower).double() @ (torch.eye(64).double() + lower.double())
    torch.testing.assert_close(product, torch.eye(64).double().expand_as(product), atol=1e-5, rtol=0)
