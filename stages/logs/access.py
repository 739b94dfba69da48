"""One line for every HTTP call that has ended. No query and no header is in it: keys stand there."""

import logging
from collections.abc import Mapping
from typing import Any

from stages.logs.switches import LogSwitches

# What probes and scrapers ask every few seconds.
HEALTH_PREFIXES = ("/health", "/ready", "/ping", "/metrics", "/_sglang_renderer/ready")
# As nginx writes it, for a client that left before the end of its answer.
LEFT = 499

log = logging.getLogger("trnrt.access")


def log_access(switches: LogSwitches, scope: Mapping[str, Any], status: int, took_s: float) -> None:
    """Log an HTTP call by its ASGI scope, where that is wanted."""
    if not switches.access or (is_health(scope["path"]) and not switches.access_health):
        return
    client = scope.get("client")
    fields = {"client": client[0] if client else None, "status": status, "took_s": round(took_s, 6)}
    log.info("%s %s", scope["method"], scope["path"], extra={"fields": fields})


def is_health(path: str) -> bool:
    """Say whether probes and scrapers ask a path, by any of its names."""
    return path.replace("/get_", "/", 1).startswith(HEALTH_PREFIXES)
