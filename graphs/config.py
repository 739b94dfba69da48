"""What a checkpoint's config.json says of the architecture, as one frozen value.

Nothing that changes the maths has a default here: the reference implementation's class defaults differ from the
published checkpoint (its `index_kpool` is 16, the checkpoint's is 4), so a missing key is an error that names it.
Both spellings are read: the raw checkpoint's (`linear_attn_config`, `first_k_dense_replace`) and the flattened one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attrs import frozen

SUB_BLOCK_TOKENS = 16
MAX_LOG_DECAY_SUM = 80.0
"""Largest sum of log decays in one sub-block whose exp stays finite in fp32."""

_ATTENTION = {
    "linear_attention": "kda",
    "deepseek_sparse_attention": "dsa",
    "indexed_attention": "dsa",
    "full_attention": "dsa",
}
_MLP = {"dense": "dense", "sparse": "moe"}

# Switches of the family that this architecture fixes: absent is fine, another value is refused.
_FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "attention_bias": False,
    "qk_rope_head_dim": 0,
    "mla_use_nope": True,
    "index_kpool_compress": True,
    "index_kpool_always_select_tail": True,
    "mhc": True,
}


class ConfigError(Exception):
    """A config.json that cannot be served, saying which key and why."""


class LayerKind(NamedTuple):
    """What a layer is made of: its attention and its feed-forward part."""

    attention: Literal["kda", "dsa"]
    mlp: Literal["dense", "moe"]


MTP_KIND = LayerKind("dsa", "moe")


@frozen
class Config:
    """Sizes and constants of one glm5_next text model."""

    vocab_size: int
    hidden_size: int
    layer_kinds: tuple[LayerKind, ...]
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    swiglu_limit: float
    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_head_dim: int
    v_head_dim: int
    index_topk: int
    index_kpool: int
    index_num_heads: int
    index_head_dim: int
    kda_num_heads: int
    kda_head_dim: int
    conv_kernel: int
    gate_lower_bound: float
    num_streams: int
    sinkhorn_iterations: int
    mhc_eps: float
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    has_mtp: bool

    @property
    def num_layers(self) -> int:
        """Return the number of backbone layers, the MTP layer not counted."""
        return len(self.layer_kinds)

    @property
    def shared_intermediate_size(self) -> int:
        """Return the width of the shared expert."""
        return self.num_shared_experts * self.moe_intermediate_size

    @property
    def kda_width(self) -> int:
        """Return Q, the width of all KDA heads together."""
        return self.kda_num_heads * self.kda_head_dim

    @classmethod
    def read(cls, folder: Path) -> "Config":
        """Read folder/config.json; raises ConfigError when it is missing, malformed or not servable."""
        path = Path(folder) / "config.json"
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: not a JSON object")
        return cls.from_json(value)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Config":
        """Read a config.json's object, with or without a nested text_config; raises ConfigError naming the key."""
        keys = _Keys({**value, **value.get("text_config", {})})
        keys.refuse_other_architectures()
        config = cls(
            vocab_size=keys.integer("vocab_size"),
            hidden_size=keys.integer("hidden_size"),
            layer_kinds=keys.layer_kinds(),
            intermediate_size=keys.integer("intermediate_size"),
            moe_intermediate_size=keys.integer("moe_intermediate_size"),
            num_experts=keys.integer("n_routed_experts"),
            num_experts_per_token=keys.integer("num_experts_per_tok"),
            num_shared_experts=keys.integer("n_shared_experts"),
            norm_topk_prob=keys.boolean("norm_topk_prob"),
            routed_scaling_factor=keys.number("routed_scaling_factor"),
            swiglu_limit=keys.number("swiglu_limit"),
            num_heads=keys.integer("num_attention_heads"),
            q_lora_rank=keys.integer("q_lora_rank"),
            kv_lora_rank=keys.integer("kv_lora_rank"),
            qk_head_dim=keys.integer("qk_nope_head_dim"),
            v_head_dim=keys.integer("v_head_dim"),
            index_topk=keys.integer("index_topk"),
            index_kpool=keys.integer("index_kpool"),
            index_num_heads=keys.integer("index_n_heads"),
            index_head_dim=keys.integer("index_head_dim"),
            kda_num_heads=int(keys.linear("num_heads", "linear_num_heads")),
            kda_head_dim=int(keys.linear("head_dim", "linear_head_dim")),
            conv_kernel=int(keys.linear("short_conv_kernel_size", "linear_conv_kernel_dim")),
            gate_lower_bound=keys.linear("gate_lower_bound", "linear_lower_bound"),
            num_streams=keys.integer("hc_mult"),
            sinkhorn_iterations=keys.integer("hc_sinkhorn_iters"),
            mhc_eps=keys.number("hc_eps"),
            rms_norm_eps=keys.number("rms_norm_eps"),
            max_position_embeddings=keys.integer("max_position_embeddings"),
            tie_word_embeddings=bool(value.get("tie_word_embeddings", keys.values.get("tie_word_embeddings", False))),
            has_mtp=bool(keys.values.get("num_nextn_predict_layers", 0)),
        )
        config.check()
        return config

    def check(self) -> None:
        """Raise ConfigError when sizes do not fit each other or the maths' limits."""
        if self.index_topk % self.index_kpool:
            raise ConfigError(f"index_topk {self.index_topk} is not a multiple of index_kpool {self.index_kpool}")
        if not -MAX_LOG_DECAY_SUM <= self.gate_lower_bound * SUB_BLOCK_TOKENS < 0:
            raise ConfigError(f"gate_lower_bound {self.gate_lower_bound} is not in [-5, 0)")
        if self.num_experts_per_token > self.num_experts:
            raise ConfigError("num_experts_per_tok is larger than n_routed_experts")


class _Keys:
    """Typed look-ups in a merged config object; every failure names its key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, key: str) -> Any:
        if self.values.get(key) is None:
            raise ConfigError(f"config.json: key {key} is missing")
        return self.values[key]

    def integer(self, key: str) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ConfigError(f"config.json: key {key} is {value!r}, not a positive integer")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"config.json: key {key} is {value!r}, not a number")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise ConfigError(f"config.json: key {key} is {value!r}, not true or false")
        return value

    def linear(self, raw: str, flat: str) -> float:
        nested = self.values.get("linear_attn_config") or {}
        if nested.get(raw) is not None:
            return _Keys(nested).number(raw)
        if self.values.get(flat) is None:
            raise ConfigError(f"config.json: key linear_attn_config.{raw} (or {flat}) is missing")
        return self.number(flat)

    def layer_kinds(self) -> tuple[LayerKind, ...]:
        count = self.integer("num_hidden_layers")
        attention = self.get("layer_types")
        mlp = self.values.get("mlp_layer_types")
        if mlp is None:
            if self.values.get("first_k_dense_replace") is None:
                raise ConfigError("config.json: key mlp_layer_types (or first_k_dense_replace) is missing")
            num_dense = min(count, int(self.values["first_k_dense_replace"]))
            mlp = ["dense"] * num_dense + ["sparse"] * (count - num_dense)
        for key, names, known in (("layer_types", attention, _ATTENTION), ("mlp_layer_types", mlp, _MLP)):
            if len(names) != count:
                raise ConfigError(f"config.json: key {key} has {len(names)} entries for {count} layers")
            for name in names:
                if name not in known:
                    raise ConfigError(f"config.json: key {key} holds the unknown kind {name!r}")
        return tuple(
            LayerKind(_ATTENTION[a], _MLP[m])  # type: ignore[arg-type]
            for a, m in zip(attention, mlp, strict=True)
        )

    def refuse_other_architectures(self) -> None:
        for key, wanted in _FIXED.items():
            if self.values.get(key, wanted) != wanted:
                raise ConfigError(f"config.json: key {key} is {self.values[key]!r}, only {wanted!r} is supported")
        if any(kind != "full" for kind in self.values.get("indexer_types") or ()):
            raise ConfigError("config.json: key indexer_types holds a kind other than 'full', which is not supported")
        if (self.values.get("num_nextn_predict_layers") or 0) > 1:
            raise ConfigError("config.json: key num_nextn_predict_layers is more than 1, which is not supported")
