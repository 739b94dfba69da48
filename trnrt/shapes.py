"""Config and model to GraphSettings: the shapes of every graph and the size of the device's state."""

import math

from graphs.keys import Buckets, doubling
from graphs.settings import GraphSettings
from stages.settings import ModelSettings
from trnrt.config import Config

PAGE_SIZE_TOKENS = 64
MAX_PREFILL_ROWS = 4


def graph_settings(config: Config, model: ModelSettings) -> GraphSettings:
    """Return the shapes of a resolved config: doubling buckets, or a single one of each with --deterministic."""
    assert config.max_total_tokens is not None, "trnrt.resolve has not run"
    num_pages = config.max_total_tokens // PAGE_SIZE_TOKENS
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
        dtype="float32" if config.dtype == "float32" else "bfloat16",
    )
