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
EDIT_FIELDS = frozenset({"takes_mask", "adjust_tokens"})


@frozen
class GraphSettings:
    """Shapes, types and variants of a device's graphs; two equal settings on one model give equal graphs."""

    buckets: Buckets
    num_slots: int
    num_pages: int
    page_size_tokens: int = 64
    dtype: DType = "bfloat16"
    max_top_logprobs: int = 20
    # Whether steps may bring a mask, and the sizes K, rising, an Adjust may have: the last holds every token.
    takes_mask: bool = False
    adjust_tokens: tuple[int, ...] = ()

    def fingerprint(self, *more: object) -> str:
        """Return a hex digest of all that shapes a layer's graph, and what else names it (config, versions, code).

        How logits are edited is no part of it: layers stay the same, and what is on disk of them good.
        """
        return self._digest(EDIT_FIELDS, more)

    def ending_fingerprint(self, *more: object) -> str:
        """Return the same of the graphs that edit logits and score prompts."""
        return self._digest(frozenset(), more)

    def _digest(self, without: frozenset[str], more: tuple[object, ...]) -> str:
        values = {name: value for name, value in asdict(self).items() if name not in without}
        text = json.dumps([values, [str(item) for item in more]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def default_cache() -> Path:
    """Return where compiled graphs are kept unless told otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trnrt"
