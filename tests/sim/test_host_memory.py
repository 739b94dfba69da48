"""Copies to host memory on a virtual clock: when they are made, and that they end."""

import pytest
import trio

from stages.scheduler.eviction import eviction_names
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import capacity, run_sim, sim_engine, submit

PARAMETERS = {"tlru": {"threshold": 16, "next_prompt_estimate": 8}}


@pytest.mark.parametrize("eviction", eviction_names())
def test_an_idle_engine_stops_copying_though_host_memory_holds_fewer_snapshots_than_the_device(eviction: str):
    cache = CacheSettings(eviction, PARAMETERS.get(eviction, {}), max_snapshots=6)
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=2, cache=cache)
    device = HistoryDevice(
        capacity(num_slots=12, num_host_pages=20, num_host_slots=3), transfer_s=lambda transfer: 0.125
    )

    async def main() -> None:
        async with sim_engine(settings, device) as engine:
            for name in range(5):
                await engine.ask(submit(str(name), tuple(range(100 * name, 100 * name + 17))))
            assert engine.core.load().used_snapshots > 2
            await trio.sleep(10)
            num_transfers = len(device.transfers)
            await trio.sleep(100)
            assert len(device.transfers) == num_transfers >= 2
            assert engine.core.is_idle

    run_sim(main)
