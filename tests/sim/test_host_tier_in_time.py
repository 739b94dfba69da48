"""Host memory at exact instants: a copy takes a quarter of a second beside the steps, and no step waits for one."""

import numpy as np
import pytest
import trio

from stages.messages import Cancel, FlushCache, Submit, Usage
from stages.settings import CacheSettings
from tests.sim.history_device import HistoryDevice
from tests.sim.scenes import Event, answer, make_device, play, play_on, settings, words
from tests.sim.simkit import Heard, SimEngine, run_sim, sim_engine, submit

TALK = submit("talk", words(40, 1))


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def turn_after(order: Submit, name: str) -> Submit:
    return submit(name, order.prompt_ids + answer(order) + words(4, 77))


def two_tiers(copy_s: float = 0.25, num_pages: int = 129, num_host_pages: int = 65) -> HistoryDevice:
    """Return a device for two rows and two snapshots, with host memory."""
    return make_device(copy_s, num_pages=num_pages, num_slots=7, num_host_pages=num_host_pages, num_host_slots=9)


def wanted(overlap: bool):
    return settings(overlap=overlap, max_running_requests=2, cache=CacheSettings(max_snapshots=2))


def evicted() -> list[Event]:
    """Return a turn of a conversation and two requests whose snapshots take its snapshots' places."""
    return [(0.0, TALK), (20.0, submit("x", words(40, 8))), (23.0, submit("y", words(40, 9)))]


def test_what_was_evicted_from_the_device_comes_back_from_the_host_and_counts_as_such(overlap: bool):
    device = two_tiers()
    heard = play(wanted(overlap), device, [*evicted(), (50.0, turn_after(TALK, "again"))])
    # A copy, then one prefill step: the same turn computed anew would take three.
    assert heard["again"].times_s[0] == 50.0 + 0.25 + 0.5
    assert heard["again"].ended.usage == Usage(48, 4, cached_tokens=40, cached_host_tokens=40)
    assert [transfer.to_host for transfer in device.transfers].count(False) == 1


def test_without_host_memory_the_same_turn_is_computed_anew(overlap: bool):
    heard = play(wanted(overlap), make_device(num_slots=7), [*evicted(), (50.0, turn_after(TALK, "again"))])
    assert heard["again"].times_s[0] == 50.0 + 3 * 0.5
    assert heard["again"].ended.usage == Usage(48, 4)


def test_the_pages_come_back_in_the_order_in_which_they_belong(overlap: bool):
    # Twelve pages: the two others take the conversation's pages as well.
    device = two_tiers(num_pages=13)
    heard = play(wanted(overlap), device, [*evicted(), (50.0, turn_after(TALK, "again"))])
    (fetch,) = [transfer for transfer in device.transfers if not transfer.to_host]
    assert len(fetch.pages) == 5
    assert heard["again"].token_ids == answer(turn_after(TALK, "again"))
    assert heard["again"].ended.usage.cached_host_tokens == 40


def test_only_what_the_device_lacks_counts_as_from_the_host(overlap: bool):
    # The system text is used all the time; the turn after it was evicted.
    system = words(40, 1)
    first = submit("first", system + words(40, 2))
    others = [(20.0 + 3 * index, submit(f"o{index}", system + words(8, 10 + index))) for index in range(3)]
    device = two_tiers()
    heard = play(wanted(overlap), device, [(0.0, first), *others, (50.0, turn_after(first, "again"))])
    assert heard["o2"].ended.usage == Usage(48, 4, cached_tokens=40)
    assert heard["again"].ended.usage == Usage(88, 4, cached_tokens=80, cached_host_tokens=40)


def stream_beside(overlap: bool, device: HistoryDevice, turn: Submit) -> dict[str, Heard]:
    """Let a conversation come back at 51.05 beside a stream that has a token each eighth from 50.5 on."""
    stream = submit("stream", words(8, 99), max_new_tokens=40)
    return play(wanted(overlap), device, [*evicted(), (50.0, stream), (51.05, turn)])


@pytest.mark.parametrize("copy_s", [0.25, 1.0, 2.0])
def test_a_stream_goes_on_while_another_waits_for_its_copy(copy_s: float, overlap: bool):
    heard = stream_beside(overlap, two_tiers(copy_s), turn_after(TALK, "again"))
    gaps = heard["stream"].gaps_s
    # The one gap that is longer is the prefill step of the four new tokens and the open group.
    assert sorted(gaps)[-2:] == [0.125, 0.625]
    # It is looked at when the step that ran, or was planned, is done; and let in at the first such moment after.
    begun_s = 51.125
    ready_s = begun_s + copy_s + 0.5 + (0.125 if overlap else 0.0)
    assert heard["again"].times_s[0] == ready_s


def test_a_backup_however_slow_delays_nobody(overlap: bool):
    quick, slow = ({}, {})
    for heard, copy_s in ((quick, 0.0), (slow, 1000.0)):
        events = [(0.3 * index, submit(f"r{index}", words(20, index), max_new_tokens=9)) for index in range(12)]
        heard.update({name: one.times_s for name, one in play(wanted(overlap), two_tiers(copy_s), events).items()})
    assert quick == slow


def test_a_drain_waits_for_the_copy_that_is_under_way_and_begins_no_other(overlap: bool):
    device = two_tiers(30.0)

    async def main() -> float:
        async with sim_engine(wanted(overlap), device) as engine:
            await engine.ask(TALK)
        return trio.current_time()

    # The prompt's snapshot was there at 1.0; that of the turn's end is not copied any more.
    assert run_sim(main) == 31.0
    assert len(device.transfers) == 1


def test_a_fetch_is_begun_in_a_drain_too(overlap: bool):
    async def main() -> Heard:
        async with trio.open_nursery() as nursery, sim_engine(wanted(overlap), two_tiers()) as engine:
            await play_on(engine, evicted())
            await trio.sleep_until(50.0)
            heard: list[Heard] = []

            async def ask(name: str, order: Submit) -> None:
                heard.append(await engine.ask(order))

            # Two of these run when the drain comes; the third is looked at when one has ended.
            for index in range(2):
                nursery.start_soon(ask, "other", submit(f"other{index}", words(8, 60 + index), max_new_tokens=9))
            await trio.sleep(0.1)
            nursery.start_soon(ask, "again", turn_after(TALK, "again"))
            await trio.sleep(0.1)
        return heard[-1]

    assert run_sim(main).ended.usage == Usage(48, 4, cached_tokens=40, cached_host_tokens=40)


def test_a_copy_that_is_under_way_serves_the_second_who_waits_for_it_too(overlap: bool):
    device = two_tiers(2.0)
    turns = [turn_after(TALK, name) for name in ("again", "too")]
    heard = play(wanted(overlap), device, [*evicted(), (50.0, turns[0]), (51.0, turns[1])])
    assert [transfer.to_host for transfer in device.transfers].count(False) == 1
    assert [heard[name].times_s[0] for name in ("again", "too")] == [52.5, 52.5]
    assert [heard[name].ended.usage.cached_host_tokens for name in ("again", "too")] == [40, 40]


def test_whoever_leaves_during_its_copy_costs_nothing_and_the_next_finds_it_on_the_device(overlap: bool):
    device = two_tiers(2.0)

    async def cancel(engine: SimEngine) -> None:
        engine.cancel(Cancel("again", deliver=True))

    events = [*evicted(), (50.0, turn_after(TALK, "again")), (60.0, turn_after(TALK, "later"))]
    heard = play(wanted(overlap), device, events, {51.0: cancel})
    assert heard["again"].ended.finish.message == "Abort in waiting queue"
    assert heard["later"].times_s[0] == 60.5
    assert heard["later"].ended.usage == Usage(48, 4, cached_tokens=40)


def test_a_flush_waits_for_the_copies_and_forgets_both_tiers(overlap: bool):
    device = two_tiers(2.0)
    told: list[float] = []

    async def flush(engine: SimEngine) -> None:
        # Of the last to run only the end of its turn is worth a copy, when the copy begun at 23.0 is done.
        assert not (await engine.order(FlushCache())).is_done
        assert (await engine.order(FlushCache(waits=True))).is_done
        told.append(trio.current_time())

    heard = play(wanted(overlap), device, [*evicted(), (50.0, turn_after(TALK, "again"))], {25.5: flush})
    assert heard["again"].ended.usage == Usage(48, 4)
    assert told == [27.0]


def test_host_memory_that_holds_one_snapshot_keeps_the_newest_and_copies_none_twice(overlap: bool):
    device = make_device(num_slots=7, num_pages=129, num_host_pages=7, num_host_slots=2)
    last = submit("y", words(40, 9))
    kept: list[bool] = []

    async def look(engine: SimEngine) -> None:
        tree = engine.core.memory.tree
        assert tree is not None
        match = tree.match("", np.array(last.prompt_ids + answer(last), np.int32), 44)
        assert match.resume is not None
        kept.append(match.resume.end == 40 and match.resume.host.snapshot is not None)
        assert engine.core.is_idle

    play(wanted(overlap), device, evicted(), {50.0: look})
    assert kept == [True]
    # The end of each prompt and the end of each turn, once.
    assert [transfer.to_host for transfer in device.transfers] == [True] * 6
