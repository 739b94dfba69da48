"""Checkpoint folders in the Hugging Face form: read memory-mapped and checked, written with the real names.

Reading goes in two passes. The first reads only the files' headers and compares every tensor's name and shape with
the table derived from the config, so a wrong folder fails within a second and by name. The second reads tensors as
the fused form asks for them; nothing but the fused copy stays in memory.

A matrix is block-FP8 exactly when its `<name>_scale_inv` exists; its value is code * scale of its 128 x 128 block.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from graphs.config import Config
from graphs.parameters import HEAD, PREFIX, Shape, Weights, fuse, tensor_shapes

FP8_BLOCK = 128
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
SCALE = "_scale_inv"
_FLOATS = {"F32", "F16", "BF16"}


class WeightsError(Exception):
    """A checkpoint folder that cannot be loaded, naming the tensor or file."""


def load_weights(folder: Path, config: Config, dtype: torch.dtype, progress: bool = False) -> Weights:
    """Read a checkpoint folder into fused weights; raises WeightsError naming what is missing, misshapen or cut."""
    checkpoint = Checkpoint(Path(folder))
    checkpoint.check(config)
    shapes = tensor_shapes(config)
    with tqdm(total=len(shapes), desc="weights", unit="tensor", disable=not progress) as bar:

        def get(name: str) -> Tensor:
            bar.update()
            return checkpoint.tensor(name)

        return fuse(config, get, dtype)


class Checkpoint:
    """An open checkpoint folder; tensors are read by full name, whatever prefix the files use."""

    def __init__(self, folder: Path) -> None:
        """Open every file's header; raises WeightsError for a missing or truncated file."""
        self.folder = folder
        self._files = {name: self._open(name) for name in self._file_names()}
        self._where: dict[str, Any] = {}
        for file in self._files.values():
            for name in file.keys():  # noqa: SIM118 - a safetensors handle, not a dict
                self._where[canonical_name(name)] = (file, name)

    def names(self) -> list[str]:
        """Return the full names of all stored tensors, scales and vision included."""
        return list(self._where)

    def _file_names(self) -> list[str]:
        index = self.folder / INDEX_FILE
        if not index.is_file():
            return [SINGLE_FILE]
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{index}: not a safetensors index ({error})") from error

    def _open(self, name: str) -> Any:
        path = self.folder / name
        if not path.is_file():
            raise WeightsError(f"{path}: no such file")
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: truncated or not safetensors ({error})") from error

    def check(self, config: Config) -> None:
        """Compare names, shapes and types with what config asks for; raises WeightsError, reads no data."""
        for name, shape in tensor_shapes(config).items():
            found, kind = self._header(name)
            if found != shape:
                raise WeightsError(f"{self.folder}: tensor {name} has shape {list(found)}, expected {list(shape)}")
            if name + SCALE in self._where:
                self._check_fp8(name, shape, kind)
            elif kind not in _FLOATS:
                raise WeightsError(f"{self.folder}: tensor {name} is {kind} and has no {SCALE} tensor")

    def _check_fp8(self, name: str, shape: Shape, kind: str) -> None:
        if kind != "F8_E4M3" or len(shape) != 2:
            raise WeightsError(f"{self.folder}: tensor {name} has a scale but is {kind}, expected an F8_E4M3 matrix")
        found, scale_kind = self._header(name + SCALE)
        expected = tuple(-(-size // FP8_BLOCK) for size in shape)
        if found != expected or scale_kind not in _FLOATS:
            raise WeightsError(
                f"{self.folder}: tensor {name}{SCALE} is {scale_kind} {list(found)}, expected F32 {list(expected)}"
            )

    def _header(self, name: str) -> tuple[Shape, str]:
        if name not in self._where:
            raise WeightsError(f"{self.folder}: tensor {name} is missing")
        file, stored = self._where[name]
        header = file.get_slice(stored)
        return tuple(header.get_shape()), header.get_dtype()

    def tensor(self, name: str) -> Tensor:
        """Return one tensor, block-FP8 ones as fp32 values; raises WeightsError when its data cannot be read."""
        codes = self._read(name)
        if name + SCALE not in self._where:
            return codes
        return dequantise(codes, self._read(name + SCALE))

    def _read(self, name: str) -> Tensor:
        file, stored = self._where[name]
        try:
            tensor: Tensor = file.get_tensor(stored)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise WeightsError(f"{self.folder}: tensor {name} cannot be read ({error})") from error
        return tensor


def canonical_name(stored: str) -> str:
    """Return the full name of a stored tensor: the text part may stand under `model.` or `model.language_model.`."""
    if stored == HEAD or stored.startswith((PREFIX, "model.visual.")) or not stored.startswith("model."):
        return stored
    return PREFIX + stored.removeprefix("model.")


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    """Return fp32 values [O, I] of e4m3 codes [O, I] and scales [ceil(O / 128), ceil(I / 128)]."""
    rows, columns = codes.shape
    wide = scale.float().repeat_interleave(FP8_BLOCK, 0)[:rows].repeat_interleave(FP8_BLOCK, 1)[:, :columns]
    return codes.float() * wide


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return e4m3 codes and fp32 block scales of values [O, I], each block's largest value mapped to 448."""
    rows, columns = values.shape
    padded = torch.zeros(-(-rows // FP8_BLOCK) * FP8_BLOCK, -(-columns // FP8_BLOCK) * FP8_BLOCK)
    padded[:rows, :columns] = values
    blocks = padded.unflatten(0, (-1, FP8_BLOCK)).unflatten(2, (-1, FP8_BLOCK))
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-12) / 448.0
    codes = (blocks / scale[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn), scale


def save_checkpoint(
    folder: Path,
    config_json: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype = torch.bfloat16,
    num_shards: int = 1,
) -> None:
    """Write config.json and tensors (full names) in the real format: what the checkpoint keeps in fp32 stays fp32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json, indent=2) + "\n", encoding="utf-8")
    stored = {name: _stored(name, tensor, dtype) for name, tensor in tensors.items()}
    names = list(stored)
    if num_shards == 1:
        save_file(stored, folder / SINGLE_FILE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: stored[name] for name in names[shard::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


_FP32_NAMES = ("_base", "_scale", "A_log", "dt_bias", "e_score_correction_bias", SCALE)


def _stored(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    keep = tensor.dtype == torch.float8_e4m3fn
    wanted = tensor.dtype if keep else torch.float32 if name.endswith(_FP32_NAMES) else dtype
    return tensor.detach().to(wanted).contiguous()
