"""Device models with round numbers."""

from typing import Any

from trnrt.simulation.device_models import LinearModel

TABLE: dict[str, Any] = {
    "kind": "linear",
    "source": "made up",
    "memory_bytes": 1e6,
    "token_bytes": 1,
    "slot_bytes": 10,
    "host_token_bytes": 1,
    "host_slot_bytes": 10,
    "host_bytes_per_s": 1000,
    "context_length_tokens": 65_536,
    "chunk_tokens": 64,
    "max_running_requests": 4,
    "step_s": 0.5,
    "row_s": 0,
    "prompt_token_s": 0,
}


def linear(**changes: Any) -> LinearModel:
    """Return a model whose every step takes half a second, unless changed."""
    return LinearModel(**{name: value for name, value in (TABLE | changes).items() if name != "kind"})
