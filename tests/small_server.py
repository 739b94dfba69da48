"""A whole server over a device without arithmetic, small enough to fill."""

from collections.abc import Callable
from typing import Any

from graphs.step import Capacity, StepInput
from stages.stats.stage import open_stats
from tests.sim.history_device import HistoryDevice
from trnrt.config import Config
from trnrt.scheduling import engine_channels, scheduler_settings
from trnrt.serve import Server
from trnrt.served import read_served_model
from trnrt.shapes import graph_settings


def small_server(
    time_s: Callable[[StepInput], float], *, num_host_pages: int = 1, num_host_slots: int = 1, **flags: Any
) -> Server:
    """Return a server of 512 tokens of context whose device takes time_s a step; it is not started."""
    config = Config(port=0, context_length=512, **flags)
    model = read_served_model(config)
    shapes = graph_settings(config, model.settings)
    capacity = Capacity(
        num_pages=shapes.num_pages,
        page_size_tokens=shapes.page_size_tokens,
        num_slots=shapes.num_slots,
        buckets=shapes.buckets,
        vocab_size=model.settings.vocab_size,
        context_length_tokens=512,
        max_top_logprobs=20,
        num_host_pages=num_host_pages,
        num_host_slots=num_host_slots,
    )
    device = HistoryDevice(capacity, time_s=time_s)
    return Server(config, model, device, engine_channels(scheduler_settings(config)), open_stats(), started_s=0)
