"""Compiles every graph of a preset into the cache, with progress, and serves nothing."""

import logging
import time

from stages.errors import StartupError
from trnrt.config import Config
from trnrt.device import build_device
from trnrt.resolve import resolve
from trnrt.served import read_served_model

log = logging.getLogger("trnrt")


def compile_all(config: Config) -> int:
    """Compile what is not in the cache yet and return 0, or 1 when a graph could not be compiled."""
    if config.device_mode == "eager":
        raise StartupError("--device-mode eager compiles nothing")
    began_s = time.monotonic()
    model = read_served_model(config)
    config = resolve(config, model)
    device = build_device(config, model, "compiled")
    try:
        device.wait()
        facts = device.describe()
    finally:
        device.close()
    ready, total = facts["graphs_ready"], facts["graphs_total"]
    log.info("%s of %s graphs in %s after %.1f s", ready, total, config.compile_cache_dir, time.monotonic() - began_s)
    return 0 if ready == total and total else 1
