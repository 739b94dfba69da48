"""Everything in the shipped model's folder except its weights: tokenizer, configs, generation settings."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from scripts import demo_corpus as corpus

VOCAB_SIZE = 2560
NUM_TOKENIZER_DOCUMENTS = 20_000
MAX_CONTEXT_TOKENS = 8192
NUM_LAYERS = 8

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The family's added tokens in its order, at the end of the vocabulary. Invariant: the first 18 are special.
NUM_SPECIAL = 18
_ADDED = (
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
    "<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|begin_of_audio|> <|end_of_audio|> "
    "<|begin_of_transcription|> <|end_of_transcription|> <|code_prefix|> <|code_middle|> <|code_suffix|> "
    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> "
    "</arg_value> /nothink <|begin_of_box|> <|end_of_box|> <|image|> <|video|>"
)
ADDED_TOKENS = tuple(_ADDED.split())
END_OF_TURN = ("<|endoftext|>", "<|user|>", "<|observation|>")


def added_id(token: str) -> int:
    """Return the id of an added token."""
    return VOCAB_SIZE - len(ADDED_TOKENS) + ADDED_TOKENS.index(token)


def train_tokenizer(seed: int) -> Tokenizer:
    """Train a byte-level BPE on the corpus and append the family's added tokens."""
    chat = corpus.template()
    texts = [corpus.render(doc, chat) for doc in islice(corpus.documents(seed), NUM_TOKENIZER_DOCUMENTS)]
    for token in ADDED_TOKENS:
        texts = [text.replace(token, "\n") for text in texts]
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(ADDED_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(texts, trainer)
    for index, token in enumerate(ADDED_TOKENS):
        added = AddedToken(token, special=index < NUM_SPECIAL, normalized=False)
        (tokenizer.add_special_tokens if added.special else tokenizer.add_tokens)([added])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the corpus gave {tokenizer.get_vocab_size()} tokens and not {VOCAB_SIZE}")
    return tokenizer


def model_config() -> dict[str, Any]:
    """Write the model's shape under the keys of the real checkpoint."""
    dsa_layers = [layer for layer in range(NUM_LAYERS) if layer % 4 == 3]
    kda_layers = [layer for layer in range(NUM_LAYERS) if layer % 4 != 3]
    end_ids = [added_id(token) for token in END_OF_TURN]
    text: dict[str, Any] = {
        "model_type": "glm5_next_text",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 192,
        "num_hidden_layers": NUM_LAYERS,
        "num_nextn_predict_layers": 1,
        "layer_types": [
            "deepseek_sparse_attention" if layer in dsa_layers else "linear_attention" for layer in range(NUM_LAYERS)
        ],
        "indexer_types": ["full"] * NUM_LAYERS,
        "mlp_layer_types": ["dense"] + ["sparse"] * (NUM_LAYERS - 1),
        "first_k_dense_replace": 1,
        "intermediate_size": 384,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "moe_router_dtype": "float32",
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 48,
        "qk_rope_head_dim": 0,
        "v_head_dim": 48,
        "head_dim": 0,
        "mla_use_nope": True,
        "index_topk": 1024,
        "index_kpool": 4,
        "index_kpool_compress": True,
        "index_kpool_always_select_tail": True,
        "index_n_heads": 16,
        "index_head_dim": 32,
        "indexer_rope_interleave": True,
        "index_share_for_mtp_iteration": True,
        "linear_attn_config": {
            "num_heads": 4,
            "head_dim": 48,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "kda_layers": kda_layers,
            "full_attn_layers": dsa_layers,
        },
        "mhc": True,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": MAX_CONTEXT_TOKENS,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "eos_token_id": end_ids,
        "pad_token_id": end_ids[0],
        "use_cache": True,
    }
    vision = {
        "model_type": "glm5_next_vision",
        "depth": 1,
        "hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 64,
        "out_hidden_size": 192,
        "projection_intermediate_size": 64,
        "patch_size": 14,
        "image_size": 28,
    }
    media = {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        **{key: added_id(token) for key, token in media.items()},
        "text_config": text,
        "vision_config": vision,
    }


def tokenizer_config() -> dict[str, Any]:
    """Write what transformers wants to know about the tokenizer."""
    return {
        "tokenizer_class": "TokenizersBackend",
        "eos_token": END_OF_TURN[0],
        "pad_token": END_OF_TURN[0],
        "padding_side": "left",
        "model_max_length": MAX_CONTEXT_TOKENS,
        "clean_up_tokenization_spaces": False,
    }


def generation_config() -> dict[str, Any]:
    """Write how the model speaks when a request does not say: a small model needs a cool head."""
    return {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
        "eos_token_id": [added_id(token) for token in END_OF_TURN],
        "pad_token_id": added_id(END_OF_TURN[0]),
    }


def write_folder(folder: Path, seed: int) -> Tokenizer:
    """Write every file but the weights and the hand-written template, and return the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(seed)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    for name, content in (
        ("config.json", model_config()),
        ("tokenizer_config.json", tokenizer_config()),
        ("generation_config.json", generation_config()),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    return tokenizer
