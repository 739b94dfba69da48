"""An operator's orders at exact instants: pause and go on, flush, abort."""

from collections.abc import Callable

import pytest
import trio

from stages.errors import EngineFailure
from stages.messages import Cancel, CommandResult, FlushCache, Pause, Resume, Usage
from stages.scheduler.commands import FLUSH_PENDING, PAUSED, RESUMED
from tests.sim.scenes import Act, Event, answer, make_device, play, prefilled, settings, words
from tests.sim.simkit import Heard, SimEngine, run_sim, sim_engine, submit

Told = list[tuple[float, CommandResult]]


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def ordering(order: FlushCache | Pause | Resume, told: Told) -> Act:
    """Return an act that gives the order and notes when it was answered, and how."""

    async def act(engine: SimEngine) -> None:
        told.append((0.0, await engine.order(order)))
        told[-1] = trio.current_time(), told[-1][1]

    return act


def cancelling(order: Cancel) -> Act:
    async def act(engine: SimEngine) -> None:
        engine.cancel(order)

    return act


# --- pause ----------------------------------------------------------------------------------------------------------


def running_and_waiting() -> list[Event]:
    """Return one with a token each eighth from 1.0 on, and one that has to wait for it."""
    return [
        (0.0, submit("running", words(21, 1), max_new_tokens=12)),
        (0.1, submit("waiting", words(16, 2), max_new_tokens=2)),
    ]


def paused(mode: str, overlap: bool) -> tuple[dict[str, Heard], Told, int]:
    """Pause at 1.55 and go on at 9.0; return what was heard, the answers, and how many tokens were prefilled."""
    told: Told = []
    device = make_device()
    acts = {1.55: ordering(Pause(mode), told), 9.0: ordering(Resume(), told)}  # type: ignore[arg-type]
    wanted = settings(max_running_requests=1, overlap=overlap)
    return play(wanted, device, running_and_waiting(), acts), told, prefilled(device)


def test_a_pause_in_place_stops_planning_and_everybody_goes_on_where_they_stood(overlap: bool):
    heard, told, num_prefilled = paused("in_place", overlap)
    assert told == [(1.55, CommandResult(True, PAUSED)), (9.0, CommandResult(True, RESUMED))]
    # What was out is finished: the step that runs, and the one behind it.
    before = 7 if overlap else 6
    assert heard["running"].times_s[:before] == tuple(1.0 + 0.125 * step for step in range(before))
    assert heard["running"].times_s[before:] == tuple(9.125 + 0.125 * step for step in range(12 - before))
    assert heard["waiting"].times_s[0] == heard["running"].times_s[-1] + 0.5
    assert num_prefilled == 21 + 16


def test_a_pause_that_retracts_answers_when_all_memory_is_back_and_costs_one_prefill_step(overlap: bool):
    heard, told, num_prefilled = paused("retract", overlap)
    before = 7 if overlap else 6
    quiet_s = 1.0 + 0.125 * (before - 1)
    assert told == [(quiet_s, CommandResult(True, PAUSED)), (9.0, CommandResult(True, RESUMED))]
    assert heard["running"].times_s[before - 1 : before + 1] == (quiet_s, 9.5)
    # It has 27 or 28 tokens then and has read all but the newest; 24 of them end a group.
    assert num_prefilled == 21 + (before + 21 - 24) + 16
    assert heard["running"].ended.usage == Usage(21, 12, num_retractions=1)
    assert heard["waiting"].times_s[0] == heard["running"].times_s[-1] + 0.5


def test_a_pause_that_aborts_ends_what_runs_and_what_waits_at_once(overlap: bool):
    heard, told, _ = paused("abort", overlap)
    assert [one.ended.finish.message for one in (heard["running"], heard["waiting"])] == [
        "Aborted",
        "Abort in waiting queue",
    ]
    assert (len(heard["running"].token_ids), heard["waiting"].token_ids) == (5, ())
    # The answer waits for the steps that were out.
    assert told[0] == (1.75 if overlap else 1.625, CommandResult(True, PAUSED))


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_what_comes_during_a_pause_waits_and_runs_after_it(mode: str, overlap: bool):
    told: Told = []
    acts = {1.0: ordering(Pause(mode), told), 9.0: ordering(Resume(), told)}  # type: ignore[arg-type]
    heard = play(settings(overlap=overlap), make_device(), [(2.0, submit("late", words(16, 1)))], acts)
    assert heard["late"].times_s[0] == 9.5
    assert [at_s for at_s, _ in told] == [1.0, 9.0]


# --- flush ----------------------------------------------------------------------------------------------------------


def flushing(overlap: bool, acts: Callable[[Told], dict[float, Act]]) -> tuple[dict[str, Heard], Told]:
    """Play a request of 40 tokens until 3.0 and the same at 10.0 again."""
    told: Told = []
    prompt = words(40, 1)
    events = [(0.0, submit("first", prompt, max_new_tokens=13)), (10.0, submit("again", prompt, max_new_tokens=1))]
    return play(settings(overlap=overlap), make_device(), events, acts(told)), told


def test_a_flush_of_an_idle_engine_is_done_at_once_and_the_same_prompt_is_computed_again(overlap: bool):
    heard, told = flushing(overlap, lambda told: {5.0: ordering(FlushCache(), told)})
    assert told == [(5.0, CommandResult(True))]
    assert heard["again"].times_s == (11.5,)
    assert heard["again"].ended.usage.cached_tokens == 0


def test_a_flush_is_refused_while_something_runs_and_the_cache_stays(overlap: bool):
    heard, told = flushing(overlap, lambda told: {2.0: ordering(FlushCache(), told)})
    assert told == [(2.0, CommandResult(False))]
    assert heard["again"].times_s == (10.5,)
    assert heard["again"].ended.usage.cached_tokens == 32


def test_a_flush_that_waits_is_done_when_the_last_one_ends_and_a_second_one_is_refused_meanwhile(overlap: bool):
    heard, told = flushing(
        overlap,
        lambda told: {
            2.0: ordering(FlushCache(waits=True), told),
            2.1: ordering(FlushCache(waits=True), told),
            2.2: ordering(FlushCache(), told),
        },
    )
    refused = CommandResult(False, FLUSH_PENDING)
    assert sorted(told, key=lambda one: one[0]) == [(2.1, refused), (2.2, refused), (3.0, CommandResult(True))]
    assert heard["again"].ended.usage.cached_tokens == 0


def test_a_flush_whose_sender_left_is_not_done_and_does_not_stand_in_the_way_of_another(overlap: bool):
    async def leaving(engine: SimEngine) -> None:
        with trio.move_on_after(0.5):
            await engine.order(FlushCache(waits=True))

    heard, told = flushing(overlap, lambda told: {2.0: leaving})
    assert heard["again"].ended.usage.cached_tokens == 32
    _, told = flushing(overlap, lambda told: {2.0: leaving, 2.6: ordering(FlushCache(waits=True), told)})
    assert told == [(3.0, CommandResult(True))]


def test_a_flush_during_a_retracting_pause_forgets_what_the_retracted_left_and_they_go_on_all_the_same(overlap: bool):
    told: Told = []
    device = make_device()
    acts = {
        1.55: ordering(Pause("retract"), told),
        5.0: ordering(FlushCache(), told),
        9.0: ordering(Resume(), told),
    }
    heard = play(settings(overlap=overlap), device, running_and_waiting()[:1], acts)
    assert [result.is_done for _, result in told] == [True, True, True]
    before = 7 if overlap else 6
    assert prefilled(device) == 21 + 21 + before
    assert heard["running"].times_s[before] == 10.0


def test_a_flush_that_waits_is_dropped_when_the_engine_ends_before_it_could_be_done(overlap: bool):
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            async with sim_engine(settings(overlap=overlap), make_device()) as engine:

                async def flush() -> None:
                    # The last choice's end is the engine's: it is idle then, and done with the flush, before it stops.
                    assert (await engine.order(FlushCache(waits=True))).is_done
                    assert trio.current_time() == 2.0

                nursery.start_soon(engine.ask, submit("a", words(40, 1), max_new_tokens=5))
                await trio.sleep(0.1)
                nursery.start_soon(flush)
                await trio.sleep(0.1)

    run_sim(main)


# --- abort ----------------------------------------------------------------------------------------------------------


def aborted(order: Cancel, names: tuple[str, ...], overlap: bool) -> dict[str, str]:
    """Abort at 1.05, with two at a time, and return how each ended."""
    events: list[Event] = [(0.0, submit(name, words(8, salt), max_new_tokens=9)) for salt, name in enumerate(names)]
    wanted = settings(max_running_requests=2, overlap=overlap)
    heard = play(wanted, make_device(), events, {1.05: cancelling(order)})
    return {name: one.ended.finish.message or one.ended.finish.kind for name, one in heard.items()}


# Of four that ask at once two run; which, is the order in which they happened to ask.
STOPPED = {"Aborted", "Abort in waiting queue"}


def test_an_abort_of_all_ends_what_runs_and_what_waits(overlap: bool):
    ends = aborted(Cancel("", deliver=True, scope="all"), ("a", "b", "c", "d"), overlap)
    assert sorted(ends.values()) == ["Abort in waiting queue"] * 2 + ["Aborted"] * 2


def test_an_abort_by_prefix_ends_all_that_begin_with_the_id_of_one_that_lives(overlap: bool):
    ends = aborted(Cancel("chat-1", deliver=True, scope="prefix"), ("chat-1", "chat-12", "chat-2", "x"), overlap)
    assert {name for name, end in ends.items() if end in STOPPED} == {"chat-1", "chat-12"}


def test_an_abort_of_one_request_leaves_those_that_begin_alike(overlap: bool):
    ends = aborted(Cancel("chat", deliver=True), ("chat", "chat_0", "chat2"), overlap)
    assert {name for name, end in ends.items() if end in STOPPED} == {"chat"}


def test_a_next_turn_resumes_from_what_an_aborted_choice_left_up_to_what_its_client_has(overlap: bool):
    first = submit("a", words(40, 1), max_new_tokens=30)
    # It has five tokens when it ends, and has read four: 44 end a group.
    turn = submit("b", first.prompt_ids + answer(first)[:5] + words(8, 2))
    heard = play(
        settings(overlap=overlap),
        make_device(),
        [(0.0, first), (9.0, turn)],
        {2.1: cancelling(Cancel("a", deliver=True))},
    )
    assert len(heard["a"].token_ids) == 5
    assert heard["b"].ended.usage.cached_tokens == 44
    assert heard["b"].times_s[0] == 9.5


def test_an_order_to_an_engine_that_is_lost_is_told_so(overlap: bool):
    device = make_device()
    device.lose_at_step = 3

    async def flush(engine: SimEngine, told: list[BaseException]) -> None:
        await trio.sleep(0.1)
        with pytest.raises(EngineFailure) as caught:
            await engine.order(FlushCache(waits=True))
        told.append(caught.value)

    told: list[BaseException] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery, sim_engine(settings(overlap=overlap), device) as engine:
            nursery.start_soon(flush, engine, told)
            nursery.start_soon(_ask, engine)
            await trio.sleep_forever()

    with pytest.RaisesGroup(EngineFailure, flatten_subgroups=True):
        run_sim(main)
    assert len(told) == 1


async def _ask(engine: SimEngine) -> None:
    heard = await engine.ask(submit("a", words(40, 1), max_new_tokens=30))
    assert heard.ended.finish.kind == "error"
