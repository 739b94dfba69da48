"""Masks by rows: the ready are told, a slow one stands in nobody's way, and nothing is left behind."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from stages.errors import InvalidRequest
from stages.grammar.lanes import Lanes, Row, RunSlice, Slice, fill, run_slice
from stages.messages import FillMasks, Mask, MasksFilled, Rules, Submit
from stages.settings import GrammarSettings
from tests.sim.simkit import submit as plain_submit
from tests.small_tokenizer import ids
from tests.stages.grammar.small import compiled
from tests.stages.grammar.test_guide import JSON, guide_of, submit

SETTINGS = GrammarSettings("", 512, frozenset({1}), mask_slice_s=0.01, mask_limit_s=2.0, max_lanes=3)


@define(eq=False)
class Heard:
    """What was told, and when."""

    masks: list[tuple[float, Mask]] = field(factory=list)

    def take(self, filled: MasksFilled) -> None:
        self.masks.extend((trio.current_time(), mask) for mask in filled.masks)

    def times(self, start_s: float) -> dict[str, float]:
        return {mask.submit.key.request_id: round(told_s - start_s, 6) for told_s, mask in self.masks}


def taking(seconds: Callable[[Row], float]) -> RunSlice:
    """A lane on the virtual clock in which a row takes so long."""

    async def run(work: Slice) -> None:
        ends_s = trio.current_time() + work.length_s
        while work.rows:
            work.current = work.rows.popleft()
            await trio.sleep(seconds(work.current))
            work.masks.append(Mask(work.current.submit))
            work.current = None
            if trio.current_time() >= ends_s:
                return

    return run


def named(name: str) -> Submit:
    return plain_submit(name, (1,))


def asked(*orders: Submit, tokens: tuple[int, ...] = ()) -> FillMasks:
    return FillMasks(tuple((order, tokens) for order in orders))


async def test_rows_are_told_in_slices_and_not_all_at_the_end(autojump_clock: Any) -> None:
    heard, start_s = Heard(), trio.current_time()
    async with trio.open_nursery() as nursery:
        lanes = Lanes(SETTINGS, nursery, taking(lambda row: 0.004), heard.take)
        lanes.take(asked(*map(named, "abcdef")))
    assert heard.times(start_s) == {"a": 0.012, "b": 0.012, "c": 0.012, "d": 0.024, "e": 0.024, "f": 0.024}


async def test_a_row_that_takes_long_holds_up_no_other(autojump_clock: Any) -> None:
    heard, start_s = Heard(), trio.current_time()
    async with trio.open_nursery() as nursery:
        slow = taking(lambda row: 1.0 if row.submit.key.request_id.startswith("slow") else 0.001)
        lanes = Lanes(SETTINGS, nursery, slow, heard.take)
        lanes.take(asked(*map(named, ("a", "slow1", "b", "slow2", "c"))))
        await trio.sleep(0.5)
        lanes.take(asked(named("d")))
    times = heard.times(start_s)
    # One lane is in slow1 from 1 ms on; at 20 ms another takes b and slow2, at 40 ms a third takes c.
    assert times == {"a": 0.02, "b": 0.04, "c": 0.041, "d": 0.501, "slow1": 1.001, "slow2": 1.021}


async def test_a_row_beyond_the_limit_ends_with_an_error_and_its_mask_is_never_told(autojump_clock: Any) -> None:
    heard, start_s = Heard(), trio.current_time()
    async with trio.open_nursery() as nursery:
        lanes = Lanes(
            SETTINGS, nursery, taking(lambda row: 9.0 if row.submit.key.request_id == "slow" else 0.0), heard.take
        )
        slow = named("slow")
        lanes.take(asked(slow, named("a")))
        lanes.take(asked(slow))
    assert heard.times(start_s) == {"slow": 2.02, "a": 0.02}
    errors = [mask.error for _, mask in heard.masks if mask.error is not None]
    assert len(errors) == 1
    assert isinstance(errors[0], InvalidRequest)
    assert "a mask took more than 2 s" in errors[0].message


async def test_more_stuck_rows_than_lanes_wait_and_are_served_in_the_end(autojump_clock: Any) -> None:
    heard = Heard()
    async with trio.open_nursery() as nursery:
        lanes = Lanes(SETTINGS, nursery, taking(lambda row: 1.0), heard.take)
        lanes.take(asked(*map(named, "abcdefgh")))
    assert sorted(heard.times(0)) == list("abcdefgh")
    assert not any(mask.error for _, mask in heard.masks)


async def test_a_second_ask_of_a_choice_waits_for_the_first_and_both_are_answered(autojump_clock: Any) -> None:
    seen: list[tuple[int, ...]] = []

    def seconds(row: Row) -> float:
        seen.append(row.token_ids)
        return 0.1

    heard, order = Heard(), named("a")
    async with trio.open_nursery() as nursery:
        lanes = Lanes(SETTINGS, nursery, taking(seconds), heard.take)
        for tokens in ((), (1,), (2, 3)):
            lanes.take(asked(order, tokens=tokens))
    assert seen == [(), (1,), (2, 3)]
    assert len(heard.masks) == 3


async def test_a_choice_is_forgotten_with_its_submit(autojump_clock: Any) -> None:
    heard = Heard()
    async with trio.open_nursery() as nursery:
        lanes = Lanes(SETTINGS, nursery, in_line(), heard.take)
        order = submit(JSON)
        gone = weakref.ref(order)
        lanes.take(asked(order))
        await trio.testing.wait_all_tasks_blocked()
        assert (lanes.num_choices, len(heard.masks)) == (1, 1)
        del order
        heard.masks.clear()
        gc.collect()
        assert (lanes.num_choices, gone()) == (0, None)


def in_line() -> RunSlice:
    async def run(work: Slice) -> None:
        run_slice(work, guide_of)
        await trio.lowlevel.checkpoint()

    return run


async def test_a_choice_that_breaks_its_rules_ends_alone(autojump_clock: Any) -> None:
    heard = Heard()
    good, bad, odd = submit(JSON), submit(JSON), evolve(submit(), rules=Rules(grammar=compiled(JSON)))
    object.__setattr__(odd.rules, "grammar", object())  # what no guide can be made of
    async with trio.open_nursery() as nursery:
        lanes = Lanes(SETTINGS, nursery, in_line(), heard.take)
        lanes.take(asked(good, bad, odd))
        await trio.testing.wait_all_tasks_blocked()
        lanes.take(FillMasks(((bad, ids("x")), (good, ids("{")))))
    told = {id(mask.submit): mask for _, mask in heard.masks}
    assert told[id(bad)].error is not None
    assert told[id(odd)].error is not None
    assert told[id(good)].error is None
    assert told[id(good)].allowed is not None


@pytest.mark.parametrize("num_rows", [1, 7])
def test_a_slice_ends_after_the_row_in_which_its_time_is_up(num_rows: int) -> None:
    clock = iter(range(100))
    from collections import deque

    from stages.grammar.lanes import Guided

    rows = deque(Row(submit(), Guided(), ()) for _ in range(num_rows))
    work = Slice(rows, length_s=3)
    run_slice(work, guide_of, lambda: next(clock))
    assert len(work.masks) == min(num_rows, 3)
    assert len(rows) == num_rows - len(work.masks)
    assert work.current is None
    assert fill(Row(submit(), Guided(), ()), guide_of).error is None
