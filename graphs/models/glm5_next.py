"""The glm5_next text model (GLM-5.3-Flash): pure fixed-shape functions over (weights, donated state, small inputs)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.config import MTP_KIND, Config, LayerKind
from graphs.layers import kda, mhc, mla_dsa, paged
from graphs.layers.mla_dsa import Regime, regime_of
from graphs.layers.moe import feed_forward
from graphs.layers.norm import rms_norm
from graphs.parameters import LayerWeights, Weights
from graphs.state import LayerState, State


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


def last_hidden(config: Config, w: LayerWeights, streams: Tensor, num_valid: Tensor) -> Tensor:
    """Return h [B, D] of each row's last valid token, of streams [B, T, n, D]; w is the top weights."""
    rows = torch.arange(streams.shape[0], device=streams.device)
    return hidden(config, w, streams[rows, (num_valid - 1).clamp(min=0)])


# ---------------------------------------------------------------------------------------------------------------------
# Serving: one layer, and the whole model composed of layers
# ---------------------------------------------------------------------------------------------------------------------


def prefill_layer(
    config: Config,
    kind: LayerKind,
    regime: Regime,
    w: LayerWeights,
    state: LayerState,
    streams: Tensor,
    start: Tensor,
    num_valid: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return the next streams of [B, T, n, D], T a multiple of 64; writes the layer's state in place."""
    x, post, comb = mhc.collapse(config, w, "hc_attn", streams)
    x = rms_norm(x, w["attn_norm"], config.rms_norm_eps)
    if kind.attention == "kda":
        y = paged.prefill_kda(config, w, state, x, start, num_valid, slots)
    else:
        y = paged.prefill_dsa(config, regime, w, state, x, start, num_valid, slots, page_table)
    return _feed_forward(config, kind, w, mhc.expand(streams, y, post, comb))


def decode_layer(
    config: Config,
    kind: LayerKind,
    regime: Regime,
    w: LayerWeights,
    state: LayerState,
    streams: Tensor,
    start: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return the next streams of [B, 1, n, D], one token a row; writes the layer's state in place."""
    x, post, comb = mhc.collapse(config, w, "hc_attn", streams)
    x = rms_norm(x, w["attn_norm"], config.rms_norm_eps)
    if kind.attention == "kda":
        y = paged.decode_kda(config, w, state, x, start, slots)
    else:
        y = paged.decode_dsa(config, regime, w, state, x, start, slots, page_table)
    return _feed_forward(config, kind, w, mhc.expand(streams, y, post, comb))


def prefill_streams(
    config: Config,
    weights: Weights,
    state: State,
    tokens: Tensor,
    start: Tensor,
    num_valid: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return the last layer's streams [B, T, n, D] of tokens [B, T]; writes every backbone layer's state."""
    regime = context_regime(config, state, page_table)
    streams = embed(config, weights.top, tokens)
    for kind, w, layer in zip(config.layer_kinds, weights.layers, state.layers, strict=True):
        streams = prefill_layer(config, kind, regime, w, layer, streams, start, num_valid, slots, page_table)
    return streams


def prefill(
    config: Config,
    weights: Weights,
    state: State,
    tokens: Tensor,
    start: Tensor,
    num_valid: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return fp32 logits [B, V] after each row's last valid token of tokens [B, T], T a multiple of 64."""
    streams = prefill_streams(config, weights, state, tokens, start, num_valid, slots, page_table)
    return logits(weights.top, last_hidden(config, weights.top, streams, num_valid))


def decode(
    config: Config,
    weights: Weights,
    state: State,
    tokens: Tensor,
    start: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return fp32 logits [B, V] after one token [B] a row at position start [B]."""
    regime = context_regime(config, state, page_table)
    streams = embed(config, weights.top, tokens.unsqueeze(1))
    for kind, w, layer in zip(config.layer_kinds, weights.layers, state.layers, strict=True):
        streams = decode_layer(config, kind, regime, w, layer, streams, start, slots, page_table)
    return logits(weights.top, hidden(config, weights.top, streams.squeeze(1)))


def context_regime(config: Config, state: State, page_table: Tensor) -> Regime:
    """Return the regime of steps over page_table [B, P]: static, by its width and the state's page size."""
    for layer in state.layers:
        if "latent" in layer:
            return regime_of(config, page_table.shape[1] * layer["latent"].shape[1])
    return "dense"


# ---------------------------------------------------------------------------------------------------------------------
# Serving: the MTP layer. Entry p reads the hidden of token p and the id of token p + 1, and predicts token p + 2.
# ---------------------------------------------------------------------------------------------------------------------


def mtp_prefill(
    config: Config,
    regime: Regime,
    top: LayerWeights,
    w: LayerWeights,
    state: LayerState,
    h: Tensor,
    next_tokens: Tensor,
    start: Tensor,
    num_valid: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return y [B, T, D] of h [B, T, D] and next_tokens [B, T] from entry start [B]; logits(top, y) are the drafts."""
    e = _mtp_input(config, top, w, h, next_tokens)
    x = rms_norm(e, w["attn_norm"], config.rms_norm_eps)
    return _mtp_output(
        config, w, e + paged.prefill_dsa(config, regime, w, state, x, start, num_valid, slots, page_table)
    )


def mtp_draft(
    config: Config,
    regime: Regime,
    top: LayerWeights,
    w: LayerWeights,
    state: LayerState,
    h: Tensor,
    next_tokens: Tensor,
    start: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return y [B, D] of h [B, D] and next_tokens [B] at entry start [B]; a second draft step takes y as its h."""
    e = _mtp_input(config, top, w, h.unsqueeze(1), next_tokens.unsqueeze(1))
    x = rms_norm(e, w["attn_norm"], config.rms_norm_eps)
    y = paged.decode_dsa(config, regime, w, state, x, start, slots, page_table)
    return _mtp_output(config, w, e + y).squeeze(1)


# ---------------------------------------------------------------------------------------------------------------------
# Whole sequences from zero state, differentiable
# ---------------------------------------------------------------------------------------------------------------------


def sequence_forward(config: Config, weights: Weights, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return logits [B, T, V] and the MTP layer's logits [B, T - 1, V] (None without one) of tokens [B, T].

    The MTP layer's entry p reads the hidden of token p and the embedding of token p + 1, and predicts token p + 2.
    """
    num_tokens = tokens.shape[1]
    top = weights.top
    streams = embed(config, top, F.pad(tokens, (0, -num_tokens % kda.CHUNK_TOKENS)))
    for kind, w in zip(config.layer_kinds, weights.layers, strict=True):
        streams = sequence_layer(config, kind, w, streams)
    h = hidden(config, top, streams[:, :num_tokens])
    drafts = None
    if weights.mtp is not None:
        drafts = logits(top, sequence_mtp(config, top, weights.mtp, h[:, :-1], tokens[:, 1:]))
    return logits(top, h), drafts


def sequence_layer(config: Config, kind: LayerKind, w: LayerWeights, streams: Tensor) -> Tensor:
    """Return the next streams of whole sequences [B, T, n, D], T a multiple of 64."""
    x, post, comb = mhc.collapse(config, w, "hc_attn", streams)
    x = rms_norm(x, w["attn_norm"], config.rms_norm_eps)
    y = _sequence_kda(config, w, x) if kind.attention == "kda" else _sequence_dsa(config, w, x)
    return _feed_forward(config, kind, w, mhc.expand(streams, y, post, comb))


def sequence_mtp(config: Config, top: LayerWeights, w: LayerWeights, h: Tensor, next_tokens: Tensor) -> Tensor:
    """Return y [B, T, D] of the MTP layer over whole sequences of h [B, T, D] and next_tokens [B, T]."""
    e = _mtp_input(config, top, w, h, next_tokens)
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
    if regime_of(config, num_tokens) == "dense":
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


def _mtp_input(config: Config, top: LayerWeights, w: LayerWeights, h: Tensor, next_tokens: Tensor) -> Tensor:
    token = rms_norm(F.embedding(next_tokens, top["embed"]), w["enorm"], config.rms_norm_eps)
    return F.linear(torch.cat([token, rms_norm(h, w["hnorm"], config.rms_norm_eps)], -1), w["eh_proj"])


def _mtp_output(config: Config, w: LayerWeights, e: Tensor) -> Tensor:
    x = rms_norm(e, w["mlp_norm"], config.rms_norm_eps)
    return rms_norm(e + feed_forward(config, MTP_KIND.mlp, w, x), w["norm"], config.rms_norm_eps)
