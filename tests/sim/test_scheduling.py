"""The real scheduler and executor on a virtual clock: exact instants, cancels, memory pressure, a soak.

Every test runs one step at a time and with the next step planned ahead; where the two differ the test says how.
"""

import random
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from attrs import evolve

from graphs.step import StepInput
from stages.errors import Draining, EngineFailure, InvalidRequest, QueueFull
from stages.messages import Cancel, Sampling, Usage
from stages.scheduler.budget import FIRST_SHARE
from stages.settings import SchedulerSettings
from tests.sim import simkit
from tests.sim.fake_grammar import rules
from tests.sim.history_device import HistoryDevice, continuation
from tests.sim.simkit import Heard, SimEngine, capacity, run_sim, submit

SETTINGS = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=8)
PREFILL_S, DECODE_S = 0.5, 0.125


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether sim_engine plans ahead."""
    overlap: bool = request.param

    def sim_engine(settings: SchedulerSettings, device: HistoryDevice) -> AbstractAsyncContextManager[SimEngine]:
        return simkit.sim_engine(evolve(settings, overlap=overlap), device)

    monkeypatch.setitem(globals(), "sim_engine", sim_engine)
    return overlap


sim_engine = simkit.sim_engine


def family_time_s(step: StepInput) -> float:
    return PREFILL_S if step.key.family == "prefill" else DECODE_S


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((salt * 131 + index * 7) % 997 for index in range(length))


def make_device(**sizes: int) -> HistoryDevice:
    return HistoryDevice(capacity(**sizes), family_time_s)


def test_one_request_answers_after_its_chunks_and_then_once_a_decode_step():
    device = make_device()

    async def main() -> Heard:
        async with sim_engine(SETTINGS, device) as engine:
            return await engine.ask(submit("a", prompt(40), max_new_tokens=4))

    heard = run_sim(main)
    assert heard.token_ids == continuation(prompt(40), 4, 997)
    assert heard.times_s[0] == 3 * PREFILL_S
    assert heard.gaps_s == (DECODE_S,) * 3
    assert heard.ended.finish.kind == "length"
    assert heard.ended.usage == Usage(40, 4)
    assert [str(step.key) for step in device.steps] == [
        "prefill-b1-t16-p2-greedy",
        "prefill-b1-t16-p4-greedy",
        "prefill-b1-t8-p8-greedy",
        *["decode-b1-t1-p8-greedy"] * 3,
    ]


def test_what_was_done_is_counted_once_even_when_it_had_to_be_done_again():
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, schedule_conservativeness=0.0)

    async def main() -> None:
        async with sim_engine(settings, make_device(num_pages=5)) as engine:
            await engine.ask_choices(tuple(submit("a", prompt(9), choice=index, max_new_tokens=16) for index in (0, 1)))
            await trio.sleep(1.0)
            totals = engine.stats.snapshot(trio.current_time()).totals
        assert totals["retractions"] > 0
        assert (totals["prompt_tokens"], totals["completion_tokens"], totals["choices_length"]) == (18, 32, 2)
        # Once a choice, however often it was let in; what was given back is computed again.
        assert totals["looked_up_tokens"] == 18 < totals["prefill_tokens"]
        assert totals["device_s"] == totals["steps_prefill"] * PREFILL_S + totals["steps_decode"] * DECODE_S

    run_sim(main)


def test_a_running_choice_waits_one_prefill_step_at_most_between_its_tokens(overlap: bool):
    async def main() -> tuple[Heard, Heard]:
        heard: dict[str, Heard] = {}
        async with sim_engine(SETTINGS, make_device()) as engine, trio.open_nursery() as nursery:

            async def client(name: str, length: int, new: int, at_s: float) -> None:
                await trio.sleep(at_s)
                heard[name] = await engine.ask(submit(name, prompt(length), max_new_tokens=new))

            nursery.start_soon(client, "short", 8, 12, 0.0)
            nursery.start_soon(client, "long", 80, 2, 0.6)
        return heard["short"], heard["long"]

    short, long = run_sim(main)
    # It came during the step that ended at 0.625. No decode step stands between that one and its first chunk, but the
    # one that was planned ahead.
    num_before = 2 if overlap else 1
    assert short.gaps_s[:num_before] == (DECODE_S,) * num_before
    # Five chunks of the long prompt, each followed by one decode step of the short one.
    assert short.gaps_s[num_before : num_before + 5] == (PREFILL_S + DECODE_S,) * 5
    assert set(short.gaps_s[num_before + 5 :]) == {DECODE_S}
    assert long.times_s[0] == PREFILL_S + num_before * DECODE_S + 5 * PREFILL_S + 4 * DECODE_S


@pytest.mark.parametrize(
    ("lengths", "shapes"),
    [
        # The oldest prompt's chunk sets the width; shorter ones ride along, a longer one takes the next step.
        ((4, 3, 16, 2), [(4, 4, 3), (1, 16, 1)]),
        ((16, 4, 3, 2), [(4, 16, 4)]),
        ((2, 2, 2, 2, 2), [(4, 4, 4), (1, 4, 1)]),
    ],
)
def test_prompts_share_a_prefill_step_as_wide_as_the_oldest_needs(
    lengths: tuple[int, ...], shapes: list[tuple[int, int, int]]
):
    device = make_device()

    async def main() -> None:
        async with sim_engine(SETTINGS, device) as engine:
            await engine.ask_choices(
                tuple(
                    submit("a", prompt(length, choice), choice=choice, max_new_tokens=1)
                    for choice, length in enumerate(lengths)
                )
            )

    run_sim(main)
    assert [(step.key.batch, step.key.tokens, int((step.num_valid > 0).sum())) for step in device.steps] == shapes


def test_decoding_choices_take_turns_when_a_step_does_not_hold_them_all():
    device = make_device(max_batch=2)

    async def main() -> tuple[Heard, ...]:
        async with sim_engine(SETTINGS, device) as engine:
            return await engine.ask_choices(
                tuple(submit("a", prompt(4, choice), choice=choice, max_new_tokens=7) for choice in range(4))
            )

    heard = run_sim(main)
    assert [one.token_ids for one in heard] == [continuation(prompt(4, salt), 7, 997) for salt in range(4)]
    assert {gap for one in heard for gap in one.gaps_s} == {DECODE_S, 2 * DECODE_S}
    assert [one.gaps_s[1:] for one in heard] == [(2 * DECODE_S,) * 5] * 4


def test_sampled_and_greedy_rows_share_a_step_and_each_gets_its_own_tokens_and_logprobs():
    async def main() -> None:
        async with sim_engine(SETTINGS, make_device()) as engine:
            plain, drawn = await engine.ask_choices(
                (
                    submit("a", prompt(9), choice=0, seed=5),
                    submit("a", prompt(9), choice=1, seed=5, sampling=Sampling(temperature=1.0)),
                )
            )
        assert plain.token_ids == continuation(prompt(9), 4, 997)
        assert drawn.token_ids == continuation(prompt(9), 4, 997, seed=5)

    run_sim(main)


def test_an_end_token_stops_a_choice_but_not_before_min_new_tokens():
    expected = continuation(prompt(9), 12, 997)
    stop = frozenset({expected[2], expected[7]})

    async def main() -> None:
        async with sim_engine(SETTINGS, make_device()) as engine:
            early = await engine.ask(submit("a", prompt(9), max_new_tokens=12, stop_token_ids=stop))
            late = await engine.ask(submit("b", prompt(9), max_new_tokens=12, stop_token_ids=stop, min_new_tokens=4))
        assert (early.token_ids, early.ended.finish.kind, early.ended.finish.matched) == (
            expected[:3],
            "stop",
            expected[2],
        )
        assert (late.token_ids, late.ended.finish.matched) == (expected[:8], expected[7])

    run_sim(main)


# --- cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sixteenth", range(48))
def test_a_client_that_leaves_at_any_moment_frees_everything_within_two_steps(sixteenth: int):
    leave_s = sixteenth / 16 + 0.01

    async def main() -> None:
        async with sim_engine(SETTINGS, make_device()) as engine:
            with trio.move_on_after(leave_s):
                await engine.ask(submit("a", prompt(33), max_new_tokens=10))
            await trio.sleep(2 * PREFILL_S)
            engine.assert_all_returned()
            # Its slot and pages serve the next one.
            assert (await engine.ask(submit("a", prompt(20, 3)))).token_ids == continuation(prompt(20, 3), 4, 997)

    run_sim(main, seed=sixteenth)


@pytest.mark.parametrize(
    ("at_s", "message", "num_tokens"),
    [(0.1, "Aborted", 0), (0.6, "Aborted", 0), (1.6, "Aborted", 1), (1.7, "Aborted", 2)],
)
def test_an_abort_reaches_the_client_with_what_it_has_so_far(at_s: float, message: str, num_tokens: int):
    async def main() -> None:
        async with sim_engine(SETTINGS, make_device()) as engine, trio.open_nursery() as nursery:

            async def abort() -> None:
                await trio.sleep(at_s)
                engine.cancel(Cancel("a", deliver=True))

            nursery.start_soon(abort)
            heard = await engine.ask(submit("a", prompt(33), max_new_tokens=10))
            assert trio.current_time() == at_s
            assert (heard.ended.finish.kind, heard.ended.finish.message) == ("abort", message)
            assert heard.ended.finish.status is None
            assert heard.token_ids == continuation(prompt(33), 10, 997)[:num_tokens]
            assert heard.ended.usage == Usage(33, num_tokens)

    run_sim(main)


def test_an_abort_in_the_queue_says_so():
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=1)

    async def main() -> None:
        async with sim_engine(settings, make_device()) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(engine.ask, submit("first", prompt(33), max_new_tokens=10))
            await trio.sleep(0.1)

            async def abort() -> None:
                await trio.sleep(0.1)
                engine.cancel(Cancel("second", deliver=True))

            nursery.start_soon(abort)
            heard = await engine.ask(submit("second", prompt(9)))
            assert heard.ended.finish.message == "Abort in waiting queue"
            assert heard.ended.usage == Usage(9, 0)

    run_sim(main)


def test_one_choice_can_be_cancelled_and_the_others_run_on():
    async def main() -> None:
        async with sim_engine(SETTINGS, make_device()) as engine, trio.open_nursery() as nursery:

            async def abort() -> None:
                await trio.sleep(0.95)
                engine.cancel(Cancel("a", choice=1, deliver=True))
                engine.cancel(Cancel("a", choice=7, deliver=True))
                engine.cancel(Cancel("never heard of", deliver=True))

            nursery.start_soon(abort)
            heard = await engine.ask_choices(
                tuple(submit("a", prompt(9), choice=choice, max_new_tokens=9) for choice in range(3))
            )
            assert [one.ended.finish.kind for one in heard] == ["length", "abort", "length"]
            assert [len(one.token_ids) for one in heard] == [9, 4, 9]

    run_sim(main)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_a_request_as_a_whole_and_takes_the_next_that_fits():
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=1, max_queued_requests=2)

    async def main() -> None:
        async with sim_engine(settings, make_device()) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(engine.ask, submit("running", prompt(9)))
            await trio.sleep(0.1)
            nursery.start_soon(engine.ask, submit("waiting", prompt(9)))
            await trio.sleep(0.1)
            with pytest.raises(QueueFull, match=r"^The request queue is full\.$"):
                await engine.ask_choices(tuple(submit("two", prompt(9), choice=choice) for choice in range(2)))
            assert engine.core.load().waiting == 1
            assert (await engine.ask(submit("one", prompt(9)))).ended.finish.kind == "length"

    run_sim(main)


def test_an_id_in_use_is_refused_and_the_first_request_goes_on():
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=1)

    async def main() -> None:
        async with sim_engine(settings, make_device()) as engine, trio.open_nursery() as nursery:
            heard: list[Heard] = []

            async def first(name: str) -> None:
                heard.append(await engine.ask(submit(name, prompt(9))))

            nursery.start_soon(first, "a")
            await trio.sleep(0.1)
            nursery.start_soon(first, "b")
            await trio.sleep(0.1)
            for name in ("a", "b"):
                with pytest.raises(InvalidRequest, match=f"Duplicate request ID detected: {name}"):
                    engine.engine.submit((submit(name, prompt(5)),))
            await trio.sleep(10.0)
            assert [one.token_ids for one in heard] == [continuation(prompt(9), 4, 997)] * 2
            await first("a")

    run_sim(main)


def test_a_prompt_that_can_never_fit_is_refused_at_once_even_behind_a_queue():
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=1)

    async def main() -> None:
        async with sim_engine(settings, make_device(num_pages=6)) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(engine.ask, submit("running", prompt(9)))
            await trio.sleep(0.1)
            heard = await engine.ask(submit("long", prompt(41)))
            assert trio.current_time() == 0.1
            finish = heard.ended.finish
            assert (finish.kind, finish.status) == ("abort", 400)
            assert finish.message == "Request prompt exceeds the KV memory budget: input_len=41."
            assert (await engine.ask(submit("fits", prompt(40), max_new_tokens=1))).ended.finish.kind == "length"

    run_sim(main)


def test_nothing_to_generate_ends_at_once():
    async def main() -> None:
        async with sim_engine(SETTINGS, make_device()) as engine:
            heard = await engine.ask(submit("a", prompt(9), max_new_tokens=0))
            assert (heard.token_ids, heard.ended.finish.kind, heard.ended.usage) == ((), "length", Usage(9, 0))

    run_sim(main)


# --- memory pressure ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_pages", [9, 10, 12, 16, 24])
@pytest.mark.parametrize("reserve", [0.0, 0.3])
def test_retraction_changes_when_tokens_come_but_not_which(num_pages: int, reserve: float):
    settings = SchedulerSettings(
        chunked_prefill_size_tokens=16, max_running_requests=8, schedule_conservativeness=reserve / FIRST_SHARE
    )
    lengths = (9, 3, 17, 30, 12, 5)

    async def main() -> None:
        async with sim_engine(settings, make_device(num_pages=num_pages)) as engine:
            heard = await engine.ask_choices(
                tuple(
                    submit(
                        "a",
                        prompt(length, choice),
                        choice=choice,
                        max_new_tokens=30,
                        seed=choice,
                        sampling=Sampling(temperature=float(choice % 2)),
                    )
                    for choice, length in enumerate(lengths)
                )
            )
            for choice, (one, length) in enumerate(zip(heard, lengths, strict=True)):
                seed = choice if choice % 2 else 0
                assert one.token_ids == continuation(prompt(length, choice), 30, 997, seed)
                assert evolve(one.ended.usage, num_retractions=0) == Usage(length, 30)
            await trio.sleep(0.0)
            if reserve == 0.0 and num_pages <= 16:
                assert engine.stats.snapshot(trio.current_time()).totals["retractions"] > 0

    run_sim(main)


def test_the_last_choice_is_aborted_when_it_alone_outgrows_the_memory():
    async def main() -> None:
        async with sim_engine(SETTINGS, make_device(num_pages=4)) as engine:
            heard = await engine.ask_choices(
                tuple(submit("a", prompt(9, choice), choice=choice, max_new_tokens=100) for choice in range(2))
            )
            for choice, one in enumerate(heard):
                assert (one.ended.finish.kind, one.ended.finish.status) == ("abort", 500)
                assert one.ended.finish.message == (
                    "Out of memory even after retracting all other requests in the decode batch. "
                    "Aborting the last request."
                )
                # Three pages of eight tokens hold 24; the token sampled after the 24th needs no page.
                assert one.token_ids == continuation(prompt(9, choice), 16, 997)

    run_sim(main)


def test_a_retracted_choice_that_is_aborted_was_waiting():
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=8, schedule_conservativeness=0.0)

    async def main() -> None:
        async with sim_engine(settings, make_device(num_pages=5)) as engine, trio.open_nursery() as nursery:

            async def abort() -> None:
                while not engine.core.roster.retracted:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                assert [choice.submit.key.choice for choice in engine.core.roster.retracted] == [1]
                engine.cancel(Cancel("a", choice=1, deliver=True))

            nursery.start_soon(abort)
            old, new = await engine.ask_choices(
                tuple(submit("a", prompt(9, choice), choice=choice, max_new_tokens=20) for choice in range(2))
            )
            assert old.token_ids == continuation(prompt(9, 0), 20, 997)
            assert new.ended.finish.message == "Abort in waiting queue"
            assert new.token_ids == continuation(prompt(9, 1), 20, 997)[: len(new.token_ids)]
            assert new.ended.usage == Usage(9, len(new.token_ids), num_retractions=1)

    run_sim(main)


# --- the end of an engine -------------------------------------------------------------------------------------------


def test_a_drain_admits_nothing_more_and_finishes_what_runs_and_waits():
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=1)
    heard: list[Heard] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def client(engine: SimEngine, name: str) -> None:
                heard.append(await engine.ask(submit(name, prompt(9))))

            async with sim_engine(settings, make_device()) as engine:
                nursery.start_soon(client, engine, "a")
                nursery.start_soon(client, engine, "b")
                await trio.sleep(0.1)
                nursery.start_soon(late, engine)
            engine.assert_all_returned()

    async def late(engine: SimEngine) -> None:
        await trio.sleep(0.1)
        with pytest.raises(Draining):
            await engine.ask(submit("late", prompt(9)))

    run_sim(main)
    assert [one.ended.finish.kind for one in heard] == ["length", "length"]


@pytest.mark.parametrize("lose_at_step", range(1, 8))
def test_a_lost_device_is_told_to_every_client_and_then_ends_the_engine(lose_at_step: int):
    device = HistoryDevice(capacity(), family_time_s, lose_at_step=lose_at_step)
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=2)
    ends: dict[str, str] = {}

    async def client(engine: SimEngine, name: str) -> None:
        asked = rules() if name == "b" else None
        heard = await engine.ask(submit(name, prompt(20), max_new_tokens=20, rules=asked))
        ends[name] = heard.ended.finish.kind
        with pytest.raises(Draining):
            await engine.ask(submit(name, prompt(9)))

    async def main() -> None:
        async with trio.open_nursery() as clients, sim_engine(settings, device) as engine:
            for name in ("a", "b", "c"):
                clients.start_soon(client, engine, name)
            await trio.sleep_forever()

    with pytest.RaisesGroup(EngineFailure, flatten_subgroups=True):
        run_sim(main)
    assert ends == {"a": "error", "b": "error", "c": "error"}


# --- many -----------------------------------------------------------------------------------------------------------


def storm(seed: int, num_requests: int, num_pages: int) -> tuple[list[str], dict[str, float]]:
    """Run random requests, a third cancelled at random moments, and return the trace of graph keys and the totals."""
    random_of = random.Random(seed)
    device = make_device(num_pages=num_pages)
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=6, max_queued_requests=40)
    outcomes: list[str] = []

    async def client(engine: SimEngine, index: int, at_s: float, length: int, new: int, leave_s: float) -> None:
        await trio.sleep(at_s)
        num_choices = 1 + index % 3
        orders = tuple(
            submit(
                f"r{index}",
                prompt(length, index),
                choice=choice,
                max_new_tokens=new,
                seed=index + choice,
                sampling=Sampling(temperature=float(index % 2)),
                num_top_logprobs=index % 4,
            )
            for choice in range(num_choices)
        )
        with trio.move_on_after(leave_s) as scope:
            try:
                heard = await engine.ask_choices(orders)
            except QueueFull:
                outcomes.append("full")
                return
            for choice, one in enumerate(heard):
                seed = index + choice if index % 2 else 0
                if one.ended.finish.kind == "length":
                    assert one.token_ids == continuation(prompt(length, index), new, 997, seed)
                outcomes.append(one.ended.finish.kind)
        if scope.cancelled_caught:
            outcomes.append("left")

    async def main() -> dict[str, float]:
        async with sim_engine(settings, device) as engine:
            async with trio.open_nursery() as nursery:
                for index in range(num_requests):
                    leave_s = random_of.uniform(0.0, 40.0) if index % 3 == 0 else float("inf")
                    nursery.start_soon(
                        client,
                        engine,
                        index,
                        random_of.uniform(0.0, num_requests * 1.5),
                        random_of.randint(1, 60),
                        random_of.randint(1, 40),
                        leave_s,
                    )
            await trio.sleep(2 * PREFILL_S)
            engine.assert_all_returned()
            return dict(engine.stats.snapshot(trio.current_time()).totals)

    totals = run_sim(main, seed=seed, timeout_s=1e6)
    assert set(outcomes) <= {"length", "abort", "left", "full"}
    return [f"{step.key} {step.slots.tolist()} {step.start.tolist()}" for step in device.steps] + outcomes, totals


@pytest.mark.parametrize("num_pages", [13, 40])
def test_after_five_hundred_random_requests_a_third_cancelled_everything_is_back(num_pages: int):
    trace, totals = storm(seed=num_pages, num_requests=500, num_pages=num_pages)
    assert trace.count("left") > 50
    assert trace.count("length") > 200
    assert totals["choices_length"] >= trace.count("length")
    if num_pages == 13:
        assert totals["retractions"] > 0


def test_the_same_seed_gives_the_same_run():
    assert storm(7, 60, 13) == storm(7, 60, 13)
    assert storm(7, 60, 13) != storm(8, 60, 13)
