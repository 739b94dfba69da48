"""The queue's limits, and who makes room for whom when it is full."""

import weakref
from typing import Any

import pytest
import trio
from attrs import evolve, field, frozen
from hypothesis import given
from hypothesis import strategies as st

from stages.channels import Admission
from stages.errors import InvalidRequest
from stages.messages import Arrived, Bumped, ChoiceKey, Submit
from tests.sim.simkit import submit


def priority_of(order: Submit) -> int:
    return order.priority or 0


def order_of(name: str, priority: int = 0, num_tokens: int = 1, choice: int = 0) -> Submit:
    return evolve(submit(name, (1,) * num_tokens, choice=choice), priority=priority)


@frozen
class Heard:
    """What the scheduler was woken with: the names of the bumped, and a dot for each arrival."""

    woken: list[Arrived | Bumped] = field(factory=list)

    @property
    def text(self) -> str:
        return "".join("." if isinstance(one, Arrived) else one.submit.key.request_id for one in self.woken)


def queue_of(max_waiting: int, *orders: Submit, **more: Any) -> tuple[Admission, Heard]:
    heard = Heard()
    queue = Admission(max_waiting, heard.woken.append, **more)
    for order in orders:
        queue.send_nowait((order,))
    heard.woken.clear()
    return queue, heard


def waiting(queue: Admission) -> list[str]:
    return [key.request_id for key in queue.waiting]


def test_the_prompts_that_wait_may_have_so_many_tokens_together():
    queue, heard = queue_of(9, order_of("a", num_tokens=6), max_waiting_tokens=10)
    with pytest.raises(trio.WouldBlock):
        queue.send_nowait((order_of("b", num_tokens=5),))
    queue.send_nowait((order_of("c", num_tokens=4),))
    assert (waiting(queue), queue.waiting_tokens, heard.text) == (["a", "c"], 10, ".")
    queue.take(ChoiceKey("a", 0))
    queue.send_nowait((order_of("b", num_tokens=5),))
    assert queue.waiting_tokens == 9


@pytest.mark.parametrize("shape", [(11,), (4, 4, 4)])
def test_a_request_that_an_empty_queue_has_no_room_for_is_told_so(shape: tuple[int, ...]):
    queue, heard = queue_of(9, order_of("a", num_tokens=10), max_waiting_tokens=10)
    with pytest.raises(
        InvalidRequest, match=r"1[12] prompt tokens can never fit a queue of 10 \(--max-queued-tokens\)"
    ):
        queue.send_nowait(tuple(order_of("b", 9, num, choice) for choice, num in enumerate(shape)))
    assert (waiting(queue), heard.text) == (["a"], "")


def test_a_better_newcomer_takes_the_place_of_the_worst_and_of_these_the_newest():
    queue, heard = queue_of(4, order_of("a", 1), order_of("b", 0), order_of("c", 0), order_of("d", 2), rank=priority_of)
    queue.send_nowait((order_of("e", 1),))
    assert (waiting(queue), heard.text) == (["a", "b", "d", "e"], "c.")
    queue.send_nowait((order_of("f", 1),))
    assert (waiting(queue), heard.text) == (["a", "d", "e", "f"], "c.b.")
    with pytest.raises(trio.WouldBlock):
        queue.send_nowait((order_of("g", 1),))
    queue.send_nowait((order_of("h", 2),))
    assert (waiting(queue), heard.text) == (["a", "d", "e", "h"], "c.b.f.")


def test_nobody_is_bumped_while_there_is_room_or_without_ranks():
    queue, heard = queue_of(2, order_of("a", 0), rank=priority_of)
    queue.send_nowait((order_of("b", 9),))
    assert heard.text == "."
    queue, heard = queue_of(1, order_of("a", 0))
    with pytest.raises(trio.WouldBlock):
        queue.send_nowait((order_of("b", 9),))
    assert (waiting(queue), heard.text) == (["a"], "")


def test_a_request_of_several_choices_bumps_as_many_as_it_needs_or_nobody():
    queue, heard = queue_of(3, order_of("a", 0), order_of("b", 2), order_of("c", 1), rank=priority_of)
    with pytest.raises(trio.WouldBlock):
        queue.send_nowait(tuple(order_of("d", 2, choice=choice) for choice in range(3)))
    assert (waiting(queue), heard.text) == (["a", "b", "c"], "")
    queue.send_nowait(tuple(order_of("d", 2, choice=choice) for choice in range(2)))
    assert (waiting(queue), heard.text) == (["b", "d", "d"], "ac.")


def test_bumping_frees_tokens_too_and_stops_when_there_are_enough():
    queue, heard = queue_of(
        9,
        *(order_of("a", 0, 3), order_of("b", 0, 4), order_of("c", 1, 3)),
        max_waiting_tokens=10,
        rank=priority_of,
    )
    with pytest.raises(trio.WouldBlock):
        queue.send_nowait((order_of("d", 1, 8),))
    queue.send_nowait((order_of("d", 1, 6),))
    assert (waiting(queue), queue.waiting_tokens, heard.text) == (["c", "d"], 9, "ba.")


def test_the_scheduler_is_not_told_of_the_arrival_of_one_that_was_bumped_before_it_looked():
    queue, _ = queue_of(1, order_of("a", 0), rank=priority_of)
    queue.send_nowait((order_of("b", 1),))
    assert [order.key.request_id for order in queue.take_fresh()] == ["b"]
    queue.take(ChoiceKey("b", 0))
    queue.send_nowait((order_of("a", 0),))
    queue.send_nowait((order_of("b", 1),))
    queue.take(ChoiceKey("b", 0))
    queue.send_nowait((order_of("b", 1),))
    assert [order.key.request_id for order in queue.take_fresh()] == ["b"]


def test_one_that_left_and_came_back_better_is_as_good_as_it_is_now():
    queue, heard = queue_of(2, order_of("a", 0), order_of("b", 5), rank=priority_of)
    queue.take(ChoiceKey("a", 0))
    queue.send_nowait((order_of("a", 5),))
    with pytest.raises(trio.WouldBlock):
        queue.send_nowait((order_of("c", 3),))
    assert (waiting(queue), heard.text) == (["b", "a"], ".")


def test_a_queue_keeps_nothing_of_those_who_left():
    queue, _ = queue_of(4, rank=priority_of)
    left: weakref.WeakSet[Submit] = weakref.WeakSet()
    for index in range(1000):
        queue.send_nowait((order_of(str(index)),))
        left.add(queue.take(ChoiceKey(str(index), 0)))
    assert not left, "a prompt, and its mailbox, is kept by the order of the worst"
    assert len(queue._worst) < 100
    assert queue._choices == {}
    assert queue.take_fresh() == []


def test_whoever_left_is_held_by_nothing_of_the_queue_and_with_it_its_mailbox_and_prompt():
    queue, _ = queue_of(4, rank=priority_of)
    order = order_of("a")
    left = weakref.ref(order)
    queue.send_nowait((order,))
    del order
    queue.take(ChoiceKey("a", 0))
    assert left() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=60))
def test_what_is_left_is_what_a_list_that_is_searched_each_time_would_keep(steps: list[tuple[int, int, bool]]):
    queue, heard = queue_of(5, max_waiting_tokens=12, rank=priority_of)
    kept: list[Submit] = []
    for index, (priority, num_tokens, leaves) in enumerate(steps):
        if leaves and kept:
            queue.take(kept.pop(num_tokens % len(kept)).key)
        order = order_of(f"{index} ", priority, num_tokens)
        after = list(kept)
        while len(after) == 5 or sum(len(one.prompt_ids) for one in after) + num_tokens > 12:
            worst = min(reversed(after), key=priority_of)
            if priority_of(worst) >= priority:
                break
            after.remove(worst)
        else:
            kept = [*after, order]
        heard.woken.clear()
        try:
            queue.send_nowait((order,))
            assert kept[-1] is order
        except trio.WouldBlock:
            assert order not in kept
            assert heard.text == ""
        assert list(queue.waiting.values()) == kept
        assert queue.waiting_tokens == sum(len(one.prompt_ids) for one in kept)
