"""The losses the shipped model is trained on, through the model's own chunk form, each part of a layer compiled once.

A whole layer would be compiled once for every kind of layer, most of it again and again the same mixing of streams.
Compiled are therefore the parts that layers share; the few calls between them stay as they are.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.config import Config
from graphs.layers import mhc
from graphs.layers.moe import feed_forward
from graphs.layers.norm import rms_norm
from graphs.models import glm5_next as model
from graphs.parameters import LayerWeights, Weights

LossOf = Callable[[Weights, Tensor, Tensor], tuple[Tensor, Tensor]]

KDA_KEYS = ("in_proj", "conv", "f_b", "g_b", "decay", "dt_bias", "o_norm", "o_proj")
DSA_KEYS = ("in_proj", "q_norm", "kv_norm", "q_proj", "w_uk", "w_uv", "o_proj", "index_norm_weight", "index_norm_bias")
MLP_KEYS = ("gate_up", "down")
MOE_KEYS = (*MLP_KEYS, "router", "router_bias", "experts_gate_up", "experts_down")


def compile_parts(config: Config) -> None:
    """Replace the parts of the model's layers by compiled ones, for this process."""
    wrap: Any = torch.compile(dynamic=False, fullgraph=True)

    def only(keys: tuple[str, ...], w: LayerWeights) -> dict[str, Tensor]:
        return {key: w[key] for key in keys if key in w}

    eager_kda, eager_dsa = model._sequence_kda, model._sequence_dsa
    eager_collapse = mhc.collapse
    kda = wrap(lambda w, x: eager_kda(config, w, x))
    dsa = wrap(lambda w, x: eager_dsa(config, w, x))
    dense = wrap(lambda w, x: feed_forward(config, "dense", w, x))
    moe = wrap(lambda w, x: feed_forward(config, "moe", w, x))
    collapse = wrap(lambda w, streams: eager_collapse(config, w, "site", streams))

    def any_site(_: Config, w: LayerWeights, site: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = {f"site_{part}": w[f"{site}_{part}"] for part in ("fn", "base", "scale")}
        out: tuple[Tensor, Tensor, Tensor] = collapse(parts, streams)
        return out

    def any_feed(_: Config, kind: str, w: LayerWeights, x: Tensor) -> Tensor:
        out: Tensor = moe(only(MOE_KEYS, w), x) if kind == "moe" else dense(only(MLP_KEYS, w), x)
        return out

    replaced: dict[str, Any] = {
        "_sequence_kda": lambda _, w, x: kda(only(KDA_KEYS, w), x),
        "_sequence_dsa": lambda _, w, x: dsa(only((*DSA_KEYS, "ape"), w), x),
        "feed_forward": any_feed,
        "rms_norm": wrap(rms_norm),
    }
    for name, part in replaced.items():
        setattr(model, name, part)
    setattr(mhc, "collapse", any_site)  # noqa: B010 - a plain assignment is refused by the type checker
    mhc.expand = wrap(expand_stream_by_stream)


def expand_stream_by_stream(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Return what `mhc.expand` does, written as sums, which the compiler fuses.

    As a batched product it is a library call for each token's 4 x 4 matrix, and a third of a training step.
    """
    parts, block = streams.float().flatten(0, 1).unbind(1), y.float().flatten(0, 1)
    mixed = []
    for target in range(len(parts)):
        total = post[target].unsqueeze(1) * block
        for source, part in enumerate(parts):
            total = total + comb[source, target].unsqueeze(1) * part
        mixed.append(total)
    out: Tensor = torch.stack(mixed, 1).to(streams.dtype).unflatten(0, streams.shape[:2])
    return out


def losses(config: Config, compiled: bool) -> LossOf:
    """Return the function of (weights, ids [B, T], target weights [B, T]) giving next-token and MTP loss."""
    entropy: Any = cross_entropy
    if compiled:
        compile_parts(config)
        entropy = torch.compile(cross_entropy, dynamic=False, fullgraph=True)

    def both(weights: Weights, ids: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        assert weights.mtp is not None
        streams = model.embed(config, weights.top, ids).contiguous()
        for kind, w in zip(config.layer_kinds, weights.layers, strict=True):
            streams = model.sequence_layer(config, kind, w, streams)
        h = model.hidden(config, weights.top, streams)
        loss = entropy(weights.top["head"], h, *_shifted(ids, shares, 1))
        y = model.sequence_mtp(config, weights.top, weights.mtp, h, ids.roll(-1, 1))
        return loss, entropy(weights.top["head"], y, *_shifted(ids, shares, 2))

    return both


def cross_entropy(head: Tensor, h: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """Return the weighted mean of -log p(target) under head over h [B, T, D]."""
    logits = F.linear(h, head).flatten(0, 1).float()
    each = F.cross_entropy(logits, targets.flatten(), reduction="none")
    return (each * shares.flatten()).sum() / shares.sum()


def _shifted(ids: Tensor, shares: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """Return the targets `by` tokens later; the last ones stay in shape but weigh nothing."""
    later = shares.roll(-by, 1)
    later[:, -by:] = 0
    return ids.roll(-by, 1), later
