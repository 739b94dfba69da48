"""The glm5_next text model (GLM-5.3-Flash): pure fixed-shape functions over (weights, donated state, small inputs)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.config import MTP_KIND, Config, LayerKind
from graphs.layers import kda, mhc, mla_dsa
from graphs.layers.moe import feed_forward
from graphs.layers.norm import rms_norm
from graphs.parameters import LayerWeights, Weights


def embed(config: Config, w: LayerWeights, tokens: Tensor) -> Tensor:
    """Return streams X [B, T, n, D] of tokens [B, T]: the embedding row, n times; w is the top weights."""
    return F.embedding(tokens, w["embed"]).unsqueeze(2).expand(-1, -1, config.num_streams, -1)


def hidden(config: Config, w: LayerWeights, streams: Tensor) -> Tensor:
    """Return h [.., D], the normed mean of the streams [.., n, D]; w is the top weights."""
    mean = streams.float().mean(-2).to(streams.dtype)
    return rms_norm(mean, w["norm"], config.rms_norm_eps)


def logits(w: LayerWeights, h: Tensor) -> Tensor:
    """Return fp32 logits [.., V] of h [.., D]; w is the top weights."""
    return F.linear(h, w["head"]).float()


# ---------------------------------------------------------------------------------------------------------------------
# Whole sequences from zero state, differentiable
# ---------------------------------------------------------------------------------------------------------------------


def sequence_forward(config: Config, weights: Weights, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return logits [B, T, V] and the MTP layer's logits [B, T - 1, V] (None without one) of tokens [B, T].

    The MTP layer's entry p reads the hidden of token p and the embedding of token p + 1, and predicts token p + 2.
    """
    num_tokens = tokens.shape[1]
    streams = embed(config, weights.top, F.pad(tokens, (0, -num_tokens % kda.CHUNK_TOKENS)))
    for kind, w in zip(config.layer_kinds, weights.layers, strict=True):
        streams = sequence_layer(config, kind, w, streams)
    h = hidden(config, weights.top, streams[:, :num_tokens])
    drafts = None
    if weights.mtp is not None:
        drafts = logits(weights.top, sequence_mtp(config, weights, h[:, :-1], tokens[:, 1:]))
    return logits(weights.top, h), drafts


def sequence_layer(config: Config, kind: LayerKind, w: LayerWeights, streams: Tensor) -> Tensor:
    """Return the next streams of whole sequences [B, T, n, D], T a multiple of 64."""
    x, post, comb = mhc.collapse(config, w, "hc_attn", streams)
    x = rms_norm(x, w["attn_norm"], config.rms_norm_eps)
    y = _sequence_kda(config, w, x) if kind.attention == "kda" else _sequence_dsa(config, w, x)
    return _feed_forward(config, kind, w, mhc.expand(streams, y, post, comb))


def sequence_mtp(config: Config, weights: Weights, h: Tensor, next_tokens: Tensor) -> Tensor:
    """Return y [B, T, D] of the MTP layer over whole sequences of h [B, T, D] and next_tokens [B, T]."""
    assert weights.mtp is not None
    w = weights.mtp
    e = _mtp_input(config, weights, h, next_tokens)
    e = e + _sequence_dsa(config, w, rms_norm(e, w["attn_norm"], config.rms_norm_eps))
    return _mtp_output(config, w, e)


def _sequence_kda(config: Config, w: LayerWeights, x: Tensor) -> Tensor:
    inputs = kda.project(config, w, x)
    mixed = kda.convolve(w, F.pad(inputs.qkv, (0, 0, config.conv_kernel - 1, 0)))
    width = config.kda_head_dim
    state = torch.zeros(x.shape[0], config.kda_num_heads, width, width, device=x.device)
    o, _ = kda.kda_chunk(*kda.heads_of(config, mixed), inputs.g, inputs.beta, state)
    return kda.output(config, w, o, inputs.gate)


def _sequence_dsa(config: Config, w: LayerWeights, x: Tensor) -> Tensor:
    inputs = mla_dsa.project(config, w, x)
    batch, num_tokens = x.shape[:2]
    if mla_dsa.regime_of(config, num_tokens) == "dense":
        return mla_dsa.attend_causal(config, w, inputs.q, inputs.latent)
    num_groups = num_tokens // config.index_kpool
    groups = inputs.tail[:, : num_groups * config.index_kpool].unflatten(1, (num_groups, config.index_kpool))
    scores = mla_dsa.score(config, inputs.index_q, inputs.index_w, mla_dsa.pool(w, groups))
    position = torch.arange(num_tokens, device=x.device).expand(batch, -1)
    visible = mla_dsa.visible_sparse(config, scores, position, num_tokens)
    return mla_dsa.attend(config, w, inputs.q, inputs.latent, visible)


# ---------------------------------------------------------------------------------------------------------------------
# Shared parts
# ---------------------------------------------------------------------------------------------------------------------


def _feed_forward(config: Config, kind: LayerKind, w: LayerWeights, streams: Tensor) -> Tensor:
    x, post, comb = mhc.collapse(config, w, "hc_ffn", streams)
    y = feed_forward(config, kind.mlp, w, rms_norm(x, w["mlp_norm"], config.rms_norm_eps))
    return mhc.expand(streams, y, post, comb)


def _mtp_input(config: Config, weights: Weights, h: Tensor, next_tokens: Tensor) -> Tensor:
    assert weights.mtp is not None
    w = weights.mtp
    token = rms_norm(F.embedding(next_tokens, weights.top["embed"]), w["enorm"], config.rms_norm_eps)
    return F.linear(torch.cat([token, rms_norm(h, w["hnorm"], config.rms_norm_eps)], -1), w["eh_proj"])


def _mtp_output(config: Config, w: LayerWeights, e: Tensor) -> Tensor:
    x = rms_norm(e, w["mlp_norm"], config.rms_norm_eps)
    return rms_norm(e + feed_forward(config, MTP_KIND.mlp, w, x), w["norm"], config.rms_norm_eps)
