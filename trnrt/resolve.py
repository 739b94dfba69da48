"""Fills what the flags left open from the model and the machine, giving the Config that is logged and served by."""

import logging
import os

import attrs

from graphs.settings import DType, default_cache
from stages.scheduler.policies import load_policy
from trnrt.config import Config
from trnrt.folder_files import read_json
from trnrt.served import ServedModel
from trnrt.shapes import snapshot_slots

SMALLEST_POOL_TOKENS = 65_536
LARGEST_DEFAULT_POOL_TOKENS = 262_144

log = logging.getLogger("trnrt")


def resolve(config: Config, model: ServedModel) -> Config:
    """Return `config` with nothing left to decide but what may really be absent."""
    settings = model.settings
    context = settings.context_length_tokens
    # A prefix that was decoded and one that was prefilled differ in the last bits.
    config = attrs.evolve(config, disable_radix_cache=config.disable_radix_cache or config.deterministic)
    snapshots = snapshot_slots(config)
    return attrs.evolve(
        config,
        snapshot_slots=snapshots,
        session_snapshots=snapshots // 4 if config.session_snapshots is None else config.session_snapshots,
        host_cache_gb=0.0 if config.disable_radix_cache else config.host_cache_gb,
        model_path=settings.model_path,
        tokenizer_path=config.tokenizer_path or settings.model_path,
        served_model_name=settings.served_model_name,
        context_length=context,
        dtype=_dtype(config, model),
        reasoning_parser=settings.reasoning_parser,
        tool_call_parser=settings.tool_call_parser,
        max_total_tokens=config.max_total_tokens
        or max(SMALLEST_POOL_TOKENS, min(context, LARGEST_DEFAULT_POOL_TOKENS)),
        device_threads=config.device_threads or max(1, (os.cpu_count() or 1) - 1),
        schedule_policy=_policy(config),
        compile_cache_dir=config.compile_cache_dir or str(default_cache()),
    )


def _policy(config: Config) -> str:
    """Return the order of the queue; one that looks at the prefix cache is fcfs where there is none."""
    name = config.schedule_policy
    if not (config.disable_radix_cache and load_policy(name).needs_cache):
        return name
    log.info("--schedule-policy %s looks at the prefix cache, which is off: fcfs", name)
    return "fcfs"


def _dtype(config: Config, model: ServedModel) -> DType:
    """Return the type asked for, else float32 for a float32 checkpoint, else bfloat16."""
    if config.dtype != "auto":
        return config.dtype
    raw = read_json(model.folder / "config.json")
    text = raw.get("text_config", raw)
    stored = {str(table.get(key)) for table in (raw, text) for key in ("dtype", "torch_dtype")}
    return "float32" if "float32" in stored and "bfloat16" not in stored else "bfloat16"
