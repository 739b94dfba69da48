"""What the real scheduler notes of calls and of itself, to the exact instant."""

from functools import partial
from typing import Any

import pytest
import trio
from attrs import evolve

from stages.messages import Load
from stages.settings import CacheSettings, SchedulerSettings
from stages.stats.report import statistics_of
from stages.stats.sources import Sources, Watched, watched_inbox
from stages.trail import Trail
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import SimEngine, capacity, run_sim, sim_engine, submit
from tests.sim.test_scheduling import DECODE_S, PREFILL_S, family_time_s, prompt

ONE_AT_A_TIME = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=1, overlap=False)


def order(name: str, trail: Trail, num_tokens: int = 16, **changes: Any) -> Any:
    return evolve(submit(name, prompt(num_tokens), **changes), trail=trail)


def figures(engine: SimEngine) -> Any:
    channels = engine.channels
    sources = Sources(
        load=engine.core.load,
        max_running=1,
        stages=[
            watched_inbox("scheduler", [channels.scheduler_receive]),
            Watched(
                "executor",
                lambda: len(engine.core.flights),
                [channels.plans_receive.meter],
                works=lambda: engine.stats.counters.totals["device_s"],
            ),
            Watched(
                "queue",
                lambda: len(channels.admission.waiting),
                high_water=lambda: channels.admission.high_water,
            ),
        ],
    )
    return statistics_of(engine.stats.book, sources, trio.current_time(), engine.stats.send.num_lost)


def test_a_place_is_noted_when_it_is_given_and_waiting_is_until_then() -> None:
    first, second = Trail("a"), Trail("b")

    async def main() -> None:
        async with sim_engine(ONE_AT_A_TIME, HistoryDevice(capacity(), family_time_s)) as engine:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.ask, order("a", first, max_new_tokens=4))
                await trio.sleep(0.1)
                nursery.start_soon(engine.ask, order("b", second, max_new_tokens=1))

    run_sim(main)
    assert first.admitted_s == 0.0
    # The first one's last token is out, and its place with it.
    assert second.admitted_s == PREFILL_S + 3 * DECODE_S


def test_what_was_found_cached_is_noted_with_the_place() -> None:
    first, again = Trail("a"), Trail("b")
    settings = evolve(ONE_AT_A_TIME, cache=CacheSettings())

    async def main() -> None:
        async with sim_engine(settings, HistoryDevice(capacity(num_slots=17), family_time_s)) as engine:
            await engine.ask(order("a", first, 40, max_new_tokens=1))
            heard = await engine.ask(order("b", again, 40, max_new_tokens=1))
            assert heard.ended.usage.cached_tokens > 0
            assert again.cached_device_tokens == heard.ended.usage.cached_tokens

    run_sim(main)
    assert (first.cached_device_tokens, first.cached_host_tokens) == (0, 0)


def test_a_retracted_choice_was_let_in_once() -> None:
    trails = [Trail("a"), Trail("b")]
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, schedule_conservativeness=0.0, overlap=False)

    async def main() -> None:
        async with sim_engine(settings, HistoryDevice(capacity(num_pages=5), family_time_s)) as engine:
            async with trio.open_nursery() as nursery:
                for trail in trails:
                    nursery.start_soon(partial(engine.ask, order(trail.request_id, trail, 9, max_new_tokens=16)))
            assert engine.stats.counters.totals["retractions"] > 0

    run_sim(main)
    assert all(trail.admitted_s is not None and trail.admitted_s <= PREFILL_S for trail in trails)


def test_the_device_s_time_is_the_executor_s_and_the_queue_s_depth_its_high_water() -> None:
    async def main() -> None:
        async with sim_engine(ONE_AT_A_TIME, HistoryDevice(capacity(), family_time_s)) as engine:
            async with trio.open_nursery() as nursery:
                for name in "abc":
                    nursery.start_soon(engine.ask, order(name, Trail(name), max_new_tokens=1))
                await trio.sleep(PREFILL_S / 2)
                told = figures(engine)
                queue = told.stages[2]
                assert (queue.depth, queue.high_water) == (2, 3)
                assert (told.engine.running, told.engine.waiting, told.engine.waiting_tokens) == (1, 2, 32)
                assert told.stages[1].depth == 1
            await trio.sleep(1)
            told = figures(engine)
            executor = told.stages[1]
            assert (executor.working_s, executor.waiting_s) == (3 * PREFILL_S, 1.0)
            assert (told.engine.device_s, told.engine.steps_prefill) == (3 * PREFILL_S, 3)
            assert told.engine.device.pages.running == told.engine.running == told.engine.waiting == 0
            # The scheduler's own work takes no time on this clock.
            assert (told.stages[0].working_s, told.stages[0].waiting_s) == (0.0, 3 * PREFILL_S + 1)

    run_sim(main)


@pytest.mark.parametrize("field", ["pages", "snapshots"])
def test_pages_and_snapshots_have_one_owner_each(field: str) -> None:
    settings = evolve(ONE_AT_A_TIME, cache=CacheSettings())

    async def main() -> None:
        async with sim_engine(settings, HistoryDevice(capacity(num_slots=17), family_time_s)) as engine:
            seen: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.ask, order("a", Trail("a"), 40, max_new_tokens=8))
                for _ in range(30):
                    await trio.sleep(0.11)
                    load: Load = engine.core.load()
                    pool = getattr(figures(engine).engine.device, field)
                    assert pool.running + pool.cached + pool.free == pool.total
                    assert min(pool.running, pool.cached, pool.free) >= 0
                    seen.append((load, pool))
            assert seen[-1][1].running == 0
            assert seen[-1][1].cached > 0

    run_sim(main)
