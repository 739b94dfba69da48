"""Config and model to GraphSettings: the shapes of every graph and the size of the device's state."""

import math

from graphs.keys import Buckets, doubling
from graphs.settings import DType, GraphSettings
from stages.settings import ModelSettings
from trnrt.config import Config

PAGE_SIZE_TOKENS = 64
SMALLEST_POOL_TOKENS = 65_536
LARGEST_DEFAULT_POOL_TOKENS = 262_144
MAX_PREFILL_ROWS = 4


def graph_settings(config: Config, model: ModelSettings, dtype: DType) -> GraphSettings:
    """Return the shapes for `config` on `model`: doubling buckets, or a single one of each with --deterministic."""
    pool_tokens = config.max_total_tokens or max(
        SMALLEST_POOL_TOKENS, min(model.context_length_tokens, LARGEST_DEFAULT_POOL_TOKENS)
    )
    num_pages = pool_tokens // PAGE_SIZE_TOKENS
    row_pages = min(math.ceil(model.context_length_tokens / PAGE_SIZE_TOKENS), num_pages)
    rows = config.max_running_requests
    chunk = config.chunked_prefill_size
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
        num_slots=rows + 1,
        num_pages=num_pages + 1,
        page_size_tokens=PAGE_SIZE_TOKENS,
        dtype=dtype,
    )
