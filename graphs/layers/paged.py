"""Attention layers over paged and slotted state: reads it, runs the layer's maths, writes it back in place.

Prefill takes T tokens of each row beginning at `start` (a multiple of kpool), `num_valid` of them real; decode takes
one token at any position. A row whose start is 0 begins from zero state whatever its slot held. Padding tokens and
unfinished groups are written to the null page, so they change nothing that anyone reads.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphs.config import Config
from graphs.layers import kda, mla_dsa
from graphs.layers.mla_dsa import Regime
from graphs.state import LayerState

NULL_PAGE = 0
LayerWeights = Mapping[str, Tensor]


# ---------------------------------------------------------------------------------------------------------------------
# KDA: one state a slot
# ---------------------------------------------------------------------------------------------------------------------


def prefill_kda(
    config: Config, w: LayerWeights, state: LayerState, x: Tensor, start: Tensor, num_valid: Tensor, slots: Tensor
) -> Tensor:
    """Return the layer's output [B, T, D] of x [B, T, D] in chunk form; T is a multiple of 64."""
    conv, recurrent = _read_slots(state, start, slots)
    inputs = kda.project(config, w, x)
    valid = (torch.arange(x.shape[1], device=x.device) < num_valid.unsqueeze(1)).unsqueeze(2)
    window = torch.cat([conv, inputs.qkv], 1)
    g = inputs.g.masked_fill(~valid.unsqueeze(3), 0.0)
    beta = inputs.beta.masked_fill(~valid, 0.0)
    q, k, v = kda.heads_of(config, kda.convolve(w, window))
    o, recurrent = kda.kda_chunk(q, k, v, g, beta, recurrent)
    # The last columns before the first padding token: the window begins kernel - 1 columns before the row's start.
    keep = num_valid.unsqueeze(1) + torch.arange(config.conv_kernel - 1, device=x.device)
    conv = window.gather(1, keep.unsqueeze(2).expand(-1, -1, window.shape[2]))
    _write_slots(state, slots, conv, recurrent)
    return kda.output(config, w, o, inputs.gate)


def decode_kda(config: Config, w: LayerWeights, state: LayerState, x: Tensor, start: Tensor, slots: Tensor) -> Tensor:
    """Return the layer's output [B, 1, D] of one token x [B, 1, D] in recurrent form."""
    conv, recurrent = _read_slots(state, start, slots)
    inputs = kda.project(config, w, x)
    window = torch.cat([conv, inputs.qkv], 1)
    q, k, v = (part.squeeze(1) for part in kda.heads_of(config, kda.convolve(w, window)))
    o, recurrent = kda.kda_recurrent(q, k, v, inputs.g.squeeze(1), inputs.beta.squeeze(1), recurrent)
    _write_slots(state, slots, window[:, 1:], recurrent)
    return kda.output(config, w, o.unsqueeze(1), inputs.gate)


def _read_slots(state: LayerState, start: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    fresh = start == 0
    conv = state["conv"][slots].masked_fill(fresh.view(-1, 1, 1), 0.0)
    return conv, state["recurrent"][slots].masked_fill(fresh.view(-1, 1, 1, 1), 0.0)


def _write_slots(state: LayerState, slots: Tensor, conv: Tensor, recurrent: Tensor) -> None:
    state["conv"].index_copy_(0, slots, conv)
    state["recurrent"].index_copy_(0, slots, recurrent)


# ---------------------------------------------------------------------------------------------------------------------
# DSA: latents and pooled keys in pages, the open group in a slot
# ---------------------------------------------------------------------------------------------------------------------


def prefill_dsa(
    config: Config,
    regime: Regime,
    w: LayerWeights,
    state: LayerState,
    x: Tensor,
    start: Tensor,
    num_valid: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return the layer's output [B, T, D] of x [B, T, D] over page_table [B, P]; T is a multiple of kpool."""
    inputs = mla_dsa.project(config, w, x)
    kpool = config.index_kpool
    offset = torch.arange(x.shape[1], device=x.device)
    position = start.unsqueeze(1) + offset
    _write_pages(state["latent"], inputs.latent, position, offset < num_valid.unsqueeze(1), page_table)
    groups = inputs.tail.unflatten(1, (-1, kpool))
    group = torch.arange(groups.shape[1], device=x.device)
    complete = group < (num_valid // kpool).unsqueeze(1)
    pooled = mla_dsa.pool(w, groups)
    _write_pages(state["pooled"], pooled, (start // kpool).unsqueeze(1) + group, complete, page_table)
    # With no open group this keeps the last closed one, which nobody reads.
    open_group = (num_valid // kpool).clamp(max=groups.shape[1] - 1)
    state["tail"].index_copy_(0, slots, groups[torch.arange(groups.shape[0], device=x.device), open_group])
    latents = state["latent"][page_table].flatten(1, 2)
    if regime == "sparse":
        keys = state["pooled"][page_table].flatten(1, 2)
        scores = mla_dsa.score(config, inputs.index_q, inputs.index_w, keys)
        visible = mla_dsa.visible_sparse(config, scores, position, latents.shape[1])
    else:
        visible = torch.arange(latents.shape[1], device=x.device) <= position.unsqueeze(2)
    return mla_dsa.attend(config, w, inputs.q, latents, visible)


def decode_dsa(
    config: Config,
    regime: Regime,
    w: LayerWeights,
    state: LayerState,
    x: Tensor,
    start: Tensor,
    slots: Tensor,
    page_table: Tensor,
) -> Tensor:
    """Return the layer's output [B, 1, D] of one token x [B, 1, D] at position start [B] over page_table [B, P]."""
    inputs = mla_dsa.project(config, w, x)
    kpool = config.index_kpool
    position = start.unsqueeze(1)
    always = torch.ones_like(position, dtype=torch.bool)
    _write_pages(state["latent"], inputs.latent, position, always, page_table)
    state["tail"].index_put_((slots, start % kpool), inputs.tail.squeeze(1))
    pooled = mla_dsa.pool(w, state["tail"][slots]).unsqueeze(1)
    closes = position % kpool == kpool - 1
    _write_pages(state["pooled"], pooled, position // kpool, closes, page_table)
    if regime == "sparse":
        keys = state["pooled"][page_table].flatten(1, 2)
        scores = mla_dsa.score(config, inputs.index_q, inputs.index_w, keys).squeeze(1)
        latents, visible = _read_selected(config, state["latent"], scores, start, page_table)
    else:
        latents = state["latent"][page_table].flatten(1, 2)
        visible = torch.arange(latents.shape[1], device=x.device) <= position
    return mla_dsa.attend(config, w, inputs.q, latents, visible.unsqueeze(1))


def _read_selected(
    config: Config, latent: Tensor, scores: Tensor, start: Tensor, page_table: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the latents [B, S, R] a query at start [B] selects by scores [B, G], and which are visible [B, S]."""
    kpool, page_size = config.index_kpool, latent.shape[1]
    num_complete = (start + 1) // kpool
    chosen, real = mla_dsa.select_groups(config, scores, num_complete)
    step = torch.arange(kpool, device=scores.device)
    selected = (chosen.unsqueeze(2) * kpool + step).flatten(1)
    tail = (num_complete * kpool).unsqueeze(1) + step[:-1]
    visible = torch.cat([real.repeat_interleave(kpool, 1), tail <= start.unsqueeze(1)], 1)
    position = torch.cat([selected, tail], 1).clamp(max=page_table.shape[1] * page_size - 1)
    pages = page_table.gather(1, position // page_size)
    return latent[pages, position % page_size], visible


def _write_pages(pool: Tensor, values: Tensor, position: Tensor, valid: Tensor, page_table: Tensor) -> None:
    """Write values [B, N, W] to pool [num_pages, page, W] at entries position [B, N], invalid ones to the null page."""
    page_size = pool.shape[1]
    index = (position // page_size).clamp(max=page_table.shape[1] - 1)
    pages = page_table.gather(1, index).masked_fill(~valid, NULL_PAGE)
    pool.index_put_((pages, position % page_size), values)
