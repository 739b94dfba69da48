"""Checkpoint folders are read whole or refused by the name of the tensor or file that is wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from graphs.config import Config
from graphs.parameters import Weights, fp8_names, fuse, tensor_shapes
from graphs.weights import (
    INDEX_FILE,
    SINGLE_FILE,
    WeightsError,
    dequantise,
    load_weights,
    quantise,
    save_checkpoint,
)
from tests.graphs import tiny
from tests.graphs.test_config import REAL_TEXT

VALUE = tiny.config_json()
CONFIG = Config.from_json(VALUE)
TENSORS = tiny.random_tensors(CONFIG, 0)
NAME = "model.language_model.layers.1.self_attn.kv_b_proj.weight"


def assert_equal(a: Weights, b: Weights) -> None:
    for x, y in zip([a.top, *a.layers, a.mtp or {}], [b.top, *b.layers, b.mtp or {}], strict=True):
        assert x.keys() == y.keys()
        for key in x:
            assert x[key].dtype == y[key].dtype, key
            assert torch.equal(x[key], y[key]), key


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Weights:
    return load_weights(folder, CONFIG, dtype)


def test_the_table_counts_the_published_checkpoint() -> None:
    config = Config.from_json({"text_config": REAL_TEXT})
    shapes = tensor_shapes(config)
    assert len(shapes) == 38_423
    assert shapes["model.language_model.layers.45.eh_proj.weight"] == (4096, 8192)
    assert shapes["model.language_model.layers.0.self_attn.q_conv1d.weight"] == (8192, 1, 4)
    assert len(fp8_names(config)) == 37_338


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_written_is_read_back(tmp_path: Path, num_shards: int, dtype: torch.dtype) -> None:
    save_checkpoint(tmp_path, VALUE, TENSORS, dtype, num_shards)
    kept = {name: tensor if fp32_in_checkpoints(name) else tensor.to(dtype) for name, tensor in TENSORS.items()}
    assert_equal(load(tmp_path, torch.bfloat16), fuse(CONFIG, kept.__getitem__, torch.bfloat16))
    assert Config.read(tmp_path) == CONFIG


def fp32_in_checkpoints(name: str) -> bool:
    return name.endswith(("_base", "_scale", "A_log", "dt_bias", "e_score_correction_bias"))


def test_wide_parts_stay_in_fp32_and_matrices_take_the_asked_type(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, VALUE, TENSORS, torch.bfloat16)
    weights = load(tmp_path, torch.bfloat16)
    kda, dsa = weights.layers[2], weights.layers[3]
    for w, keys in ((kda, ("conv", "decay", "dt_bias", "o_norm", "router", "hc_attn_fn")), (dsa, ("ape", "router"))):
        assert {w[key].dtype for key in keys} == {torch.float32}
    assert {kda["in_proj"].dtype, dsa["w_uk"].dtype, weights.top["head"].dtype} == {torch.bfloat16}
    assert kda["experts_gate_up"].shape == (8, 64, 64)


def test_layers_of_a_kind_have_the_same_keys_and_shapes() -> None:
    config = Config.from_json(tiny.config_json(mlp_layer_types=["sparse"] * 4))
    weights = fuse(config, tiny.random_tensors(config, 0).__getitem__)
    shapes = [{key: tensor.shape for key, tensor in layer.items()} for layer in weights.layers]
    assert shapes[0] == shapes[2]
    assert shapes[1] == shapes[3]


def test_fp8_equals_its_dequantised_twin_bit_for_bit(tmp_path: Path) -> None:
    wide = {"hidden_size": 160, "intermediate_size": 288, "q_lora_rank": 136}
    value = tiny.config_json(**wide)
    config = Config.from_json(value)
    fp8 = fp8_names(config)
    coded: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, tensor in tiny.random_tensors(config, 1).items():
        if name not in fp8:
            coded[name] = plain[name] = tensor
            continue
        codes, scale = quantise(tensor)
        coded |= {name: codes, f"{name}_scale_inv": scale}
        plain[name] = dequantise(codes, scale)
        assert (plain[name] - tensor).abs().max() <= tensor.abs().max() / 16
    save_checkpoint(tmp_path / "coded", value, coded, torch.float32)
    save_checkpoint(tmp_path / "plain", value, plain, torch.float32)
    assert (tmp_path / "coded" / SINGLE_FILE).stat().st_size < (tmp_path / "plain" / SINGLE_FILE).stat().st_size
    for dtype in (torch.float32, torch.bfloat16):
        ours = load_weights(tmp_path / "coded", config, dtype)
        assert_equal(ours, load_weights(tmp_path / "plain", config, dtype))


def test_a_code_is_multiplied_by_the_scale_of_its_own_block() -> None:
    codes = torch.ones(130, 257).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    values = dequantise(codes, scale)
    corners = [values[0, 0], values[0, 128], values[127, 256], values[128, 0], values[129, 255], values[129, 256]]
    assert torch.stack(corners).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_the_short_prefix_is_read_too_and_vision_tensors_are_skipped(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, VALUE, TENSORS, torch.float32)
    expected = load(tmp_path)
    stored = load_file(tmp_path / SINGLE_FILE)
    renamed = {name.replace("model.language_model.", "model."): tensor for name, tensor in stored.items()}
    vision = {"model.visual.blocks.0.norm1.weight": torch.ones(3), "model.visual.patch_embed.proj.bias": torch.ones(2)}
    save_file(renamed | vision, tmp_path / SINGLE_FILE)
    assert_equal(load(tmp_path), expected)


def test_a_tied_head_needs_no_tensor(tmp_path: Path) -> None:
    value = VALUE | {"tie_word_embeddings": True}
    config = Config.from_json(value)
    save_checkpoint(tmp_path, value, tiny.random_tensors(config, 0))
    weights = load_weights(tmp_path, config, torch.float32)
    assert weights.top["head"] is weights.top["embed"]


def test_progress_is_shown_only_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path, VALUE, TENSORS)
    load(tmp_path)
    assert capsys.readouterr().err == ""
    load_weights(tmp_path, CONFIG, torch.float32, progress=True)
    assert f"{len(TENSORS)}/{len(TENSORS)}" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# What is wrong is named
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A sharded checkpoint to break."""
    save_checkpoint(tmp_path, VALUE, TENSORS, torch.float32, num_shards=2)
    return tmp_path


def rewrite(folder: Path, change: dict[str, Tensor | None]) -> None:
    """Replace the folder's shards by one file with tensors changed, added or (None) left out."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    (folder / INDEX_FILE).unlink()
    kept = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
    save_file(kept, folder / SINGLE_FILE)


def test_a_missing_tensor_is_named(broken: Path) -> None:
    rewrite(broken, {NAME: None})
    with pytest.raises(WeightsError, match=f"{NAME} is missing"):
        load(broken)


def test_a_misshapen_tensor_is_named_with_both_shapes(broken: Path) -> None:
    rewrite(broken, {NAME: torch.zeros(3, 5)})
    with pytest.raises(WeightsError, match=rf"{NAME} has shape \[3, 5\], expected \[160, 32\]"):
        load(broken)


def test_fp8_without_a_scale_is_named(broken: Path) -> None:
    rewrite(broken, {NAME: torch.zeros(160, 32).to(torch.float8_e4m3fn)})
    with pytest.raises(WeightsError, match=f"{NAME} is F8_E4M3 and has no _scale_inv"):
        load(broken)


def test_a_scale_without_fp8_is_named(broken: Path) -> None:
    rewrite(broken, {f"{NAME}_scale_inv": torch.ones(2, 1)})
    with pytest.raises(WeightsError, match=f"{NAME} has a scale but is F32"):
        load(broken)


def test_a_misshapen_scale_is_named(broken: Path) -> None:
    change = {NAME: torch.zeros(160, 32).to(torch.float8_e4m3fn), f"{NAME}_scale_inv": torch.ones(2, 2)}
    rewrite(broken, dict(change))
    with pytest.raises(WeightsError, match=rf"{NAME}_scale_inv is F32 \[2, 2\], expected F32 \[2, 1\]"):
        load(broken)


def test_a_missing_file_is_named(broken: Path, tmp_path: Path) -> None:
    (broken / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors: no such file"):
        load(broken)
    with pytest.raises(WeightsError, match=r"model\.safetensors: no such file"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("keep", [0, 7, 100, -1, -5000])
def test_a_truncated_file_is_named(broken: Path, keep: int) -> None:
    path = broken / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"model-00001-of-00002\.safetensors: truncated"):
        load(broken)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"weight_map": 3}'])
def test_a_broken_index_is_named(broken: Path, text: str) -> None:
    (broken / INDEX_FILE).write_text(text)
    with pytest.raises(WeightsError, match=r"index\.json: not a safetensors index"):
        load(broken)


def test_an_index_without_files_names_the_first_missing_tensor(broken: Path) -> None:
    (broken / INDEX_FILE).write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(WeightsError, match=r"embed_tokens\.weight is missing"):
        load(broken)


def test_a_wrong_tensor_is_found_before_any_data_is_read(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(broken, {"lm_head.weight": torch.zeros(2, 2)})
    monkeypatch.setattr("graphs.weights.Checkpoint.tensor", lambda *_: pytest.fail("data was read"))
    with pytest.raises(WeightsError, match=r"lm_head\.weight"):
        load(broken)
