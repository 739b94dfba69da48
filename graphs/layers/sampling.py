"""Draws one token a row from logits, as a pure function of (logits, parameters, seed, position).

Theory of operation. The draw is Gumbel-max: argmax of x_v - log E_v, where E_v are exponential variables, takes token v
with probability softmax(x)_v. E_v comes from an integer hash of (seed, position, v), so there is no generator whose
state could depend on the batch, and the same request draws the same tokens alone, beside others or after a restart.

Filters are thresholds, not sorted lists. A float's bits, with the lower 31 flipped for negatives, are an integer of the
same order, so the greatest threshold that still keeps enough is found exactly by 31 halvings (x is never positive),
each one pass over the vocabulary. Everything equal to the threshold is kept: the filters never cut between equal
logits, hence they may keep more than top_k tokens.

    x = (logits - max) / temperature       the reported logprob is log_softmax(x) of the whole vocabulary
    top-k   keep x at or above the k-th greatest
    top-p   of what top-k kept, keep the fewest most likely tokens that hold at least top_p of its mass
    min-p   keep tokens at least min_p times as likely as the most likely one

The most likely token passes every filter. A row of temperature 0 is greedy: argmax, the lowest id on ties, logprob at
temperature 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_LOWEST = -(1 << 31)


class DrawRows(NamedTuple):
    """Sampling parameters [B] on the device; the meaning of `graphs.step.SamplingRows`."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most likely ids [B] of fp32 logits [B, V], lowest id on ties, and their logprobs [B]."""
    x = logits - logits.amax(-1, keepdim=True)
    return x.argmax(-1), -x.exp().sum(-1).log()


def best(logits: Tensor, temperature: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` most likely ids [B, count] and their logprobs, falling, after temperature [B] (None: 1)."""
    x = logits - logits.amax(-1, keepdim=True) if temperature is None else scaled(logits, temperature)
    values, ids = torch.topk(x, count, dim=-1)
    return ids, values - x.exp().sum(-1, keepdim=True).log()


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return (logits [B, V] - their greatest) / temperature [B], where 0 counts as 1: the greatest becomes 0."""
    divisor = torch.where(temperature > 0, temperature, 1.0).unsqueeze(-1)
    return (logits - logits.amax(-1, keepdim=True)) / divisor


def ordered(x: Tensor) -> Tensor:
    """Return int32 of the order of fp32 x; no threshold below 0 tells the two zeros apart."""
    bits = x.view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def greatest_threshold(order: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """Return the greatest t [B, 1] int32 below 0 for which weight [B, V] summed where order >= t is >= wanted [B, 1].

    Without such a t it is the lowest int32, which keeps everything.
    """
    low = torch.full_like(order[:, :1], _LOWEST)
    for bit in range(30, -1, -1):
        middle = low + (1 << bit)
        mass = torch.where(order >= middle, weight, 0.0).sum(-1, keepdim=True)
        low = torch.where(mass >= wanted, middle, low)
    return low


def draw(
    x: Tensor, order: Tensor, least: Tensor, min_p: Tensor, temperature: Tensor, seed: Tensor, position: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ids [B] drawn of scaled logits x [B, V] where order >= least [B, 1] and min_p [B] allow, and logprobs."""
    allowed = (order >= least) & (x >= min_p.log().unsqueeze(-1))
    noisy = torch.where(allowed, x - exponential(seed, position, x.shape[-1]).log(), float("-inf"))
    # A greedy row maximises x itself, so that both kinds of row share one argmax.
    ids = torch.where((temperature > 0).unsqueeze(-1), noisy, x).argmax(-1)
    logprobs = x.gather(-1, ids.unsqueeze(-1)) - x.exp().sum(-1, keepdim=True).log()
    return ids, logprobs.squeeze(-1)


Threshold = Callable[[Tensor, Tensor, Tensor], Tensor]
Draw = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Kernels(NamedTuple):
    """The two costly parts, plain or compiled, and which filters any row uses; an unused one is skipped."""

    threshold: Threshold = greatest_threshold
    draw: Draw = draw
    uses_top_k: bool = True
    uses_top_p: bool = True


PLAIN = Kernels()


def sample(logits: Tensor, rows: DrawRows, position: Tensor, kernels: Kernels = PLAIN) -> tuple[Tensor, Tensor]:
    """Return ids [B] drawn of fp32 logits [B, V] for tokens at position [B], and their logprobs [B]."""
    x = scaled(logits, rows.temperature)
    order = ordered(x)
    least = torch.full_like(order[:, :1], _LOWEST)
    if kernels.uses_top_k:
        count = torch.where(rows.top_k > 0, rows.top_k, x.shape[-1]).clamp(max=x.shape[-1])
        least = kernels.threshold(order, torch.ones_like(x), count.float().unsqueeze(-1))
    if kernels.uses_top_p:
        weight = torch.where(order >= least, x.exp(), 0.0)
        top_p = rows.top_p.unsqueeze(-1)
        nucleus = kernels.threshold(order, weight, top_p * weight.sum(-1, keepdim=True))
        least = torch.where(top_p < 1, nucleus, least)
    return kernels.draw(x, order, least, rows.min_p, rows.temperature, rows.seed, position)


def exponential(seed: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Return E [B, V] fp32 > 0, exponential with mean 1, a pure function of seed [B], position [B] and the token id."""
    key = _mix(seed & _MASK)
    for word in (seed >> 32, position, position >> 32):
        key = _mix(key ^ (word & _MASK))
    token = _mix(torch.arange(vocab_size, device=seed.device))
    bits = _mix(token ^ key.unsqueeze(-1))
    # Small E win draws, so the fine steps of fp32 are put there; the clamp keeps log1p finite at the other end.
    uniform = ((bits.float() + 0.5) * 2.0**-32).clamp(max=1.0 - 2.0**-24)
    return -torch.log1p(-uniform)


def _mix(x: Tensor) -> Tensor:
    """Return a bijective hash of 32-bit values held in int64; no product here exceeds 63 bits."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _MASK
    return x ^ (x >> 15)
