"""Everything that can change a compiled graph."""

import hashlib
import json
import os
from pathlib import Path
from typing import Literal

from attrs import asdict, frozen

from graphs.keys import Buckets

DType = Literal["bfloat16", "float32"]
DeviceMode = Literal["auto", "eager", "compiled"]


@frozen
class GraphSettings:
    """Shapes, types and variants of a device's graphs; two equal settings on one model give equal graphs."""

    buckets: Buckets
    num_slots: int
    num_pages: int
    page_size_tokens: int = 64
    dtype: DType = "bfloat16"
    max_top_logprobs: int = 20

    def fingerprint(self, *more: object) -> str:
        """Return a hex digest of these settings and whatever else names the graph (config, versions, code)."""
        text = json.dumps([asdict(self), [str(item) for item in more]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def default_cache() -> Path:
    """Return where compiled graphs are kept unless told otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trnrt"
