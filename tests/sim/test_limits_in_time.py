"""The queue's limits, its timeout, and the drain, at exact instants."""

import pytest
import trio
import trio.testing

from stages.errors import Draining, InvalidRequest, QueueFull
from stages.messages import Drain, Finish, Pause, Usage
from stages.scheduler.core import BUMPED, WAITED_TOO_LONG
from stages.settings import PrioritySettings, SchedulerSettings
from tests.sim.scenes import make_device, play, play_on, settings, words
from tests.sim.simkit import Heard, SimEngine, run_sim, sim_engine, submit

ONE_AT_A_TIME = {"max_running_requests": 1}


def test_a_better_one_takes_the_place_of_the_worst_that_waits_which_hears_so_at_once():
    wanted = settings(**ONE_AT_A_TIME, max_queued_requests=2, priority=PrioritySettings(preemption_threshold=None))
    events = [
        (0.0, submit("running", words(16, 1), max_new_tokens=9, priority=0)),
        (0.1, submit("older", words(8, 2), max_new_tokens=1, priority=1)),
        (0.2, submit("newer", words(8, 3), max_new_tokens=1, priority=1)),
        # As good as they are: no reason to bump anybody.
        (0.3, submit("equal", words(8, 4), max_new_tokens=1, priority=1)),
        (0.4, submit("better", words(8, 5), max_new_tokens=1, priority=2)),
    ]

    async def main() -> tuple[dict[str, Heard], float]:
        ended_s: list[float] = []

        async def watched(engine: SimEngine) -> None:
            await trio.sleep_until(0.2)
            await engine.ask(events[2][1])
            ended_s.append(trio.current_time())

        async with sim_engine(wanted, make_device()) as engine:
            heard: dict[str, Heard] = {}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watched, engine)
                heard = await play_on(engine, [event for event in events if event[1].key.request_id != "newer"])
        return heard, ended_s[0]

    heard, bumped_s = run_sim(main)
    assert bumped_s == 0.4
    assert "equal" not in heard
    assert heard["better"].times_s == (2.0,)
    assert heard["older"].times_s == (2.5,)


def test_the_one_that_is_bumped_is_refused_as_by_a_full_queue():
    wanted = settings(**ONE_AT_A_TIME, max_queued_requests=1, priority=PrioritySettings(preemption_threshold=None))
    events = [
        (0.0, submit("running", words(16, 1), max_new_tokens=9)),
        (0.1, submit("worse", words(8, 2), priority=1)),
        (0.2, submit("better", words(8, 3), priority=2)),
    ]
    heard = play(wanted, make_device(), events)
    assert heard["worse"].ended.finish == Finish("abort", message=BUMPED, status=503, cause="displaced")
    assert heard["worse"].ended.usage == Usage(8, 0)
    assert heard["better"].ended.finish.kind == "length"


def test_prompt_tokens_that_wait_are_limited_and_what_fits_is_still_taken():
    async def main() -> None:
        async with sim_engine(settings(**ONE_AT_A_TIME, max_queued_tokens=20), make_device()) as engine:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.ask, submit("running", words(16, 1), max_new_tokens=9))
                await trio.sleep(0.1)
                nursery.start_soon(engine.ask, submit("waiting", words(12, 2)))
                await trio.sleep(0.1)
                with pytest.raises(QueueFull, match=r"^The request queue is full\.$"):
                    await engine.ask(submit("nine", words(9, 3)))
                with pytest.raises(InvalidRequest, match="21 prompt tokens can never fit a queue of 20"):
                    await engine.ask(submit("never", words(21, 4)))
                assert (await engine.ask(submit("eight", words(8, 5)))).ended.finish.kind == "length"

    run_sim(main)


@pytest.mark.parametrize(
    ("until_s", "is_served"), [(1.499, False), (1.5, False), (1.501, True)], ids=["before", "as it ends", "after"]
)
def test_a_wait_is_over_at_its_very_instant(until_s: float, is_served: bool):
    # The place is free at 1.5: half a second of prefill and eight decode steps.
    events = [
        (0.0, submit("running", words(16, 1), max_new_tokens=9)),
        (0.1, submit("waiting", words(8, 2), max_new_tokens=1, wait_until_s=until_s)),
    ]
    ended_s: list[float] = []

    async def main() -> Heard:
        async with sim_engine(settings(**ONE_AT_A_TIME), make_device()) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(engine.ask, events[0][1])
            await trio.sleep_until(0.1)
            heard = await engine.ask(events[1][1])
            ended_s.append(trio.current_time())
            return heard
        raise AssertionError("unreachable")

    heard = run_sim(main)
    if is_served:
        assert heard.times_s == (2.0,)
    else:
        assert ended_s == [until_s]
        assert heard.ended.finish == Finish("abort", message=WAITED_TOO_LONG, status=503, cause="queue_timeout")


def test_a_wait_that_is_over_is_noticed_while_nothing_else_happens():
    async def main() -> None:
        async with sim_engine(settings(), make_device()) as engine:
            await engine.order(Pause("in_place"))
            heard = await engine.ask(submit("a", words(8, 1), wait_until_s=7.25))
            assert (trio.current_time(), heard.ended.finish.message) == (7.25, WAITED_TOO_LONG)

    run_sim(main)


def test_whoever_was_let_in_once_waits_as_long_as_it_takes():
    wanted = settings(**ONE_AT_A_TIME, priority=PrioritySettings(preemption_threshold=0))
    events = [
        (0.0, submit("low", words(16, 1), max_new_tokens=9, priority=0, wait_until_s=1.0)),
        (0.6, submit("high", words(16, 2), max_new_tokens=9, priority=1)),
    ]
    heard = play(wanted, make_device(), events)
    assert heard["low"].ended.finish.kind == "length"
    assert heard["low"].times_s[-1] > heard["high"].times_s[-1] > 1.0


def test_a_drain_finishes_what_runs_and_waits_even_where_it_was_paused_and_takes_nothing_more():
    heard: dict[str, Heard] = {}
    wanted: SchedulerSettings = settings(**ONE_AT_A_TIME)

    async def ask(engine: SimEngine, name: str, salt: int) -> None:
        heard[name] = await engine.ask(submit(name, words(16, salt), max_new_tokens=5))

    async def main() -> None:
        async with trio.open_nursery() as nursery, sim_engine(wanted, make_device()) as engine:
            nursery.start_soon(ask, engine, "running", 1)
            await trio.sleep(0.1)
            nursery.start_soon(ask, engine, "waiting", 2)
            await trio.sleep(0.55)
            await engine.order(Pause("in_place"))
            await trio.sleep_until(5.0)
            engine.channels.scheduler_send.send_nowait(Drain())
            await trio.sleep(0.0)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Draining):
                await engine.ask(submit("late", words(8, 3)))

    run_sim(main)
    # The step that ran when the pause came brings a token; the others come after the drain has begun.
    assert heard["running"].times_s == (0.5, 0.625, 0.75, 5.125, 5.25)
    assert heard["waiting"].times_s == (5.75, 5.875, 6.0, 6.125, 6.25)
