"""Every tensor of a checkpoint by its real name and shape, its initial value, and the fused form the graphs read.

`tensor_shapes` is the one table of names; reading, writing, initialising and fusing all go through it. `fuse` is
differentiable, so training runs through the very same fused form that serving reads.
"""

import math
from collections.abc import Callable, Mapping

import torch
from attrs import frozen
from torch import Tensor

from graphs.config import MTP_KIND, Config, LayerKind

PREFIX = "model.language_model."
HEAD = "lm_head.weight"
LayerWeights = Mapping[str, Tensor]
Shape = tuple[int, ...]


@frozen(eq=False)
class Weights:
    """Fused weights: top holds embed [V, D], norm [D] and head [V, D]; layers of a kind share their keys and shapes."""

    top: LayerWeights
    layers: tuple[LayerWeights, ...]
    mtp: LayerWeights | None

    def tensors(self) -> list[Tensor]:
        """Return every tensor once, a tied head not twice."""
        parts = [self.top, *self.layers, *([] if self.mtp is None else [self.mtp])]
        return list({id(tensor): tensor for part in parts for tensor in part.values()}.values())

    def num_bytes(self) -> int:
        """Return the bytes all tensors hold."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())


# ---------------------------------------------------------------------------------------------------------------------
# Names and shapes
# ---------------------------------------------------------------------------------------------------------------------


def tensor_shapes(config: Config) -> dict[str, Shape]:
    """Return name -> shape of every text tensor of a checkpoint, full names, quantisation scales not counted."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {
        f"{PREFIX}embed_tokens.weight": (vocab, hidden),
        f"{PREFIX}norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes[HEAD] = (vocab, hidden)
    for index, kind in enumerate(config.layer_kinds):
        shapes |= {layer_prefix(index) + name: shape for name, shape in _backbone_shapes(config, kind).items()}
    if config.has_mtp:
        prefix = layer_prefix(config.num_layers)
        shapes |= {prefix + name: shape for name, shape in _mtp_shapes(config).items()}
    return shapes


def layer_prefix(index: int) -> str:
    """Return what the names of a layer's tensors begin with; the MTP layer's index is num_layers."""
    return f"{PREFIX}layers.{index}."


def _backbone_shapes(config: Config, kind: LayerKind) -> dict[str, Shape]:
    streams = config.num_streams
    mixes = (2 + streams) * streams
    shapes = _block_shapes(config, kind)
    for site in ("hc_attn", "hc_ffn"):
        shapes |= {f"{site}_fn": (mixes, streams * config.hidden_size), f"{site}_base": (mixes,), f"{site}_scale": (3,)}
    return shapes


def _mtp_shapes(config: Config) -> dict[str, Shape]:
    hidden = config.hidden_size
    return {
        **_block_shapes(config, MTP_KIND),
        "enorm.weight": (hidden,),
        "hnorm.weight": (hidden,),
        "eh_proj.weight": (hidden, 2 * hidden),
        "shared_head.norm.weight": (hidden,),
    }


def _block_shapes(config: Config, kind: LayerKind) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    attention = _kda_shapes(config) if kind.attention == "kda" else _dsa_shapes(config)
    shapes |= {f"self_attn.{name}": shape for name, shape in attention.items()}
    mlp = _moe_shapes(config) if kind.mlp == "moe" else _mlp_shapes(hidden, config.intermediate_size)
    return shapes | {f"mlp.{name}": shape for name, shape in mlp.items()}


def _kda_shapes(config: Config) -> dict[str, Shape]:
    hidden, width, head = config.hidden_size, config.kda_width, config.kda_head_dim
    shapes: dict[str, Shape] = {f"{part}_proj.weight": (width, hidden) for part in "qkv"}
    shapes |= {f"{part}_conv1d.weight": (width, 1, config.conv_kernel) for part in "qkv"}
    for part in "fg":
        shapes |= {f"{part}_a_proj.weight": (head, hidden), f"{part}_b_proj.weight": (width, head)}
    return {
        **shapes,
        "b_proj.weight": (config.kda_num_heads, hidden),
        "A_log": (config.kda_num_heads,),
        "dt_bias": (width,),
        "o_norm.weight": (head,),
        "o_proj.weight": (hidden, width),
    }


def _dsa_shapes(config: Config) -> dict[str, Shape]:
    hidden, heads, index_dim = config.hidden_size, config.num_heads, config.index_head_dim
    q_rank, kv_rank = config.q_lora_rank, config.kv_lora_rank
    return {
        "q_a_proj.weight": (q_rank, hidden),
        "q_a_layernorm.weight": (q_rank,),
        "q_b_proj.weight": (heads * config.qk_head_dim, q_rank),
        "kv_a_proj_with_mqa.weight": (kv_rank, hidden),
        "kv_a_layernorm.weight": (kv_rank,),
        "kv_b_proj.weight": (heads * (config.qk_head_dim + config.v_head_dim), kv_rank),
        "o_proj.weight": (hidden, heads * config.v_head_dim),
        "indexer.wq_b.weight": (config.index_num_heads * index_dim, q_rank),
        "indexer.wk.weight": (index_dim, hidden),
        "indexer.k_norm.weight": (index_dim,),
        "indexer.k_norm.bias": (index_dim,),
        "indexer.weights_proj.weight": (config.index_num_heads, hidden),
        "indexer.index_kpool_compress_ape": (config.index_kpool, index_dim),
        "indexer.index_kpool_compress_gate": (index_dim, hidden),
    }


def _mlp_shapes(hidden: int, width: int) -> dict[str, Shape]:
    return {
        "gate_proj.weight": (width, hidden),
        "up_proj.weight": (width, hidden),
        "down_proj.weight": (hidden, width),
    }


def _moe_shapes(config: Config) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "gate.weight": (config.num_experts, hidden),
        "gate.e_score_correction_bias": (config.num_experts,),
    }
    for expert in range(config.num_experts):
        one = _mlp_shapes(hidden, config.moe_intermediate_size)
        shapes |= {f"experts.{expert}.{name}": shape for name, shape in one.items()}
    shared = _mlp_shapes(hidden, config.shared_intermediate_size)
    return shapes | {f"shared_experts.{name}": shape for name, shape in shared.items()}


_FP8_ATTENTION = ("q_a_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight", "o_proj.weight")
_FP8_MLP = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")


def fp8_names(config: Config) -> frozenset[str]:
    """Return which tensors the published FP8 checkpoint stores in FP8: feed-forward parts and most of DSA."""
    kinds = [*config.layer_kinds, *([MTP_KIND] if config.has_mtp else [])]
    dsa = tuple(layer_prefix(index) for index, kind in enumerate(kinds) if kind.attention == "dsa")
    shapes = tensor_shapes(config)
    attention = {name for name in shapes if name.startswith(dsa) and name.endswith(_FP8_ATTENTION)} if dsa else set()
    return frozenset(attention | {name for name in shapes if ".mlp." in name and name.endswith(_FP8_MLP)})


# ---------------------------------------------------------------------------------------------------------------------
# Fusing
# ---------------------------------------------------------------------------------------------------------------------


def fuse(config: Config, get: Callable[[str], Tensor], dtype: torch.dtype = torch.float32) -> Weights:
    """Return fused weights of the named tensors `get` returns: matrices in dtype, what the maths needs wide in fp32."""
    names = _Names(get, dtype)
    embed = names.cast(f"{PREFIX}embed_tokens.weight")
    top = {
        "embed": embed,
        "norm": names.cast(f"{PREFIX}norm.weight"),
        "head": embed if config.tie_word_embeddings else names.cast(HEAD),
    }
    layers = tuple(fuse_layer(config, index, get, dtype) for index in range(config.num_layers))
    mtp = fuse_layer(config, config.num_layers, get, dtype) if config.has_mtp else None
    return Weights(top, layers, mtp)


def fuse_layer(config: Config, index: int, get: Callable[[str], Tensor], dtype: torch.dtype) -> LayerWeights:
    """Return the fused weights of one layer; index num_layers is the MTP layer."""
    names = _Names(lambda name: get(layer_prefix(index) + name), dtype)
    is_mtp = index == config.num_layers
    kind = MTP_KIND if is_mtp else config.layer_kinds[index]
    weights = {
        "attn_norm": names.cast("input_layernorm.weight"),
        "mlp_norm": names.cast("post_attention_layernorm.weight"),
    }
    weights |= _fuse_kda(names) if kind.attention == "kda" else _fuse_dsa(config, names)
    weights |= _fuse_moe(config, names) if kind.mlp == "moe" else _fuse_mlp(names, "mlp.")
    if is_mtp:
        extra = {"enorm": "enorm.weight", "hnorm": "hnorm.weight", "eh_proj": "eh_proj.weight"}
        return (
            weights
            | {key: names.cast(name) for key, name in extra.items()}
            | {"norm": names.cast("shared_head.norm.weight")}
        )
    for site in ("hc_attn", "hc_ffn"):
        weights |= {f"{site}_{part}": names.wide(f"{site}_{part}") for part in ("fn", "base", "scale")}
    return weights


class _Names:
    """Named tensors, cast one by one or joined along their first axis."""

    def __init__(self, get: Callable[[str], Tensor], dtype: torch.dtype) -> None:
        self.get = get
        self.dtype = dtype

    def cast(self, name: str) -> Tensor:
        return self.get(name).to(self.dtype)

    def wide(self, name: str) -> Tensor:
        return self.get(name).float()

    def joined(self, *names: str) -> Tensor:
        return torch.cat([self.cast(name) for name in names])


def _fuse_kda(names: _Names) -> dict[str, Tensor]:
    inputs = [f"self_attn.{part}_proj.weight" for part in ("q", "k", "v", "b", "f_a", "g_a")]
    taps = torch.cat([names.wide(f"self_attn.{part}_conv1d.weight") for part in "qkv"])
    return {
        "in_proj": names.joined(*inputs),
        "conv": taps.squeeze(1).t().contiguous(),
        "f_b": names.cast("self_attn.f_b_proj.weight"),
        "g_b": names.cast("self_attn.g_b_proj.weight"),
        "decay": names.wide("self_attn.A_log").exp(),
        "dt_bias": names.wide("self_attn.dt_bias"),
        "o_norm": names.wide("self_attn.o_norm.weight"),
        "o_proj": names.cast("self_attn.o_proj.weight"),
    }


def _fuse_dsa(config: Config, names: _Names) -> dict[str, Tensor]:
    kv_b = names.cast("self_attn.kv_b_proj.weight").unflatten(0, (config.num_heads, -1))
    w_uk, w_uv = kv_b.split([config.qk_head_dim, config.v_head_dim], 1)
    inputs = ["q_a_proj.weight", "kv_a_proj_with_mqa.weight", "indexer.wk.weight"]
    inputs += ["indexer.index_kpool_compress_gate", "indexer.weights_proj.weight"]
    return {
        "in_proj": names.joined(*(f"self_attn.{name}" for name in inputs)),
        "q_norm": names.cast("self_attn.q_a_layernorm.weight"),
        "kv_norm": names.cast("self_attn.kv_a_layernorm.weight"),
        "q_proj": names.joined("self_attn.q_b_proj.weight", "self_attn.indexer.wq_b.weight"),
        "w_uk": w_uk.contiguous(),
        "w_uv": w_uv.contiguous(),
        "o_proj": names.cast("self_attn.o_proj.weight"),
        "index_norm_weight": names.cast("self_attn.indexer.k_norm.weight"),
        "index_norm_bias": names.cast("self_attn.indexer.k_norm.bias"),
        "ape": names.wide("self_attn.indexer.index_kpool_compress_ape"),
    }


def _fuse_mlp(names: _Names, prefix: str) -> dict[str, Tensor]:
    return {
        "gate_up": names.joined(f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"),
        "down": names.cast(f"{prefix}down_proj.weight"),
    }


def _fuse_moe(config: Config, names: _Names) -> dict[str, Tensor]:
    experts = [_fuse_mlp(names, f"mlp.experts.{expert}.") for expert in range(config.num_experts)]
    return {
        "router": names.wide("mlp.gate.weight"),
        "router_bias": names.wide("mlp.gate.e_score_correction_bias"),
        "experts_gate_up": torch.stack([expert["gate_up"] for expert in experts]),
        "experts_down": torch.stack([expert["down"] for expert in experts]),
        **_fuse_mlp(names, "mlp.shared_experts."),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Initial values
# ---------------------------------------------------------------------------------------------------------------------


def init_weights(config: Config, seed: int) -> dict[str, Tensor]:
    """Return fp32 tensors for training from scratch, by full name; the same seed gives the same values."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _initial(config, name, shape, generator) for name, shape in tensor_shapes(config).items()}


def _initial(config: Config, name: str, shape: Shape, generator: torch.Generator) -> Tensor:
    def normal(std: float) -> Tensor:
        return torch.randn(shape, generator=generator) * std

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(shape, generator=generator) * (high - low) + low

    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith(("norm.bias", "e_score_correction_bias")):
        return torch.zeros(shape)
    if name.endswith("dt_bias"):
        # -5 sigmoid(x) over this range forgets within one token at one end and within some 80 at the other.
        return uniform(-6.0, -0.5)
    if name.endswith("A_log"):
        return uniform(0.0, math.log(2.0))
    if name.endswith("_base"):
        return _initial_mix(config, normal(0.3))
    if name.endswith("_scale"):
        return torch.full(shape, 0.1)
    if name.endswith(("embed_tokens.weight", "compress_ape")):
        return normal(0.02)
    if name.endswith("conv1d.weight"):
        return normal(shape[-1] ** -0.5)
    std = float(shape[-1]) ** -0.5
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        std /= math.sqrt(2.0 * config.num_layers)
    return normal(std)


def _initial_mix(config: Config, base: Tensor) -> Tensor:
    """Return base [(2 + n) n] with a strong diagonal in its mixing part: streams start out mostly kept apart."""
    streams = config.num_streams
    base[:streams] = 0.0
    base[2 * streams :] = 3.0 * torch.eye(streams).flatten()
    return base
