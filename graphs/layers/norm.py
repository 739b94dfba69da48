"""Normalisations; each reduces in fp32 whatever the type of its input."""

import torch
from torch import Tensor

INDEX_NORM_EPS = 1e-6
L2_EPS = 1e-6


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x [.., D] over its root mean square, cast to x's type, times weight [D]."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """Return fp32 RMS norm of x [.., V] times weight [V] times sigmoid of gate [.., V], cast to x's type."""
    wide = x.float()
    normed = weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps))
    return (normed * torch.sigmoid(gate.float())).to(x.dtype)


def l2_norm(x: Tensor) -> Tensor:
    """Return x [.., K] over its Euclidean length; the epsilon stands inside the root."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
