"""The small parts of the scheduler: life cycle, pages, slots, budget, one choice, composing, policies, the queue."""

import itertools
from typing import Literal

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from stages.channels import Admission
from stages.errors import EngineFailure, InvalidRequest
from stages.messages import Arrived, Cancel, ChoiceKey, Sampling, TokensRow
from stages.scheduler.budget import FIRST_SHARE, MAX_FUTURE_TOKENS, Pressure, budget_of
from stages.scheduler.choice import Choice
from stages.scheduler.compose import Row, compose, variant_of
from stages.scheduler.core import SchedulerCore
from stages.scheduler.lifecycle import TRANSITIONS, IllegalTransition, Phase, Signal, advance
from stages.scheduler.pages import Pool
from stages.scheduler.policies import load_policy
from stages.scheduler.slots import SlotTable
from stages.settings import SchedulerSettings
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import capacity, submit


def test_every_phase_but_ended_can_end_and_nothing_leaves_ended():
    for phase in Phase:
        signals = {signal for known, signal in TRANSITIONS if known is phase}
        assert (Signal.END in signals) == (phase is not Phase.ENDED)
        assert phase is not Phase.ENDED or not signals


def test_a_signal_a_phase_does_not_know_is_illegal():
    for phase, signal in itertools.product(Phase, Signal):
        if (phase, signal) in TRANSITIONS:
            assert advance(phase, signal) is TRANSITIONS[phase, signal]
        else:
            with pytest.raises(IllegalTransition, match=f"a {phase.value} choice cannot {signal.value}"):
                advance(phase, signal)


def test_every_phase_is_reached_from_waiting():
    reached = {Phase.WAITING}
    for _ in Phase:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(Phase)


def test_a_pool_never_hands_out_the_null_number_and_gives_all_the_others():
    pool = Pool(5)
    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 4)


def test_a_pool_that_has_too_few_hands_out_none():
    pool = Pool(4)
    with pytest.raises(IndexError, match="4 wanted, 3 free"):
        pool.take(4)
    assert pool.num_free == 3


def test_a_number_cannot_be_given_back_twice():
    pool = Pool(4)
    taken = pool.take(2)
    pool.give_back(taken)
    with pytest.raises(ValueError, match="has no owner"):
        pool.give_back(taken[:1])
    assert pool.num_free == 3


def test_a_cleared_slot_reads_as_padding_again():
    table = SlotTable(num_slots=3, max_pages=4)
    slots = np.array([1, 0, 2])
    table.fill(2, submit("a", (1,), sampling=Sampling(0.5, 3, 0.9, 0.1), seed=-1), [7, 8])
    table.add_page(2, 2, 9)
    assert table.page_table(slots, 4).tolist() == [[0] * 4, [0] * 4, [7, 8, 9, 0]]
    rows = table.sampling(slots)
    assert rows.temperature.tolist() == [0, 0, 0.5]
    assert rows.top_k.tolist() == [0, 0, 3]
    assert rows.top_p.tolist() == pytest.approx([1, 1, 0.9])
    assert rows.min_p.tolist() == pytest.approx([0, 0, 0.1])
    assert rows.seed.tolist() == [0, 0, 2**63 - 1]
    table.clear(2)
    assert not table.page_table(slots, 4).any()
    cleared = table.sampling(slots)
    assert cleared.top_p.tolist() == [1, 1, 1]
    for array in (cleared.temperature, cleared.top_k, cleared.min_p, cleared.seed):
        assert not array.any()


def test_what_a_step_was_given_does_not_change_with_the_table():
    table = SlotTable(num_slots=2, max_pages=2)
    table.fill(1, submit("a", (1,), seed=4), [5])
    pages, rows = table.page_table(np.array([1]), 2), table.sampling(np.array([1]))
    table.clear(1)
    assert pages.tolist() == [[5, 0]]
    assert rows.seed.tolist() == [4]


@given(length=st.integers(1, 40), new=st.integers(0, 20), data=st.data())
def test_a_choices_ids_are_its_prompt_and_then_what_came_out(length: int, new: int, data: st.DataObject):
    choice = Choice(submit("a", tuple(range(length))), 0, generated=list(range(100, 100 + new)))
    known = list(range(length)) + list(range(100, 100 + new))
    start = data.draw(st.integers(0, len(known)))
    end = data.draw(st.integers(start, len(known)))
    assert list(choice.token_ids(start, end)) == known[start:end]


@pytest.mark.parametrize("chunk", [4, 12, 16])
@pytest.mark.parametrize("length", [1, 3, 4, 15, 16, 17, 50])
def test_chunks_follow_each_other_and_only_the_last_samples(length: int, chunk: int):
    device = HistoryDevice(capacity())
    queue = Admission(8, lambda _: None)
    settings = SchedulerSettings(chunked_prefill_size_tokens=chunk)
    core = SchedulerCore(settings, device.capacity, queue, load_policy("fcfs"))
    queue.send_nowait((submit("a", tuple(range(length)), max_new_tokens=1),))
    rows: list[tuple[int, int, bool]] = []
    while (plan := core.plan()) is not None:
        rows += [(row.start, row.num_valid, row.samples) for row in core.flights[-1].rows]
        core.complete(plan.step, device.run(plan.input))
    assert [start for start, _, _ in rows] == list(range(0, length, chunk))
    assert sum(num_valid for _, num_valid, _ in rows) == length
    assert [samples for _, _, samples in rows] == [False] * (len(rows) - 1) + [True]


@pytest.mark.parametrize(
    ("temperatures", "tops", "variant"),
    [
        ((0.0, 0.0), (0, 0), "greedy"),
        ((0.0, 0.7), (0, 0), "sample"),
        ((0.0, 0.0), (0, 2), "greedy_logprobs"),
        ((0.7, 0.0), (0, 2), "sample_logprobs"),
    ],
)
def test_a_variant_serves_every_row_and_no_more(temperatures: tuple[float, ...], tops: tuple[int, ...], variant: str):
    rows = [
        Row(Choice(submit("a", (1, 2), sampling=Sampling(temperature), num_top_logprobs=top), 0), 0, 2)
        for temperature, top in zip(temperatures, tops, strict=True)
    ]
    assert variant_of(rows) == variant


def test_a_chunk_that_is_not_the_last_asks_nothing_of_the_sampler():
    choice = Choice(submit("a", tuple(range(9)), sampling=Sampling(1.0), num_top_logprobs=1), 0)
    assert variant_of([Row(choice, 0, 8)]) == "greedy"


def test_a_step_is_padded_with_rows_of_the_null_slot_and_page():
    table = SlotTable(num_slots=9, max_pages=64)
    choices = [Choice(submit(str(slot), (1, 2, 3)), slot, slot=slot, generated=[9]) for slot in (3, 5, 6)]
    for choice in choices:
        table.fill(choice.slot, choice.submit, [choice.slot * 2])
    step = compose("decode", [Row(choice, 3, 1) for choice in choices], table, capacity().buckets, 8)
    assert str(step.key) == "decode-b4-t1-p1-greedy"
    assert step.slots.tolist() == [3, 5, 6, 0]
    assert step.start.tolist() == [3, 3, 3, 0]
    assert step.num_valid.tolist() == [1, 1, 1, 0]
    assert step.page_table.tolist() == [[6], [10], [12], [0]]


def test_the_budget_keeps_what_both_the_settings_and_the_device_allow():
    small = budget_of(SchedulerSettings(), capacity())
    assert (small.chunk_tokens, small.max_rows, small.max_prefill_rows) == (16, 8, 4)
    odd = budget_of(SchedulerSettings(chunked_prefill_size_tokens=15, max_running_requests=3), capacity())
    assert (odd.chunk_tokens, odd.max_rows) == (12, 3)
    assert budget_of(SchedulerSettings(chunked_prefill_size_tokens=1), capacity()).chunk_tokens == 4


def test_pages_are_counted_whole_and_the_future_by_its_share():
    budget = budget_of(SchedulerSettings(), capacity(num_pages=65))
    assert [budget.pages_for(num) for num in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert budget.foreseen_pages(8, 16, 0.5) == 2
    assert budget.foreseen_pages(8, 10**9, 0.5) == budget.max_row_pages
    wide = budget_of(SchedulerSettings(), capacity(num_pages=10**4, max_row_pages=8192))
    assert wide.foreseen_pages(8, 10**9, 1.0) == 1 + MAX_FUTURE_TOKENS // 8


def test_the_share_falls_to_its_floor_over_600_decode_steps_and_rises_to_what_was_used_at_a_retraction():
    pressure = Pressure(1.0)
    assert pressure.share == 0.7
    for _ in range(300):
        pressure.decoded()
    assert pressure.share == pytest.approx(0.7 * (1 + 0.14) / 2)
    for _ in range(400):
        pressure.decoded()
    assert pressure.share == pytest.approx(0.7 * 0.14)
    choices = [Choice(submit("a", (1,), max_new_tokens=100), 0, generated=[1] * num) for num in (10, 30)]
    pressure.retracted(choices)
    assert pressure.share == (10 + 30 + 20 * 2) / (200 + 1)
    pressure.retracted([Choice(submit("a", (1,), max_new_tokens=4), 0, generated=[1] * 3)])
    assert pressure.share == 1.0
    assert Pressure(5.0).share == 1.0
    assert Pressure(0.0).share == 0.0


def test_a_choice_that_nothing_but_its_limit_can_end_keeps_room_for_all_of_it():
    pressure = Pressure(0.5)
    assert pressure.share_of(Choice(submit("a", (1,), stop_token_ids=frozenset()), 0)) == 1.0
    assert pressure.share_of(Choice(submit("a", (1,), stop_token_ids=frozenset({3})), 0)) == 0.35
    assert pressure.share_of(Choice(submit("a", (1,), stop_token_ids=frozenset(), stop_regex=("x",)), 0)) == 0.35


def test_the_queue_counts_choices_and_wakes_the_scheduler_once_a_request():
    woken: list[Arrived] = []
    queue = Admission(3, woken.append)
    queue.send_nowait((submit("a", (1, 2), choice=0), submit("a", (1, 2), choice=1)))
    with pytest.raises(trio.WouldBlock):
        queue.send_nowait((submit("b", (1,), choice=0), submit("b", (1,), choice=1)))
    assert woken == [Arrived()]
    assert queue.waiting_tokens == 4
    queue.take(ChoiceKey("a", 0))
    assert queue.choices_of("a") == [ChoiceKey("a", 1)]
    assert queue.choices_of("b") == []
    queue.send_nowait((submit("b", (1,), choice=0), submit("b", (1,), choice=1)))
    assert (len(queue.waiting), queue.waiting_tokens) == (3, 4)


def test_more_choices_than_the_whole_queue_holds_is_the_clients_to_mend_not_to_retry():
    queue = Admission(3, lambda _: None)
    with pytest.raises(InvalidRequest, match="max-queued-requests") as caught:
        queue.send_nowait(tuple(submit("a", (1,), choice=choice) for choice in range(4)))
    assert caught.value.param == "n"
    assert not queue.waiting


def test_the_queue_tells_of_each_newcomer_once_and_not_of_one_that_left():
    queue = Admission(8, lambda _: None)
    queue.send_nowait((submit("a", (1,)),))
    queue.send_nowait((submit("b", (1,)),))
    queue.take(ChoiceKey("a", 0))
    assert [order.key.request_id for order in queue.take_fresh()] == ["b"]
    assert queue.take_fresh() == []
    assert list(queue.waiting) == [ChoiceKey("b", 0)]


def test_a_closed_queue_keeps_what_waits_and_an_id_in_it_is_refused():
    queue = Admission(8, lambda _: None)
    queue.send_nowait((submit("a", (1,)),))
    with pytest.raises(InvalidRequest) as refused:
        queue.send_nowait((submit("a", (1,), choice=1),))
    assert refused.value.param == "rid"
    queue.close()
    with pytest.raises(trio.ClosedResourceError):
        queue.send_nowait((submit("b", (1,)),))
    assert list(queue.waiting) == [ChoiceKey("a", 0)]


def test_an_output_of_another_step_is_an_engine_failure():
    device = HistoryDevice(capacity())
    queue = Admission(8, lambda _: None)
    core = SchedulerCore(SchedulerSettings(), device.capacity, queue, load_policy("fcfs"))
    queue.send_nowait((submit("a", (1, 2, 3)),))
    plan = core.plan()
    assert plan is not None
    output = device.run(plan.input)
    with pytest.raises(EngineFailure, match="step 9 is done but 1 is in flight"):
        core.complete(9, output)
    core.complete(1, output)
    with pytest.raises(EngineFailure, match="step 1 is done but None is in flight"):
        core.complete(1, output)


def test_a_choice_cancelled_on_the_device_keeps_slot_and_pages_until_its_step_is_done():
    device = HistoryDevice(capacity())
    queue = Admission(8, lambda _: None)
    core = SchedulerCore(SchedulerSettings(), device.capacity, queue, load_policy("fcfs"))
    queue.send_nowait((submit("a", tuple(range(9))),))
    plan = core.plan()
    assert plan is not None
    core.cancel(Cancel("a"))
    assert (core.load().running, core.load().used_pages, core.load().used_slots) == (0, 2, 1)
    # Its id is free at once, its memory is not.
    queue.send_nowait((submit("a", (1,)),))
    core.complete(plan.step, device.run(plan.input))
    assert (core.load().used_pages, core.load().used_slots) == (0, 0)


def test_the_newest_give_way_and_of_several_the_oldest_comes_back_first():
    device = HistoryDevice(capacity(num_pages=6))
    queue = Admission(8, lambda _: None)
    settings = SchedulerSettings(schedule_conservativeness=0.0)
    core = SchedulerCore(settings, device.capacity, queue, load_policy("fcfs"))
    # Four rows fill four of five pages with eight tokens each; the ninth token of each asks for one more.
    queue.send_nowait(tuple(submit("a", (1,) * 8, choice=choice, max_new_tokens=5) for choice in range(4)))
    phases: list[tuple[list[int], list[int]]] = []
    while (plan := core.plan()) is not None:
        waiting = [choice.submit.key.choice for choice in core.roster.retracted]
        running = sorted(choice.submit.key.choice for choice in (*core.roster.prefilling, *core.roster.decoding))
        if (running, waiting) not in phases:
            phases.append((running, waiting))
        core.complete(plan.step, device.run(plan.input))
    assert phases == [([0, 1, 2, 3], []), ([0, 1], [2, 3]), ([2, 3], [])]


def test_while_a_retracted_choice_waits_nothing_of_the_queue_is_let_in():
    device = HistoryDevice(capacity(num_pages=6))
    queue = Admission(8, lambda _: None)
    settings = SchedulerSettings(schedule_conservativeness=0.0, max_running_requests=2)
    core = SchedulerCore(settings, device.capacity, queue, load_policy("fcfs"))
    queue.send_nowait(tuple(submit("a", (1,) * 16, choice=choice, max_new_tokens=9) for choice in range(2)))
    queue.send_nowait(tuple(submit("late", (1,), choice=choice, max_new_tokens=1) for choice in range(3)))
    num_steps_behind = 0
    while (plan := core.plan()) is not None:
        assert core.load().running <= 2
        if core.roster.retracted:
            # A page is free for the small newcomers, but the retracted one was first.
            assert core.memory.pages.num_free
            assert (core.load().waiting, len(queue.waiting)) == (4, 3)
            num_steps_behind += 1
        core.complete(plan.step, device.run(plan.input))
    assert num_steps_behind > 0
    assert core.is_idle


def test_a_choice_retracted_when_it_had_outgrown_a_row_is_not_let_in_again():
    device = HistoryDevice(capacity(num_pages=4, max_row_pages=2))
    queue = Admission(8, lambda _: None)
    core = SchedulerCore(SchedulerSettings(schedule_conservativeness=0.0), device.capacity, queue, load_policy("fcfs"))
    # The first's ninth and the second's seventeenth token ask for a page in the same step; none is free.
    queue.send_nowait((submit("a", (1,) * 4, max_new_tokens=8),))
    queue.send_nowait((submit("b", (2,) * 13, max_new_tokens=8),))
    finishes: dict[str, tuple[str, int]] = {}
    while (plan := core.plan()) is not None:
        core.complete(plan.step, device.run(plan.input))
        for row in _rows(core):
            if row.finish is not None:
                finishes[row.submit.key.request_id] = (row.finish.kind, row.usage.completion_tokens)
    assert finishes == {"a": ("length", 8), "b": ("abort", 4)}
    assert core.outbox.counts["retractions"] == 1


def _rows(core: SchedulerCore) -> tuple[TokensRow, ...]:
    tokens = core.outbox.take()
    return tokens.rows if tokens is not None else ()


def test_a_share_is_kept_for_a_choice_that_came_back_too():
    device = HistoryDevice(capacity(num_pages=11))
    queue = Admission(8, lambda _: None)
    core = SchedulerCore(
        SchedulerSettings(schedule_conservativeness=1.0 / FIRST_SHARE), device.capacity, queue, load_policy("fcfs")
    )
    queue.send_nowait((submit("back", (1,) * 8, max_new_tokens=32),))
    plan = core.plan()
    assert plan is not None
    core.complete(plan.step, device.run(plan.input))
    (choice,) = core.roster.decoding
    core.roster.retract(choice)
    # Two pages now and three to come are the one's, six the other's: eleven of ten.
    queue.send_nowait((submit("new", (1,) * 8, max_new_tokens=40),))
    core.plan()
    assert [one.submit.key.request_id for one in core.roster.prefilling] == ["back"]
    assert len(queue.waiting) == 1


@pytest.mark.parametrize(
    ("scope", "request_id", "left"),
    [
        ("request", "x_1", ["x_10", "x_2", "y"]),
        ("prefix", "x_1", ["x_2", "y"]),
        ("prefix", "x", ["y"]),
        ("prefix", "", ["x_1", "x_10", "x_2", "y"]),
        ("all", "", []),
    ],
)
def test_a_cancel_ends_the_requests_that_its_scope_names_running_or_waiting(
    scope: Literal["request", "prefix", "all"], request_id: str, left: list[str]
):
    queue = Admission(8, lambda _: None)
    core = SchedulerCore(SchedulerSettings(), capacity(), queue, load_policy("fcfs"))
    for name in ("x_1", "x_10", "x_2", "y"):
        queue.send_nowait((submit(name, (1, 2, 3)),))
        core.plan()
    assert len(queue.waiting) == 3
    core.cancel(Cancel(request_id, scope=scope))
    assert sorted([*(key.request_id for key in queue.waiting), *core.roster.requests]) == left


def test_one_waiting_choice_can_be_cancelled_and_the_others_wait_on():
    queue = Admission(8, lambda _: None)
    core = SchedulerCore(SchedulerSettings(), capacity(), queue, load_policy("fcfs"))
    queue.send_nowait(tuple(submit("a", (1,), choice=choice) for choice in range(3)))
    core.cancel(Cancel("a", choice=1, deliver=True))
    assert [key.choice for key in queue.waiting] == [0, 2]
    assert [row.submit.key.choice for row in _rows(core)] == [1]


def test_logprobs_come_only_where_they_were_asked_for():
    device = HistoryDevice(capacity())
    queue = Admission(8, lambda _: None)
    core = SchedulerCore(SchedulerSettings(), device.capacity, queue, load_policy("fcfs"))
    queue.send_nowait(
        (
            submit("a", (1, 2), choice=0),
            submit("a", (1, 2), choice=1, logprobs=True),
            submit("a", (1, 2), choice=2, logprobs=True, num_top_logprobs=2),
        )
    )
    plan = core.plan()
    assert plan is not None
    assert plan.input.key.variant == "greedy_logprobs"
    core.complete(plan.step, device.run(plan.input))
    tokens = core.outbox.take()
    assert tokens is not None
    plain, own, best = tokens.rows
    newest = plain.token_ids[0]
    assert (plain.logprobs, plain.top) == ((), ())
    assert (own.logprobs, own.top) == ((-float(newest),), ())
    assert best.top == (((newest, -float(newest)), (newest + 1, -float(newest + 1))),)


def test_rows_below_the_context_are_admitted_up_to_the_limits_of_slots_and_settings():
    for num_slots, max_running, expected in ((4, 8, 3), (9, 2, 2)):
        device = HistoryDevice(capacity(num_slots=num_slots))
        queue = Admission(64, lambda _: None)
        settings = SchedulerSettings(max_running_requests=max_running)
        core = SchedulerCore(settings, device.capacity, queue, load_policy("fcfs"))
        queue.send_nowait(tuple(submit("a", (1, 2), choice=choice) for choice in range(9)))
        core.plan()
        assert core.load().running == expected
        assert core.load().waiting == 9 - expected


def test_a_share_of_the_future_is_kept_free_for_those_that_run():
    def num_running(reserve: float) -> int:
        device = HistoryDevice(capacity(num_pages=11))
        queue = Admission(64, lambda _: None)
        core = SchedulerCore(
            SchedulerSettings(schedule_conservativeness=reserve / FIRST_SHARE),
            device.capacity,
            queue,
            load_policy("fcfs"),
        )
        queue.send_nowait(tuple(submit("a", (1,) * 8, choice=choice, max_new_tokens=32) for choice in range(8)))
        core.plan()
        return core.load().running

    # Ten pages: a row needs one now and four more at its end.
    assert [num_running(reserve) for reserve in (0.0, 0.25, 0.5, 1.0)] == [8, 5, 3, 2]
