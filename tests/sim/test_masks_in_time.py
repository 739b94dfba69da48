"""Masks in time: a row that waits for one waits alone and no longer than it takes, and never meets another's."""

from collections.abc import Callable
from itertools import chain, repeat

import numpy as np
import pytest
import trio
import trio.lowlevel
from attrs import evolve

from stages.messages import Cancel, Pause, Penalties, Resume, Submit
from tests.sim.fake_grammar import allowed_after, rules
from tests.sim.history_device import HistoryDevice
from tests.sim.scenes import DECODE_S, PREFILL_S, answer, firsts, make_device, play, settings, words
from tests.sim.simkit import SimEngine, run_sim, sim_engine, submit

MASK_S, SLOW_S = 1 / 64, 10.0
PATIENT = 1 / 32


def taking(**seconds: float) -> Callable[[Submit], float]:
    """Return a mask_s by request id; the others' masks take no time."""
    return lambda order: seconds.get(order.key.request_id, 0.0)


def guided(name: str, salt: int = 1, num_new: int = 4, **changes: int) -> Submit:
    return submit(name, words(9, salt), max_new_tokens=num_new, rules=rules(salt, **changes))


def plain(name: str, salt: int = 2, num_new: int = 8) -> Submit:
    return submit(name, words(9, salt), max_new_tokens=num_new)


def decodes(device: HistoryDevice) -> list[int]:
    """Return how many rows each decode step had."""
    return [int((step.num_valid > 0).sum()) for step in device.steps if step.key.family == "decode"]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_guided_row_alone_waits_for_its_mask_and_for_nothing_else(overlap: bool):
    device = make_device()
    heard = play(
        settings(overlap=overlap, mask_patience_s=PATIENT),
        device,
        [(0.0, guided("a"))],
        mask_s=taking(a=MASK_S),
    )["a"]
    # A prompt of one chunk waits for its first mask; a longer one is computed meanwhile.
    assert heard.times_s[0] == MASK_S + PREFILL_S
    assert heard.gaps_s == (MASK_S + DECODE_S,) * 3
    assert [step.key.edits for step in device.steps] == ["masked"] * 4


@pytest.mark.parametrize("overlap", [False, True])
def test_a_slow_mask_holds_up_its_own_row_and_nobody_else(overlap: bool):
    heard = play(
        settings(overlap=overlap, mask_patience_s=0.0),
        make_device(),
        [(0.0, guided("slow")), (0.0, plain("fast", num_new=30))],
        mask_s=taking(slow=SLOW_S),
    )
    # Its prompt is computed but for the sampling, which waits for the first mask.
    assert heard["slow"].times_s[0] >= SLOW_S
    assert all(gap >= SLOW_S for gap in heard["slow"].gaps_s)
    assert heard["fast"].gaps_s == (DECODE_S,) * 29
    assert heard["fast"].times_s[0] == PREFILL_S


@pytest.mark.parametrize(
    ("overlap", "waits"),
    [(False, [DECODE_S + PATIENT] * 2 + [PREFILL_S + PATIENT + DECODE_S]), (True, [PREFILL_S + DECODE_S])],
)
def test_each_slow_mask_costs_the_others_the_patience_once_and_beside_a_step_nothing(overlap: bool, waits: list[float]):
    heard = play(
        settings(overlap=overlap, mask_patience_s=PATIENT),
        make_device(),
        [(0.0, guided("slow")), (0.0, plain("fast", num_new=40))],
        mask_s=taking(slow=1.0),
    )
    assert heard["fast"].times_s[0] == PATIENT + PREFILL_S
    # The slow one's prompt, once its mask has come, is a step of its own.
    assert sorted(gap for gap in heard["fast"].gaps_s if gap != DECODE_S) == waits


def test_beside_rows_that_run_ahead_a_guided_row_runs_every_second_step():
    device = make_device()
    heard = play(
        settings(overlap=True, mask_patience_s=PATIENT),
        device,
        [(0.0, guided("a", num_new=6)), (0.0, plain("b", num_new=20))],
        mask_s=taking(a=MASK_S),
    )
    # Beside nothing the first decode step waits for the mask, so that both begin together.
    assert heard["a"].gaps_s == (MASK_S + DECODE_S, *(2 * DECODE_S,) * 4)
    assert heard["b"].gaps_s == (MASK_S + DECODE_S, *(DECODE_S,) * 18)
    assert decodes(device)[:10] == [2, 1] * 5 if decodes(device)[0] == 2 else [1, 2] * 5


def test_without_overlap_quick_masks_keep_all_rows_in_one_step():
    device = make_device()
    heard = play(
        settings(mask_patience_s=PATIENT),
        device,
        [(0.0, guided("a", num_new=6)), (0.0, plain("b", num_new=6)), (0.0, guided("c", 3, num_new=6))],
        mask_s=taking(a=MASK_S, c=MASK_S / 2),
    )
    assert {one.gaps_s for one in heard.values()} == {(MASK_S + DECODE_S,) * 5}
    assert decodes(device) == [3] * 5


def test_guided_rows_that_came_apart_come_together_and_stay():
    device = make_device()
    heard = play(
        settings(overlap=True, mask_patience_s=PATIENT),
        device,
        [(0.0, guided("a", num_new=20)), (1.3, guided("b", 3, num_new=20))],
        mask_s=taking(a=MASK_S, b=MASK_S),
    )
    rows = decodes(device)
    assert rows.count(2) > 10
    assert heard["b"].gaps_s[-5:] == (MASK_S + DECODE_S,) * 5


def test_a_prompt_that_waits_for_its_first_mask_lets_others_sample_and_has_computed_all_but_its_last_chunk():
    device = make_device()
    first = submit("first", words(40, 1), max_new_tokens=2, rules=rules(1))
    events = [(0.0, first), (0.1, plain("second"))]
    heard = play(settings(max_prefill_rows=1), device, events, mask_s=taking(first=SLOW_S))
    starts = [(int(step.start[0]), int(step.num_valid[0])) for step in device.steps if step.key.family == "prefill"]
    assert starts == [(0, 16), (16, 16), (0, 9), (32, 8)]
    assert firsts(heard) == {"second": 3 * PREFILL_S, "first": SLOW_S + PREFILL_S}


def test_free_tokens_are_sampled_ahead_and_their_end_is_waited_for():
    device = make_device()
    heard = play(
        settings(overlap=True, mask_patience_s=PATIENT),
        device,
        [(0.0, guided("a", num_new=16, num_free=4))],
        mask_s=taking(a=MASK_S),
    )["a"]
    # Of each eight tokens the first four are free: the step after the first of them goes out behind it.
    waits, runs = MASK_S + DECODE_S, DECODE_S
    assert heard.gaps_s == (runs, runs, runs, waits, waits, waits, waits, waits, runs, runs, runs) + (waits,) * 4
    edits = [step.key.edits for step in device.steps]
    assert edits == (["", "", "", ""] + ["masked"] * 4) * 2


def test_a_row_that_is_free_for_good_asks_no_more_and_waits_for_nothing():
    device = make_device()

    async def main() -> None:
        async with sim_engine(settings(overlap=True), device, mask_s=taking(a=MASK_S)) as engine:
            order = guided("a", num_new=30, free_after=2)
            heard = await engine.ask(order)
            assert heard.token_ids == answer(order)
            assert heard.gaps_s == (MASK_S + DECODE_S,) * 2 + (DECODE_S,) * 27
            assert engine.guides.num_asked["a"] == 3

    run_sim(main)


@pytest.mark.parametrize("overlap", [False, True])
def test_penalties_wait_for_the_newest_token_and_a_bias_does_not(overlap: bool):
    device = make_device()
    penalised = submit("a", words(9), max_new_tokens=6, penalties=Penalties(frequency=0.5, repetition=1.25))
    biased = submit("b", words(9, 2), max_new_tokens=6, logit_bias=((3, 1.5), (5, -1.0)))
    heard = play(settings(overlap=overlap), device, [(0.0, penalised), (0.0, biased)])
    assert heard["b"].gaps_s == (DECODE_S,) * 5
    assert heard["a"].gaps_s[1:3] == ((2 * DECODE_S,) * 2 if overlap else (DECODE_S,) * 2)
    assert {step.key.edits for step in device.steps} == {"adjusted"}
    sizes = [step.key.adjust_tokens for step in device.steps if (step.num_valid > 0).sum() == 2]
    assert set(sizes) == {32}
    alone = [step.key.adjust_tokens for step in device.steps if step.key.family == "decode" and step.key.batch == 1]
    assert not alone or set(alone) <= {4, 32}


@pytest.mark.parametrize(
    ("changes", "kind", "status"), [({"completes_after": 3}, "stop", None), ({"fails_after": 3}, "error", 400)]
)
def test_an_answer_that_is_complete_or_whose_grammar_broke_ends_alone(
    changes: dict[str, int], kind: str, status: int | None
):
    heard = play(
        settings(overlap=True),
        make_device(),
        [(0.0, guided("a", num_new=9, **changes)), (0.0, plain("b"))],
        mask_s=taking(a=MASK_S),
    )
    finish = heard["a"].ended.finish
    assert (finish.kind, finish.status, len(heard["a"].token_ids)) == (kind, status, 3)
    assert finish.matched == (heard["a"].token_ids[-1] if kind == "stop" else None)
    assert heard["b"].ended.finish.kind == "length"


def test_a_client_that_leaves_while_its_row_waits_frees_everything_at_once():
    async def main() -> None:
        async with sim_engine(settings(overlap=True), make_device(), mask_s=taking(a=SLOW_S)) as engine:
            with trio.move_on_after(2.0):
                await engine.ask(guided("a"))
            await trio.lowlevel.checkpoint()
            assert (engine.core.load().running, engine.core.load().used_slots) == (0, 0)
            # Its mask comes late and is for nobody.
            await trio.sleep(SLOW_S)

    run_sim(main)


def test_a_drain_waits_for_masks_and_finishes():
    order = guided("a")

    async def ask(engine: SimEngine) -> None:
        heard = await engine.ask(order)
        assert (heard.token_ids, heard.ended.finish.kind) == (answer(order), "length")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            # The block's end drains.
            async with sim_engine(settings(overlap=True), make_device(), mask_s=taking(a=1.0)) as engine:
                nursery.start_soon(ask, engine)
                await trio.sleep(0.1)
            assert trio.current_time() > 4.0

    run_sim(main)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_keeps_what_the_grammar_stage_knows(mode: str):
    device = make_device()
    order = guided("a", num_new=8)

    async def pause(engine: SimEngine) -> None:
        assert (await engine.order(Pause(mode))).is_done  # type: ignore[arg-type]
        await trio.sleep(3.0)
        assert (await engine.order(Resume())).is_done

    heard = play(settings(), device, [(0.0, order)], {1.03: pause}, mask_s=taking(a=MASK_S))
    assert heard["a"].token_ids == answer(order)
    assert heard["a"].ended.usage.num_retractions == (mode == "retract")


def test_retracted_rows_go_on_with_the_mask_and_the_counts_they_had():
    device = make_device(num_pages=8)
    orders = [
        evolve(guided(f"r{index}", index, num_new=24), penalties=Penalties(0.25, 0.5, 1.25)) for index in range(3)
    ]
    heard = play(
        settings(schedule_conservativeness=0.0),
        device,
        [(0.0, order) for order in orders],
        mask_s=lambda order: MASK_S,
    )
    for order in orders:
        assert heard[order.key.request_id].token_ids == answer(order)
    assert sum(one.ended.usage.num_retractions for one in heard.values()) > 0


def test_a_mask_that_comes_for_an_id_used_again_is_not_the_new_ones():
    first, second = guided("a", 1), guided("a", 3)
    masks = [allowed_after(order, ()) for order in (first, second)]
    assert not np.array_equal(*masks), "they would not show"

    async def main() -> None:
        # The first one's comes while the second still waits for its own.
        seconds = chain([0.3, 0.75], repeat(0.25))
        async with sim_engine(settings(cache=None), make_device(), mask_s=lambda order: next(seconds)) as engine:
            with trio.move_on_after(0.125):
                await engine.ask(first)
            await trio.sleep(0.125)
            heard = await engine.ask(second)
            assert heard.token_ids == answer(second)

    run_sim(main)


def test_cancelling_every_request_with_rows_on_the_device_and_rows_that_wait_leaves_nothing():
    async def main() -> None:
        async with sim_engine(settings(overlap=True), make_device(), mask_s=taking(a=0.4, b=0.1)) as engine:
            async with trio.open_nursery() as nursery:
                for order in (guided("a", 1, 9), guided("b", 3, 9), plain("c")):
                    nursery.start_soon(engine.ask, order)
                await trio.sleep(1.2)
                engine.cancel(Cancel("", deliver=True, scope="all"))
            assert engine.core.is_idle or engine.core.flights

    run_sim(main)


@pytest.mark.parametrize("overlap", [False, True])
def test_where_a_step_holds_fewer_rows_than_run_the_guided_ones_have_their_turns(overlap: bool):
    device = make_device(max_batch=2)
    orders = [guided("a", num_new=12), guided("b", 3, 12), *(plain(f"p{salt}", salt, 12) for salt in (4, 5, 6))]
    heard = play(
        settings(overlap=overlap, mask_patience_s=PATIENT),
        device,
        [(0.0, order) for order in orders],
        mask_s=taking(a=MASK_S, b=MASK_S),
    )
    assert max(decodes(device)) == 2
    # Five rows, two a step: everybody is served at least every fourth step.
    longest_s = max(gap for one in heard.values() for gap in one.gaps_s)
    assert longest_s <= 4 * (DECODE_S + PATIENT) + PREFILL_S


def test_prefill_and_decode_take_turns_beside_a_row_that_waits_for_ever():
    device = make_device()
    long = submit("long", words(80, 4), max_new_tokens=2)
    events = [(0.0, guided("waits")), (0.1, plain("runs", num_new=20)), (1.2, long)]
    play(settings(max_prefill_rows=1), device, events, mask_s=taking(waits=SLOW_S))
    families = [step.key.family for step in device.steps]
    first = families.index("decode") + 1
    turns = families[first:]
    start = turns.index("prefill")
    assert turns[start : start + 9] == ["prefill", "decode"] * 4 + ["prefill"]
