"""Manifold-constrained hyper-connections: n residual streams, mixed by weights computed from the streams themselves.

Each site reads x = sum_i pre_i X_i and writes X'_j = post_j y + sum_i comb[i, j] X_i. comb is made doubly stochastic
by Sinkhorn's alternating normalisation. The mixing weights are kept as [.., N] with the N tokens innermost, so that
every normalisation is a handful of long vector operations instead of N tiny ones.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphs.config import Config


def sinkhorn(kernel: Tensor, iterations: int, eps: float) -> Tensor:
    """Normalise kernel [n, n, N] > 0 by columns, then (iterations - 1) times by rows and columns."""
    comb = kernel / (kernel.sum(0, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        comb = comb / (comb.sum(0, keepdim=True) + eps)
    return comb


def collapse(config: Config, w: Mapping[str, Tensor], site: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return block input x [B, T, D], post [n, N] and comb [n, n, N] (N = B x T) of streams [B, T, n, D] at a site."""
    num_streams = config.num_streams
    fn, base, scale = w[f"{site}_fn"], w[f"{site}_base"], w[f"{site}_scale"]
    wide = streams.float().flatten(0, 1)
    flat = wide.flatten(1)
    # The norm is unweighted, one factor a token, so it commutes with the projection.
    mix = (fn @ flat.t()) * torch.rsqrt(flat.square().mean(1) + config.rms_norm_eps)
    pre, post, kernel = mix.split([num_streams, num_streams, num_streams * num_streams])
    base_pre, base_post, base_kernel = base.unsqueeze(1).split([num_streams, num_streams, num_streams * num_streams])
    pre = torch.sigmoid(pre * scale[0] + base_pre) + config.mhc_eps
    post = 2.0 * torch.sigmoid(post * scale[1] + base_post)
    kernel = (kernel * scale[2] + base_kernel).unflatten(0, (num_streams, num_streams))
    comb = sinkhorn(torch.softmax(kernel, 1) + config.mhc_eps, config.sinkhorn_iterations, config.mhc_eps)
    x = (pre.t().contiguous().unsqueeze(1) @ wide).squeeze(1)
    return x.to(streams.dtype).unflatten(0, streams.shape[:2]), post, comb


def expand(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Return the next streams [B, T, n, D] from streams, the block's output y [B, T, D], post and comb."""
    wide = streams.float().flatten(0, 1)
    # Contiguous, since a batched product over odd strides falls back to one call a token.
    mixed = comb.permute(2, 1, 0).contiguous() @ wide + post.t().unsqueeze(2) * y.float().flatten(0, 1).unsqueeze(1)
    return mixed.to(streams.dtype).view_as(streams)
