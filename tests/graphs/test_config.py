"""Config comes from config.json alone, in either spelling, and a wrong key is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from graphs.config import Config, ConfigError, LayerKind
from tests.graphs.tiny import config_json

PUBLISHED = Path(__file__).parent.parent / "golden" / "published" / "config.json"
REAL_TEXT: dict[str, Any] = json.loads(PUBLISHED.read_text())["text_config"]
# Keys whose absence changes nothing: switches with one supported value, and what other parts read.
FREE = {
    "model_type",
    "mlp_layer_types",
    "first_k_dense_replace",
    "n_group",
    "topk_group",
    "scoring_func",
    "topk_method",
    "num_key_value_heads",
    "qk_rope_head_dim",
    "mla_use_nope",
    "index_kpool_compress",
    "index_kpool_always_select_tail",
    "indexer_types",
    "mhc",
    "attention_bias",
    "eos_token_id",
    "pad_token_id",
}
FLAT = {
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_lower_bound": -5.0,
}


def test_the_published_config_is_read_as_it_stands() -> None:
    value = {"model_type": "glm5_next", "tie_word_embeddings": False, "text_config": REAL_TEXT, "vision_config": {}}
    config = Config.from_json(value)
    assert config.num_layers == 45
    assert config.layer_kinds[:4] == (LayerKind("kda", "dense"),) * 3 + (LayerKind("dsa", "moe"),)
    assert sum(kind.attention == "dsa" for kind in config.layer_kinds) == 11
    assert (config.index_kpool, config.kda_width, config.gate_lower_bound) == (4, 8192, -5.0)
    assert config.has_mtp
    assert not config.tie_word_embeddings


def test_the_flattened_spelling_means_the_same() -> None:
    raw, flat = config_json(), config_json()
    text = flat["text_config"]
    del text["linear_attn_config"], text["first_k_dense_replace"]
    names = {"deepseek_sparse_attention": "indexed_attention"}
    text["layer_types"] = [names.get(name, name) for name in text["layer_types"]]
    flat["text_config"] = text | FLAT
    assert Config.from_json(flat) == Config.from_json(raw)
    assert Config.from_json(flat["text_config"]) == Config.from_json(raw)


def test_dense_layers_may_be_given_by_count_alone() -> None:
    value = config_json()
    del value["text_config"]["mlp_layer_types"]
    assert Config.from_json(value) == Config.from_json(config_json())


@pytest.mark.parametrize("key", sorted(set(config_json()["text_config"]) - {"num_nextn_predict_layers"}))
def test_a_missing_key_is_named_or_says_nothing_of_the_maths(key: str) -> None:
    value = config_json()
    del value["text_config"][key]
    if key in FREE:
        assert Config.from_json(value) == Config.from_json(config_json())
    else:
        with pytest.raises(ConfigError, match=key):
            Config.from_json(value)


def test_without_a_count_of_mtp_layers_there_is_none() -> None:
    value = config_json()
    del value["text_config"]["num_nextn_predict_layers"]
    assert not Config.from_json(value).has_mtp


@pytest.mark.parametrize("key", ["num_heads", "head_dim", "short_conv_kernel_size", "gate_lower_bound"])
def test_a_missing_linear_attention_key_is_named(key: str) -> None:
    value = config_json()
    del value["text_config"]["linear_attn_config"][key]
    with pytest.raises(ConfigError, match=f"linear_attn_config.{key}"):
        Config.from_json(value)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("hidden_size", "64"),
        ("hidden_size", -1),
        ("rms_norm_eps", None),
        ("norm_topk_prob", 1),
        ("index_topk", 1022),
        ("num_experts_per_tok", 9),
        ("layer_types", ["linear_attention"] * 3),
        ("layer_types", ["linear_attention"] * 3 + ["sliding_attention"]),
        ("mlp_layer_types", ["dense"] * 5),
        ("scoring_func", "softmax"),
        ("n_group", 2),
        ("qk_rope_head_dim", 64),
        ("index_kpool_always_select_tail", False),
        ("mhc", False),
        ("indexer_types", ["full", "full", "full", "shared"]),
        ("num_nextn_predict_layers", 2),
    ],
)
def test_a_value_that_cannot_be_served_is_refused_by_name(key: str, wrong: object) -> None:
    with pytest.raises(ConfigError, match=key):
        Config.from_json(config_json(**{key: wrong}))


@pytest.mark.parametrize("bound", [-5.5, 0.0, 1.0])
def test_a_gate_bound_the_chunk_form_cannot_hold_is_refused(bound: float) -> None:
    value = config_json()
    value["text_config"]["linear_attn_config"]["gate_lower_bound"] = bound
    with pytest.raises(ConfigError, match="gate_lower_bound"):
        Config.from_json(value)


def test_a_folder_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Config.read(tmp_path)
    path = tmp_path / "config.json"
    for text in ("{", "[]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"config\.json"):
            Config.read(tmp_path)
    path.write_text(json.dumps(config_json()))
    assert Config.read(tmp_path) == Config.from_json(config_json())
