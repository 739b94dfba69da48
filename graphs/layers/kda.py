"""Kimi delta attention: a gated delta rule with one fp32 state matrix [K, V] a head, in two forms of the same maths.

Recurrent, per head and token:  S <- diag(e^g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q.

Chunk form over C = 64 tokens, with G_i the running sum of g inside the chunk:

    A_ij = beta_i <k_i, k_j e^(G_i - G_j)>  (j < i)      P_ij = <q_i, k_j e^(G_i - G_j)>  (j <= i)
    X = (I + A)^-1     W = X (beta k e^G)     U = X (beta v)     V' = U - W S
    o = (q e^G) S + P V'          S <- diag(e^(G_C)) S + (k e^(G_C - G))^T V'

Two rules keep it finite:

- e^(G_i - G_j) is factored per sub-block of 16 rows around R, the value of G just before the sub-block: e^(G_i - R) is
  at most 1, and e^(R - G_j) is at most e^80 because g >= -5. Pairs above the diagonal can exceed that, so the
  exponent is clamped before exp (no inf, hence no NaN in gradients) and the pair is dropped by `where`.
- X is built from inverses of blocks of 8 (three-term doubling, safe at that size), merged pairwise to 16, 32, 64. The
  doubling product over all 64 rows loses everything for near-parallel keys (repetitive text) with weak decay.

A padding token has g = 0 and beta = 0: it leaves the state as it is and touches no other token.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.config import MAX_LOG_DECAY_SUM, SUB_BLOCK_TOKENS, Config
from graphs.layers.norm import gated_rms_norm, l2_norm

CHUNK_TOKENS = 64
INVERSE_BLOCK = 8


class Projected(NamedTuple):
    """Input projections: raw q|k|v [B, T, 3Q], log decay g [B, T, H, K], beta [B, T, H] and gate [B, T, H, V]."""

    qkv: Tensor
    g: Tensor
    beta: Tensor
    gate: Tensor


def project(config: Config, w: Mapping[str, Tensor], x: Tensor) -> Projected:
    """Return the input projections of x [B, T, D]; g (log decay) and beta are fp32."""
    heads, width = config.kda_num_heads, config.kda_head_dim
    sizes = [3 * config.kda_width, heads, width, width]
    qkv, b, f_a, g_a = F.linear(x, w["in_proj"]).split(sizes, -1)
    raw = (F.linear(f_a, w["f_b"]).float() + w["dt_bias"]).unflatten(-1, (heads, width))
    g = config.gate_lower_bound * torch.sigmoid(w["decay"].unsqueeze(1) * raw)
    gate = F.linear(g_a, w["g_b"]).unflatten(-1, (heads, width))
    return Projected(qkv, g, torch.sigmoid(b).float(), gate)


def convolve(w: Mapping[str, Tensor], window: Tensor) -> Tensor:
    """Return silu of the causal depthwise convolution [B, T, 3Q] of window [B, kernel - 1 + T, 3Q]."""
    taps = w["conv"]
    kernel = taps.shape[0]
    num_tokens = window.shape[1] - kernel + 1
    wide = window.float()
    total = wide[:, :num_tokens] * taps[0]
    for tap in range(1, kernel):
        total = total + wide[:, tap : tap + num_tokens] * taps[tap]
    return F.silu(total).to(window.dtype)


def heads_of(config: Config, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return fp32 q, k, v [B, T, H, K] of convolved q|k|v [B, T, 3Q]: q and k of unit length, q scaled."""
    q, k, v = mixed.float().unflatten(-1, (3, config.kda_num_heads, config.kda_head_dim)).unbind(-3)
    return l2_norm(q) * config.kda_head_dim**-0.5, l2_norm(k), v


def output(config: Config, w: Mapping[str, Tensor], o: Tensor, gate: Tensor) -> Tensor:
    """Return the layer's output [B, T, D] of o [B, T, H, V] (fp32) and gate [B, T, H, V]."""
    normed = gated_rms_norm(o.to(gate.dtype), w["o_norm"], gate, config.rms_norm_eps)
    return F.linear(normed.flatten(-2), w["o_proj"])


def kda_recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Advance state [B, H, K, V] by one token of q, k, v, g [B, H, K] and beta [B, H]; return o [B, H, V] and state."""
    state = state * g.exp().unsqueeze(-1)
    update = (v - (k.unsqueeze(-2) @ state).squeeze(-2)) * beta.unsqueeze(-1)
    state = state + k.unsqueeze(-1) * update.unsqueeze(-2)
    return (q.unsqueeze(-2) @ state).squeeze(-2), state


def kda_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Advance state [B, H, K, V] by T tokens (a multiple of 64) of q, k, v, g [B, T, H, K] and beta [B, T, H].

    Returns o [B, T, H, V] and the state after the last token. Everything is fp32.
    """
    q, k, v, g = (_chunked(part) for part in (q, k, v, g))
    beta = _chunked(beta.unsqueeze(-1))
    total = g.cumsum(-2)
    products, scores = _pair_products(q, k, total)
    rows = torch.arange(CHUNK_TOKENS, device=q.device)
    zero = torch.zeros((), dtype=q.dtype, device=q.device)
    inverse = unit_lower_inverse(torch.where(rows.unsqueeze(1) > rows, products * beta, zero))
    scores = torch.where(rows.unsqueeze(1) >= rows, scores, zero)
    growth = total.exp()
    w = inverse @ (k * beta * growth)
    u = inverse @ (v * beta)
    q = q * growth
    last = total[..., -1:, :]
    k_out = (k * (last - total).exp()).transpose(-1, -2)
    decay = last.exp().transpose(-1, -2)
    outputs = []
    for chunk in range(q.shape[2]):
        new_v = u[:, :, chunk] - w[:, :, chunk] @ state
        outputs.append(q[:, :, chunk] @ state + scores[:, :, chunk] @ new_v)
        state = decay[:, :, chunk] * state + k_out[:, :, chunk] @ new_v
    return torch.cat(outputs, 2).transpose(1, 2), state


def _chunked(x: Tensor) -> Tensor:
    """Return x [B, T, H, K] as [B, H, T / 64, 64, K]."""
    parts: Tensor = x.transpose(1, 2).unflatten(2, (-1, CHUNK_TOKENS))
    return parts


def _pair_products(q: Tensor, k: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return <k_i, k_j e^(G_i - G_j)> and <q_i, k_j e^(G_i - G_j)> [.., C, C], right for j <= i, finite elsewhere."""
    blocks = CHUNK_TOKENS // SUB_BLOCK_TOKENS
    before = F.pad(total[..., SUB_BLOCK_TOKENS - 1 : -1 : SUB_BLOCK_TOKENS, :], (0, 0, 1, 0)).unsqueeze(-2)
    left = (total.unflatten(-2, (blocks, SUB_BLOCK_TOKENS)) - before).exp()
    right = k.unsqueeze(-3) * (before - total.unsqueeze(-3)).clamp(max=MAX_LOG_DECAY_SUM).exp()
    both = torch.cat([k.unflatten(-2, (blocks, SUB_BLOCK_TOKENS)) * left, q.unflatten(-2, (blocks, -1)) * left], -2)
    pairs = both @ right.transpose(-1, -2)
    of_k, of_q = pairs.split(SUB_BLOCK_TOKENS, -2)
    return of_k.flatten(-3, -2), of_q.flatten(-3, -2)


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """Return (I + lower)^-1 [.., C, C] of a strictly lower triangular matrix; C is 8 times a power of 2."""
    size = lower.shape[-1]
    diagonal = _diagonal_blocks(lower, INVERSE_BLOCK)
    eye = torch.eye(INVERSE_BLOCK, dtype=lower.dtype, device=lower.device)
    square = diagonal @ diagonal
    inverse = (eye - diagonal) @ (eye + square)
    inverse = inverse + inverse @ (square @ square)
    block = INVERSE_BLOCK
    while block < size:
        corner = _diagonal_blocks(lower, 2 * block)[..., block:, :block]
        top, bottom = inverse.unflatten(-3, (-1, 2)).unbind(-3)
        low = -(bottom @ corner @ top)
        inverse = torch.cat([F.pad(top, (0, block)), torch.cat([low, bottom], -1)], -2)
        block *= 2
    return inverse.squeeze(-3)


def _diagonal_blocks(x: Tensor, block: int) -> Tensor:
    """Return the [.., C / block, block, block] blocks on the diagonal of x [.., C, C]."""
    tiles: Tensor = x.unflatten(-1, (-1, block)).unflatten(-3, (-1, block))
    return tiles.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
