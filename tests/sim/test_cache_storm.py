"""Hundreds of requests of conversations, bursts and strangers at once, on both tiers of a small cache.

Some leave, some are worth more than others, some belong to sessions; copies take time and the device sees what runs
beside them. Every answer is right to its last token, and in the end everything is back.
"""

import random
from collections import Counter

import pytest
import trio
from attrs import evolve

from stages.errors import QueueFull
from stages.messages import FlushCache, Pause, Resume, Submit
from stages.settings import CacheSettings, PrioritySettings, SchedulerSettings
from tests.sim.asks import ASKS, asking
from tests.sim.scenes import answer, make_device, settings, words
from tests.sim.simkit import Heard, SimEngine, run_sim, sim_engine, submit

NUM_TALKS = 40


def mask_s(order: Submit) -> float:
    """Return how long a mask of `order` takes: for most a moment, for some a step, for some very long."""
    return random.Random(str(order.key)).choice([0.0, 0.001, 0.001, 0.1, 3.0])


class Storm:
    """One run from a seed."""

    def __init__(
        self,
        seed: int,
        wanted: SchedulerSettings,
        num_pages: int,
        copy_s: float,
        num_host_pages: int,
        asks: bool = False,
    ) -> None:
        self.draw = random.Random(seed)
        self.seed, self.wanted, self.asks = seed, wanted, asks
        self.device = make_device(
            copy_s,
            num_pages=num_pages,
            num_slots=1 + 2 * 4 + 6,
            num_host_pages=num_host_pages,
            num_host_slots=num_host_pages // 4,
        )
        self.ends: Counter[str] = Counter()
        self.num_cached = self.num_from_host = 0

    def run(self) -> dict[str, float]:
        return run_sim(self._main, seed=self.seed, timeout_s=1e6)

    async def _main(self) -> dict[str, float]:
        async with sim_engine(self.wanted, self.device, mask_s=mask_s) as engine:
            async with trio.open_nursery() as nursery:
                for index in range(NUM_TALKS):
                    nursery.start_soon(self._talk, engine, index, random.Random(f"{self.seed} {index}"))
                nursery.start_soon(self._operate, engine)
            # The last step and the last copies.
            await trio.sleep(100.0)
            engine.core.sessions.unpin_all()
            engine.assert_all_returned()
            assert (await engine.order(FlushCache())).is_done
            load = engine.core.load()
            assert (load.used_pages, load.used_snapshots, load.used_host_pages, load.used_host_snapshots) == (0,) * 4
            assert engine.core.memory.slots.num_used == 0
            return dict(engine.stats.snapshot(trio.current_time()).totals)

    async def _talk(self, engine: SimEngine, index: int, draw: random.Random) -> None:
        await trio.sleep(draw.uniform(0.0, NUM_TALKS * 2.0))
        prompt = words(draw.choice([0, 20, 40]), 1) + words(draw.randint(1, 40), index)
        session = draw.choice([None, None, f"s{index % 5}"])
        for turn in range(draw.randint(1, 4)):
            order = submit(
                f"t{index}.{turn}",
                prompt,
                max_new_tokens=draw.randint(1, 30),
                priority=draw.choice([0, 0, 5]),
                session=session,
                stop=draw.choice([(), ("stop",)]),
                wait_until_s=trio.current_time() + draw.choice([20.0, 1000.0]),
            )
            if self.asks:
                asks = asking(draw.choice(ASKS), draw.randrange(1000))
                order = evolve(order, **asks)  # type: ignore[arg-type]
            leaves_s = draw.choice([1000.0, 1000.0, draw.uniform(0.0, 10.0)])
            heard = await self._ask(engine, order, leaves_s)
            if heard is None or heard.ended.finish.kind != "length":
                return
            said = heard.token_ids[: draw.choice([1000, 3])]
            prompt = prompt + said + words(draw.randint(0, 20), index + turn)
            await trio.sleep(draw.uniform(0.0, 20.0))

    async def _ask(self, engine: SimEngine, order: Submit, leaves_s: float) -> Heard | None:
        heard: Heard | None = None
        with trio.move_on_after(leaves_s):
            try:
                heard = await engine.ask(order)
            except QueueFull:
                self.ends["full"] += 1
                return None
        if heard is None:
            self.ends["left"] += 1
            return None
        self.ends[heard.ended.finish.kind] += 1
        assert heard.token_ids == answer(order)[: len(heard.token_ids)]
        usage = heard.ended.usage
        assert 0 <= usage.cached_host_tokens <= usage.cached_tokens < len(order.prompt_ids)
        self.num_cached += usage.cached_tokens
        self.num_from_host += usage.cached_host_tokens
        return heard

    async def _operate(self, engine: SimEngine) -> None:
        for mode in ("in_place", "retract", "retract", "abort"):
            await trio.sleep(self.draw.uniform(10.0, 40.0))
            with trio.move_on_after(0.3):
                await engine.order(Pause(mode))  # type: ignore[arg-type]
            await trio.sleep(1.0)
            await engine.order(FlushCache())
            await engine.order(Resume())


@pytest.mark.parametrize("asks", [False, True], ids=["plain", "asking"])
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
# Host memory is larger than the device's share of the cache, or smaller.
@pytest.mark.parametrize(("num_pages", "copy_s", "num_host_pages"), [(20, 0.25, 81), (40, 3.0, 81), (40, 0.0, 25)])
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_every_answer_is_right_and_everything_comes_back(
    seed: int, num_pages: int, copy_s: float, num_host_pages: int, overlap: bool, asks: bool
):
    wanted = settings(
        overlap=overlap,
        max_running_requests=4,
        max_queued_requests=20,
        schedule_conservativeness=0.2,
        priority=PrioritySettings(preemption_threshold=3),
        cache=CacheSettings(max_snapshots=6, stride_tokens=24, max_pinned=2),
    )
    storm = Storm(seed, wanted, num_pages, copy_s, num_host_pages, asks)
    totals = storm.run()
    assert storm.ends["length"] > NUM_TALKS // 2
    assert asks or not (storm.ends["stop"] or storm.ends["error"])
    edits = {step.key.edits for step in storm.device.steps}
    assert edits == ({"", "masked", "adjusted", "masked_adjusted"} if asks else {""})
    assert storm.num_cached > 0
    assert totals["preemptions"] > 0
    assert totals["retractions"] > 0
    if num_host_pages > num_pages:
        assert storm.num_from_host > 0


def test_the_same_seed_gives_the_same_storm():
    runs = []
    for _ in range(2):
        storm = Storm(5, settings(max_running_requests=4, overlap=True), 30, 0.25, 41)
        runs.append((storm.run(), storm.ends, storm.num_cached, len(storm.device.steps)))
    assert runs[0] == runs[1]
