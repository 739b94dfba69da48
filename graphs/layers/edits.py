"""Changes logits before a token is chosen: penalties and biases of some tokens first, then tokens ruled out.

Both are pure and row by row. `adjusted` works on the K tokens a row names and puts every other logit back as it was,
bit for bit; places that name no token read and write a spare column past the vocabulary. `masked` unpacks 32 tokens a
word by AND with constant bits and a comparison: shifts and quotients of integers are what device compilers get wrong.
Constants are tensors of the right type for the same reason.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

WORD_BITS = 32


def word_bits() -> Tensor:
    """Return bits [32] int32: bit i of a word, the last of them the sign."""
    return torch.tensor([1 << bit for bit in range(WORD_BITS - 1)] + [-(1 << (WORD_BITS - 1))], dtype=torch.int32)


def masked(logits: Tensor, allowed: Tensor, bits: Tensor) -> Tensor:
    """Return logits [B, V], minus infinity where allowed [B, ceil(V / 32)] int32 lacks the token's of bits [32]."""
    may_come = ((allowed.unsqueeze(-1) & bits) != torch.zeros_like(bits)).flatten(1)[:, : logits.shape[1]]
    return torch.where(may_come, logits, torch.full_like(logits[:, :1], float("-inf")))


def adjusted(
    logits: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    seen: Tensor,
    bias: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """Return logits [B, V] with those of token_ids [B, K] changed as `graphs.step.Adjust` says; V names no token."""
    zero = torch.zeros_like(counts)
    spare = F.pad(logits, (0, 1))
    x = spare.gather(-1, token_ids)
    x = x - frequency.unsqueeze(-1) * counts
    x = torch.where(counts > zero, x - presence.unsqueeze(-1), x)
    factor = repetition.unsqueeze(-1)
    x = torch.where(seen > zero, torch.where(x > zero, x / factor, x * factor), x)
    return spare.scatter(-1, token_ids, x + bias)[:, :-1].contiguous()
