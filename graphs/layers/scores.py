"""Logprobs of given tokens under plain logits: what a prompt's own tokens are worth."""

from typing import NamedTuple

from torch import Tensor

from graphs.layers.sampling import scaled


class Scored(NamedTuple):
    """Logprobs [N] of targets, the best K ids and logprobs [N, K], falling, and logprobs [N, M] of wanted ids."""

    logprobs: Tensor
    best_ids: Tensor
    best_logprobs: Tensor
    wanted: Tensor


def total(logits: Tensor) -> Tensor:
    """Return log sum exp [N] of fp32 logits [N, V]: a logit less it is a logprob."""
    greatest = logits.amax(-1, keepdim=True)
    return ((logits - greatest).exp().sum(-1, keepdim=True).log() + greatest).squeeze(-1)


def score(logits: Tensor, totals: Tensor, targets: Tensor, wanted_ids: Tensor, num_best: int) -> Scored:
    """Return what logits [N, V] with their totals [N] say of targets [N] and wanted_ids [M]; -1 reads as token 0."""
    totals = totals.unsqueeze(-1)
    values, ids = logits.topk(num_best, dim=-1)
    own = logits.gather(-1, targets.clamp(min=0).unsqueeze(-1)) - totals
    return Scored(own.squeeze(-1), ids, values - totals, logits[:, wanted_ids.clamp(min=0)] - totals)


def wanted_logprobs(logits: Tensor, temperature: Tensor, wanted_ids: Tensor) -> Tensor:
    """Return the logprobs [B, M] after temperature [B] (0: 1) of wanted_ids [B, M] in logits [B, V]; -1 as above."""
    x = scaled(logits, temperature)
    return x.gather(-1, wanted_ids.clamp(min=0)) - x.exp().sum(-1, keepdim=True).log()
