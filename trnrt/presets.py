"""Named settings: what differs from the defaults, and for whom."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class Preset:
    """Settings by Config field name, and one line saying for whom."""

    text: str
    settings: Mapping[str, Any]


PRESETS: Mapping[str, Preset] = {
    "default": Preset("up to 32 requests in a step", {}),
    "batch8": Preset("lowest latency: up to 8 requests in a step", {"max_running_requests": 8}),
}
