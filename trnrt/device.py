"""Builds the device that Config names; torch is imported here and not before."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from graphs.settings import DeviceMode
from stages.errors import CheckpointError, StartupError
from trnrt.config import Config
from trnrt.served import ServedModel
from trnrt.shapes import graph_settings, host_sizes

if TYPE_CHECKING:
    from graphs.devices.cpu import CpuDevice

# In a RuntimeError of torch: more bytes than there are, or than can be counted.
NO_ROOM = ("allocate memory", "overflow")

T = TypeVar("T")


def build_device(config: Config, model: ServedModel, mode: DeviceMode | None = None) -> "CpuDevice":
    """Load the checkpoint onto the device, eager or compiled as `mode` or the flags say; raises StartupError."""
    try:
        from graphs.config import Config as ModelConfig
        from graphs.config import ConfigError as ModelConfigError
        from graphs.devices.cpu import CpuDevice
        from graphs.state import page_bytes, slot_bytes
        from graphs.weights import WeightsError
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise StartupError(
            f"--device cpu needs {error.name}, which is not installed: pip install 'trnrt[cpu]'"
        ) from None
    try:
        settings = graph_settings(config, model.settings)
        model_config = ModelConfig.read(model.folder)
        num_host_pages, num_host_slots = host_sizes(
            config.host_cache_gb, page_bytes(model_config, settings), slot_bytes(model_config, settings)
        )
        return CpuDevice.open(
            model.folder,
            settings,
            mode=mode or config.device_mode,
            cache=Path(_resolved(config.compile_cache_dir)),
            threads=_resolved(config.device_threads),
            # Bars would stand between the lines of a log that machines read.
            progress=config.log_format == "text",
            num_host_pages=num_host_pages,
            num_host_slots=num_host_slots,
        )
    except (ModelConfigError, WeightsError) as error:
        raise CheckpointError(str(error)) from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error).lower() for words in NO_ROOM):
            raise
        raise StartupError(
            f"--max-total-tokens {config.max_total_tokens}, --max-running-requests {config.max_running_requests}, "
            f"--snapshot-slots {config.snapshot_slots} and --host-cache-gb {config.host_cache_gb:g} need more memory "
            "than there is, beside the weights"
        ) from None


def _resolved(value: T | None) -> T:
    assert value is not None, "trnrt.resolve has not run"
    return value
