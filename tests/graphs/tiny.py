"""Tiny random glm5_next checkpoints in the real format, and the reference implementation on the same folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphs.config import Config
from graphs.parameters import tensor_shapes
from graphs.weights import save_checkpoint

VISION = {
    "model_type": "glm5_next_vision",
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 64,
    "projection_intermediate_size": 32,
    "patch_size": 14,
    "image_size": 28,
}


def config_json(**text: Any) -> dict[str, Any]:
    """Return a config.json object with the raw checkpoint's keys: 4 layers of every kind, 64 wide."""
    layer_types = ["linear_attention", "deepseek_sparse_attention", "linear_attention", "deepseek_sparse_attention"]
    values: dict[str, Any] = {
        "model_type": "glm5_next_text",
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "layer_types": layer_types,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
        "first_k_dense_replace": 2,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 0,
        "v_head_dim": 16,
        "mla_use_nope": True,
        "index_topk": 1024,
        "index_kpool": 4,
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_kpool_compress": True,
        "index_kpool_always_select_tail": True,
        "indexer_types": ["full"] * 4,
        "linear_attn_config": {
            "num_heads": 4,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
        },
        "mhc": True,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "num_nextn_predict_layers": 1,
        "eos_token_id": [1],
        "pad_token_id": 0,
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "tie_word_embeddings": False,
        "text_config": {**values, **text},
        "vision_config": VISION,
    }


def random_tensors(config: Config, seed: int) -> dict[str, Tensor]:
    """Return lively random values for every tensor: norms off one, biases off zero, gates over their whole range."""
    generator = torch.Generator().manual_seed(seed)

    def one(name: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            return 1.0 + 0.2 * noise
        if name.endswith(("A_log", "_scale")):
            return 0.3 * noise
        if name.endswith("dt_bias"):
            # Slow forgetting: with the state forgotten at once, o is one small q.k and its norm magnifies rounding.
            return noise - 3.0
        if name.endswith(("_base", "embed_tokens.weight", "compress_ape")):
            return noise
        if len(shape) == 1:
            return 0.2 * noise
        return noise * shape[-1] ** -0.5

    return {name: one(name, shape) for name, shape in tensor_shapes(config).items()}


def write(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **text: Any) -> Config:
    """Write a random checkpoint to folder and return its Config."""
    value = config_json(**text)
    config = Config.from_json(value)
    save_checkpoint(folder, value, random_tensors(config, seed), dtype)
    return config


class Reference:
    """The reference implementation loaded from a checkpoint folder, in fp32."""

    def __init__(self, folder: Path) -> None:
        from transformers import Glm5NextForConditionalGeneration
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.model = Glm5NextForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Return logits [B, T, V] of tokens [B, T] in one pass."""
        h = self.model.model.language_model(input_ids=tokens, use_cache=False).last_hidden_state
        return torch.as_tensor(self.model.lm_head(h))

    @torch.no_grad()
    def stepped(self, tokens: Tensor, num_prompt: int) -> Tensor:
        """Return logits [S, V] after a prompt and after each later token of tokens [T], stepped with a cache."""
        language_model = self.model.model.language_model
        out = language_model(input_ids=tokens[None, :num_prompt], use_cache=True)
        logits = [self.model.lm_head(out.last_hidden_state[0, -1:])]
        for t in range(num_prompt, len(tokens)):
            out = language_model(input_ids=tokens[None, t : t + 1], use_cache=True, cache=out.cache)
            logits.append(self.model.lm_head(out.last_hidden_state[0]))
        return torch.cat(logits)

    @torch.no_grad()
    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the normed last hidden states [B, T, D] of tokens [B, T]."""
        return torch.as_tensor(self.model.model.language_model(input_ids=tokens, use_cache=False).last_hidden_state)


def stored(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return tensors as a checkpoint of dtype holds them."""
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def random_tokens(num_tokens: int, seed: int) -> Tensor:
    """Return token ids [num_tokens], none of them the padding id."""
    return torch.randint(2, 256, (num_tokens,), generator=torch.Generator().manual_seed(seed))
