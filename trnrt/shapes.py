"""Config and model to GraphSettings: the shapes of every graph and the size of the device's state."""

import math

from graphs.keys import Buckets, doubling
from graphs.settings import GraphSettings
from stages.errors import ConfigError
from stages.settings import ModelSettings
from trnrt.config import Config

PAGE_SIZE_TOKENS = 64
MAX_PREFILL_ROWS = 4


def snapshot_slots(config: Config) -> int:
    """Return how many snapshots the prefix cache may hold on the device."""
    if config.disable_radix_cache:
        return 0
    return config.snapshot_slots or 2 * config.max_running_requests


def num_slots(config: Config) -> int:
    """Return the device's slots: the null one, one a row and, with the prefix cache, a row's shadow and the cache's."""
    rows = config.max_running_requests
    return 1 + rows if config.disable_radix_cache else 1 + 2 * rows + snapshot_slots(config)


def host_sizes(host_cache_gb: float, page_bytes: int, slot_bytes: int) -> tuple[int, int]:
    """Return the host's pages and slots, null ones counted, for half the memory each; raises ConfigError if too few."""
    if not host_cache_gb:
        return 1, 1
    half = host_cache_gb * 1e9 / 2
    num_pages, num_slots = int(half // page_bytes), int(half // slot_bytes)
    if num_pages < 1 or num_slots < 1:
        least_gb = 2 * max(page_bytes, slot_bytes) / 1e9
        raise ConfigError(
            f"--host-cache-gb: must be at least {least_gb:.3g} to hold one snapshot, got {host_cache_gb:g}"
        )
    return num_pages + 1, num_slots + 1


def graph_settings(config: Config, model: ModelSettings) -> GraphSettings:
    """Return the shapes of a resolved config: doubling buckets, or a single one of each with --deterministic."""
    assert config.max_total_tokens is not None, "trnrt.resolve has not run"
    num_pages = config.max_total_tokens // PAGE_SIZE_TOKENS
    row_pages = min(math.ceil(model.context_length_tokens / PAGE_SIZE_TOKENS), num_pages)
    rows = config.max_running_requests
    # No prompt has a longer chunk, and every step with a chunk is padded to one.
    chunk = min(config.chunked_prefill_size, math.ceil(model.context_length_tokens / 64) * 64)
    if config.deterministic:
        buckets = Buckets(batch=(rows,), prefill_batch=(1,), tokens=(chunk,), pages=(row_pages,))
    else:
        buckets = Buckets(
            batch=doubling(1, rows),
            prefill_batch=doubling(1, min(MAX_PREFILL_ROWS, rows)),
            tokens=(64, chunk) if chunk > 64 else (64,),
            pages=doubling(4, row_pages) if row_pages > 4 else (row_pages,),
        )
    return GraphSettings(
        buckets=buckets,
        num_slots=num_slots(config),
        num_pages=num_pages + 1,
        page_size_tokens=PAGE_SIZE_TOKENS,
        dtype="float32" if config.dtype == "float32" else "bfloat16",
        takes_mask=config.structured_outputs,
        adjust_tokens=adjust_sizes(config, model.vocab_size) if config.penalties else (),
    )


def adjust_sizes(config: Config, vocab_size: int) -> tuple[int, ...]:
    """Return how many tokens an Adjust may name: --penalty-buckets, and last of all the whole vocabulary."""
    return (*(size for size in config.penalty_tokens if size < vocab_size), vocab_size)
