"""Latent attention without positions (NoPE MLA) and the sparse selection in front of it (DSA with pooled keys).

All heads share one latent c [R] a token, which is both key and value: with W_UK folded into the query and W_UV after
the weighted sum, a head's attention is a plain product over latents ("absorbed").

The indexer chooses what a query sees when the context is longer than `index_topk`. Every complete group of `kpool`
tokens has one pooled key, a gated mean of its tokens' index keys, final once its last token exists. A query at
position t scores the groups that are complete at t, p < (t + 1) // kpool, takes the best index_topk / kpool of them
(ties go to the lowest group) and always adds the tail, the tokens of the open group up to itself. As long as all
groups fit, that is everything up to t ("dense" regime): scoring is skipped, pooled keys are still built.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.config import Config
from graphs.layers.norm import INDEX_NORM_EPS, rms_norm

Regime = Literal["dense", "sparse"]


def regime_of(config: Config, context_tokens: int) -> Regime:
    """Return dense when every query within context_tokens sees all before it, else sparse."""
    return "dense" if context_tokens <= config.index_topk + config.index_kpool - 1 else "sparse"


class Projected(NamedTuple):
    """Projections of x [B, T, D]: q [B, T, H, Kq], latent [B, T, R], and the indexer's parts.

    index_q [B, T, Hi, Di], index_w [B, T, Hi] fp32 and tail [B, T, 2 Di], the index key and its pooling gate.
    """

    q: Tensor
    latent: Tensor
    index_q: Tensor
    index_w: Tensor
    tail: Tensor


def project(config: Config, w: Mapping[str, Tensor], x: Tensor) -> Projected:
    """Return the projections of x [B, T, D]."""
    heads, index_heads, index_dim = config.num_heads, config.index_num_heads, config.index_head_dim
    sizes = [config.q_lora_rank, config.kv_lora_rank, index_dim, index_dim, index_heads]
    q_a, kv_a, key, gate, weights = F.linear(x, w["in_proj"]).split(sizes, -1)
    q_latent = rms_norm(q_a, w["q_norm"], config.rms_norm_eps)
    widths = [heads * config.qk_head_dim, index_heads * index_dim]
    q, index_q = F.linear(q_latent, w["q_proj"]).split(widths, -1)
    key = F.layer_norm(key, (index_dim,), w["index_norm_weight"], w["index_norm_bias"], INDEX_NORM_EPS)
    return Projected(
        q=q.unflatten(-1, (heads, config.qk_head_dim)),
        latent=rms_norm(kv_a, w["kv_norm"], config.rms_norm_eps),
        index_q=index_q.unflatten(-1, (index_heads, index_dim)),
        index_w=weights.float() * index_heads**-0.5,
        tail=torch.cat([key, gate], -1),
    )


def pool(w: Mapping[str, Tensor], tail: Tensor) -> Tensor:
    """Return the pooled key [.., Di] of whole groups' index keys and gates tail [.., kpool, 2 Di]."""
    key, gate = tail.chunk(2, -1)
    share = torch.softmax(gate.float() + w["ape"], -2).to(key.dtype)
    return (share * key).sum(-2)


def score(config: Config, index_q: Tensor, index_w: Tensor, pooled: Tensor) -> Tensor:
    """Return fp32 scores [B, T, G] of pooled keys [B, G, Di] for index_q [B, T, Hi, Di] and index_w [B, T, Hi]."""
    num_tokens, index_heads = index_q.shape[1:3]
    products = index_q.flatten(1, 2).float() @ pooled.float().transpose(1, 2)
    hits = F.relu(products * config.index_head_dim**-0.5).unflatten(1, (num_tokens, index_heads))
    scores: Tensor = (index_w.unsqueeze(2) @ hits).squeeze(2)
    return scores


def select_groups(config: Config, scores: Tensor, num_complete: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best groups [.., k] and which of them are real, of scores [.., G] with num_complete [..] groups."""
    count = min(config.index_topk // config.index_kpool, scores.shape[-1])
    group = torch.arange(scores.shape[-1], device=scores.device)
    masked = scores.masked_fill(group >= num_complete.unsqueeze(-1), float("-inf"))
    # A stable sort, not topk: relu makes exact zeros, and topk leaves the order of equal scores open.
    chosen = torch.sort(masked, dim=-1, descending=True, stable=True).indices[..., :count]
    return chosen, chosen < num_complete.unsqueeze(-1)


def visible_sparse(config: Config, scores: Tensor, position: Tensor, num_keys: int) -> Tensor:
    """Return [B, T, L] bool: which of L key positions the queries at position [B, T] see, given scores [B, T, G]."""
    kpool = config.index_kpool
    num_complete = (position + 1) // kpool
    chosen, real = select_groups(config, scores, num_complete)
    groups = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device).scatter(-1, chosen, real)
    key = torch.arange(num_keys, device=scores.device)
    tail = (key >= (num_complete * kpool).unsqueeze(-1)) & (key <= position.unsqueeze(-1))
    selected = groups.repeat_interleave(kpool, -1)
    return F.pad(selected, (0, num_keys - selected.shape[-1])) | tail


def attend(config: Config, w: Mapping[str, Tensor], q: Tensor, latents: Tensor, visible: Tensor) -> Tensor:
    """Return the layer's output [B, T, D] of q [B, T, H, Kq] over latents [B, L, R] where visible [B, T, L]."""
    batch, num_tokens, heads, _ = q.shape
    folded = torch.einsum("bthk,hkr->bthr", q, w["w_uk"]).flatten(1, 2)
    scores = (folded @ latents.transpose(1, 2)).float() * config.qk_head_dim**-0.5
    scores = scores.view(batch, num_tokens, heads, -1).masked_fill(~visible.unsqueeze(2), float("-inf"))
    share = torch.softmax(scores, -1).to(latents.dtype)
    mixed = (share.flatten(1, 2) @ latents).view(batch, num_tokens, heads, -1)
    return F.linear(torch.einsum("bthr,hvr->bthv", mixed, w["w_uv"]).flatten(2), w["o_proj"])


def attend_causal(config: Config, w: Mapping[str, Tensor], q: Tensor, latents: Tensor) -> Tensor:
    """Return the layer's output [B, T, D] of q [B, T, H, Kq] over its own latents [B, T, R], expanded, causal."""
    k = torch.einsum("btr,hkr->bhtk", latents, w["w_uk"])
    v = torch.einsum("btr,hvr->bhtv", latents, w["w_uv"])
    scale = config.qk_head_dim**-0.5
    o = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, scale=scale)
    return F.linear(o.transpose(1, 2).flatten(2), w["o_proj"])
