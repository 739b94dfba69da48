"""Builds the device that Config names; torch is imported here and not before."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from graphs.settings import DeviceMode, DType
from stages.errors import CheckpointError, StartupError
from trnrt.config import Config, home_cache_dir
from trnrt.served import ServedModel, read_json
from trnrt.shapes import graph_settings

if TYPE_CHECKING:
    from graphs.devices.cpu import CpuDevice


def build_device(config: Config, model: ServedModel, mode: DeviceMode | None = None) -> "CpuDevice":
    """Load the checkpoint onto the device, eager or compiled as `mode` or the flags say; raises StartupError."""
    try:
        from graphs.config import ConfigError as ModelConfigError
        from graphs.devices.cpu import CpuDevice
        from graphs.weights import WeightsError
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise StartupError(
            f"--device cpu needs {error.name}, which is not installed: pip install 'trnrt[cpu]'"
        ) from None
    try:
        return CpuDevice.open(
            model.folder,
            graph_settings(config, model.settings, _dtype(config, model)),
            mode=mode or config.device_mode,
            cache=cache_dir(config),
            threads=config.device_threads or max(1, (os.cpu_count() or 1) - 1),
            progress=True,
        )
    except (ModelConfigError, WeightsError) as error:
        raise CheckpointError(str(error)) from None


def cache_dir(config: Config) -> Path:
    """Return the folder of compiled graphs."""
    return Path(config.compile_cache_dir) if config.compile_cache_dir else home_cache_dir()


def _dtype(config: Config, model: ServedModel) -> DType:
    if config.dtype != "auto":
        return config.dtype
    raw = read_json(model.folder / "config.json")
    text = raw.get("text_config", raw)
    stored = {str(table.get(key)) for table in (raw, text) for key in ("dtype", "torch_dtype")}
    return "float32" if "float32" in stored and "bfloat16" not in stored else "bfloat16"
