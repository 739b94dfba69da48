"""The scheduler's task by hand: what it sends, in which order, and how it ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define, evolve, field

from graphs.step import DeviceLost
from stages.channels import Channels, open_channels, open_mailbox
from stages.errors import EngineFailure
from stages.messages import Cancel, Drain, FillMasks, MasksFilled, StepDone, StepFailed, Tokens
from stages.scheduler.stage import FAILURE_GRACE_S, run_scheduler
from stages.settings import SchedulerSettings
from stages.stats.stage import Stats, open_stats
from tests.sim.fake_grammar import allowed_after, mask_after, rules
from tests.sim.history_device import HistoryDevice, answer_of, continuation
from tests.sim.simkit import capacity, submit

SETTINGS = SchedulerSettings(chunked_prefill_size_tokens=16)


@define(eq=False)
class Hand:
    """The executor's and the detokenizer's side of the channels, moved by the test."""

    channels: Channels
    stats: Stats
    device: HistoryDevice = field(factory=lambda: HistoryDevice(capacity()))

    async def step(self) -> None:
        plan = await self.channels.plans_receive.receive()
        self.channels.scheduler_send.send_nowait(StepDone(plan.step, self.device.run(plan.input)))

    async def tokens(self) -> Tokens:
        return await self.channels.tokens_receive.receive()


@asynccontextmanager
async def by_hand(settings: SchedulerSettings = SETTINGS) -> AsyncIterator[Hand]:
    channels = open_channels(8)
    hand = Hand(channels, open_stats())
    async with trio.open_nursery() as nursery:
        await nursery.start(run_scheduler, settings, hand.device.capacity, channels, hand.stats.send)
        yield hand
        nursery.cancel_scope.cancel()


async def test_the_next_step_goes_out_before_the_tokens_of_the_last_one():
    async with by_hand() as hand:
        hand.channels.admission.send_nowait((submit("a", tuple(range(9))),))
        await hand.step()
        # The detokenizer is the first to wake; the executor's next plan is there already.
        tokens = await hand.tokens()
        assert tokens.rows[0].token_ids == continuation(tuple(range(9)), 1, 997)
        assert hand.channels.plans_receive.receive_nowait().input.key.family == "decode"


async def test_with_overlap_a_second_decode_step_goes_out_behind_the_first_and_a_third_when_the_first_is_done():
    async with by_hand(evolve(SETTINGS, overlap=True)) as hand:
        hand.channels.admission.send_nowait((submit("a", tuple(range(9)), max_new_tokens=9),))
        await hand.step()
        await hand.tokens()
        first, second = (hand.channels.plans_receive.receive_nowait() for _ in range(2))
        assert [first.input.start[0], second.input.start[0]] == [9, 10]
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.WouldBlock):
            hand.channels.plans_receive.receive_nowait()
        hand.channels.scheduler_send.send_nowait(StepDone(first.step, hand.device.run(first.input)))
        assert (await hand.tokens()).rows[0].token_ids == continuation(tuple(range(9)), 2, 997)[1:]
        assert hand.channels.plans_receive.receive_nowait().input.start[0] == 11


async def test_steps_that_are_done_before_the_scheduler_looks_are_taken_in_one_turn():
    async with by_hand(evolve(SETTINGS, overlap=True)) as hand:
        hand.channels.admission.send_nowait((submit("a", tuple(range(9)), max_new_tokens=9),))
        await hand.step()
        await hand.tokens()
        for _ in range(2):
            plan = hand.channels.plans_receive.receive_nowait()
            hand.channels.scheduler_send.send_nowait(StepDone(plan.step, hand.device.run(plan.input)))
        rows = (await hand.tokens()).rows
        assert sum((row.token_ids for row in rows), ()) == continuation(tuple(range(9)), 3, 997)[1:]
        assert [hand.channels.plans_receive.receive_nowait().input.start[0] for _ in range(2)] == [11, 12]


async def test_one_batch_of_tokens_carries_all_rows_of_a_step():
    async with by_hand() as hand:
        hand.channels.admission.send_nowait(tuple(submit("a", (1, 2, 3), choice=choice) for choice in range(3)))
        await hand.step()
        assert [row.submit.key.choice for row in (await hand.tokens()).rows] == [0, 1, 2]
        with pytest.raises(trio.WouldBlock):
            hand.channels.tokens_receive.receive_nowait()


async def test_a_choice_nobody_listens_to_is_told_as_dropped_and_only_that():
    async with by_hand() as hand:
        hand.channels.admission.send_nowait((submit("a", (1, 2, 3)),))
        await hand.channels.plans_receive.receive()
        hand.channels.scheduler_send.send_nowait(Cancel("a"))
        tokens = await hand.tokens()
        assert tokens.rows == ()
        assert [order.key.request_id for order in tokens.dropped] == ["a"]


@pytest.mark.parametrize("choice", [None, 0])
async def test_a_choice_ended_by_its_stop_string_counts_as_stopped_a_left_one_as_aborted(choice: int | None):
    async with by_hand() as hand:
        hand.channels.admission.send_nowait((submit("a", (1, 2, 3)),))
        await hand.step()
        await hand.tokens()
        hand.channels.scheduler_send.send_nowait(Cancel("a", choice=choice))
        await hand.tokens()
        names = [item.name for item in _taken(hand.stats) if hasattr(item, "name")]
        assert ("choices_stop" in names, "choices_abort" in names) == (choice is not None, choice is None)


async def test_a_drained_scheduler_returns_and_closes_what_it_sends_to():
    async with by_hand() as hand:
        hand.channels.scheduler_send.send_nowait(Drain())
        with pytest.raises(trio.EndOfChannel):
            await hand.channels.plans_receive.receive()
        with pytest.raises(trio.EndOfChannel):
            await hand.channels.tokens_receive.receive()
        with pytest.raises(trio.ClosedResourceError):
            hand.channels.admission.send_nowait((submit("a", (1,)),))
        with pytest.raises(trio.BrokenResourceError):
            hand.channels.scheduler_send.send_nowait(Drain())


async def test_a_scheduler_that_ends_in_any_other_way_takes_nothing_more_either():
    async with by_hand() as hand:
        pass
    with pytest.raises(trio.ClosedResourceError):
        hand.channels.admission.send_nowait((submit("a", (1,)),))


async def test_a_drain_waits_for_both_steps_of_a_cancelled_choice():
    async with by_hand(evolve(SETTINGS, overlap=True)) as hand:
        hand.channels.admission.send_nowait((submit("a", (1, 2, 3), max_new_tokens=9),))
        await hand.step()
        plans = [await hand.channels.plans_receive.receive() for _ in range(2)]
        hand.channels.scheduler_send.send_nowait(Cancel("a"))
        hand.channels.scheduler_send.send_nowait(Drain())
        for plan in plans:
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.WouldBlock):
                hand.channels.plans_receive.receive_nowait()
            hand.channels.scheduler_send.send_nowait(StepDone(plan.step, hand.device.run(plan.input)))
        with pytest.raises(trio.EndOfChannel):
            await hand.channels.plans_receive.receive()


async def test_a_drain_waits_for_the_step_of_a_cancelled_choice():
    async with by_hand() as hand:
        hand.channels.admission.send_nowait((submit("a", (1, 2, 3)),))
        plan = await hand.channels.plans_receive.receive()
        hand.channels.scheduler_send.send_nowait(Cancel("a"))
        hand.channels.scheduler_send.send_nowait(Drain())
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.WouldBlock):
            hand.channels.plans_receive.receive_nowait()
        hand.channels.scheduler_send.send_nowait(StepDone(plan.step, hand.device.run(plan.input)))
        with pytest.raises(trio.EndOfChannel):
            await hand.channels.plans_receive.receive()


async def test_a_failing_scheduler_gives_a_client_that_does_not_listen_a_bounded_time(
    autojump_clock: trio.testing.MockClock,
):
    send, receive = open_mailbox(4, 1)
    with pytest.RaisesGroup(EngineFailure):
        async with by_hand() as hand:
            hand.channels.admission.send_nowait((submit("a", (1, 2, 3), mailbox=send),))
            plan = await hand.channels.plans_receive.receive()
            start_s = trio.current_time()
            hand.channels.scheduler_send.send_nowait(StepFailed(plan.step, DeviceLost("unplugged")))
            finish = (await hand.tokens()).rows[0].finish
            assert finish is not None
            assert (finish.kind, finish.status) == ("error", 500)
            await trio.sleep_forever()
    assert trio.current_time() - start_s == pytest.approx(FAILURE_GRACE_S)
    receive.close()


async def test_the_grammar_stage_hears_of_a_choice_when_it_is_let_in_and_of_its_tokens_as_they_come():
    async with by_hand() as hand:
        order = submit("a", (1, 2, 3), rules=rules(1), max_new_tokens=3)
        hand.channels.admission.send_nowait((order,))
        said: list[tuple[int, ...]] = []
        for _ in range(3):
            questions = await hand.channels.grammar_receive.receive()
            assert isinstance(questions, FillMasks)
            ((asked, token_ids),) = questions.rows
            assert asked is order
            said.append(token_ids)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.WouldBlock):
                hand.channels.plans_receive.receive_nowait()
            hand.channels.scheduler_send.send_nowait(MasksFilled((mask_after(order, sum(said, ())),)))
            await hand.step()
        answer = answer_of(order, 3, 997, allowed_after)
        assert said == [(), answer[:1], answer[1:2]]
        await trio.testing.wait_all_tasks_blocked()
        # Its last token is nobody's business.
        with pytest.raises(trio.WouldBlock):
            hand.channels.grammar_receive.receive_nowait()


async def test_a_step_waits_for_a_mask_for_the_patience_and_a_late_mask_keeps_its_place(
    autojump_clock: trio.testing.MockClock,
):
    async with by_hand(evolve(SETTINGS, mask_patience_s=0.25)) as hand:
        order = submit("a", (1, 2, 3), rules=rules(1))
        hand.channels.admission.send_nowait((order,))
        hand.channels.admission.send_nowait((submit("b", (1, 2)),))
        plan = await hand.channels.plans_receive.receive()
        assert trio.current_time() == pytest.approx(0.25)
        assert plan.input.num_valid.tolist() == [2]
        hand.channels.scheduler_send.send_nowait(MasksFilled((mask_after(order, ()),)))
        hand.channels.scheduler_send.send_nowait(StepDone(plan.step, hand.device.run(plan.input)))
        # Decode and prefill take turns, as ever.
        await hand.step()
        assert (await hand.channels.plans_receive.receive()).input.key.edits == "masked"


async def test_a_lost_grammar_stage_fails_the_engine_once_every_client_was_told():
    send, receive = open_mailbox(4, 2)
    with pytest.RaisesGroup(EngineFailure):
        async with by_hand() as hand:
            hand.channels.admission.send_nowait((submit("b", (1, 2), mailbox=send),))
            await hand.step()
            await hand.tokens()
            hand.channels.grammar_receive.close()
            hand.channels.admission.send_nowait((submit("a", (1, 2, 3), mailbox=send, rules=rules(1)),))
            # Nobody is let in beside a step.
            await hand.step()
            finishes = [row.finish for row in (await hand.tokens()).rows]
            assert [(finish.kind, finish.status) for finish in finishes if finish is not None] == [("error", 500)] * 2
            receive.close()
            await trio.sleep_forever()


def _taken(stats: Stats) -> list[object]:
    items: list[object] = []
    while True:
        try:
            items.append(stats.receive.receive_nowait())
        except trio.WouldBlock:
            return items
