"""The waiting table against a list that is sorted anew each time."""

import math
import random
from typing import Any

import numpy as np
import pytest
from attrs import evolve, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from graphs.step import Ints
from stages.messages import ChoiceKey, Submit
from stages.scheduler.policies import Situation, WaitingRows, load_policy
from stages.scheduler.waiting import Waiting, rank_of, routing_number
from stages.settings import PrioritySettings
from tests.sim.simkit import submit
from tests.stages.scheduler.fake_tree import FakeTree

NOW = Situation()


@frozen
class MostCached:
    """Whatever has most in the cache, in order of arrival; keeps the situations that it was asked in."""

    can_starve: bool = True
    needs_cache: bool = True
    asked: list[Situation] = field(factory=list)

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        self.asked.append(now)
        return np.argsort(-waiting.cached_tokens, kind="stable")


def table(policy: str = "fcfs", priority: PrioritySettings | None = None) -> Waiting:
    return Waiting(load_policy(policy), priority, None)


def names(orders: list[Submit]) -> str:
    return "".join(order.key.request_id for order in orders)


def order_of(name: str, **changes: Any) -> Submit:
    return evolve(submit(name, (1, 2, 3)), **changes)


def test_what_is_best_is_not_taken_and_no_more_is_given_than_asked_for():
    waiting = table()
    for name in "abc":
        waiting.add(order_of(name), 0)
    assert [names(waiting.best(limit, NOW)) for limit in (0, 1, 2, 9)] == ["", "a", "ab", "abc"]
    waiting.remove(ChoiceKey("a", 0))
    waiting.remove(ChoiceKey("never seen", 0))
    assert (names(waiting.best(9, NOW)), len(waiting)) == ("bc", 2)


def test_a_deferred_choice_is_passed_over_and_comes_back_to_its_place():
    waiting = table()
    for name in "abc":
        waiting.add(order_of(name), 0)
    waiting.defer(ChoiceKey("a", 0))
    waiting.defer(ChoiceKey("a", 0))
    assert (names(waiting.best(1, NOW)), len(waiting)) == ("b", 3)
    waiting.undefer(ChoiceKey("a", 0))
    assert names(waiting.best(9, NOW)) == "abc"
    waiting.defer(ChoiceKey("a", 0))
    waiting.remove(ChoiceKey("a", 0))
    waiting.undefer(ChoiceKey("a", 0))
    assert names(waiting.best(9, NOW)) == "bc"


def test_a_choice_that_waits_cannot_be_added_again():
    waiting = table()
    waiting.add(order_of("a"), 0)
    with pytest.raises(ValueError, match="a/0 waits already"):
        waiting.add(order_of("a"), 0)


def test_the_order_follows_the_tree_and_all_but_the_last_token_can_be_cached():
    tree, policy = FakeTree(usable_tokens=1), MostCached()
    waiting = Waiting(policy, None, tree)
    for name in "abc":
        waiting.add(order_of(name, namespace=name.upper()), 0)
    assert [(watch.namespace, watch.tokens, watch.limit) for watch in tree.watches] == [
        (name, [1, 2, 3], 2) for name in "ABC"
    ]
    assert names(waiting.best(9, NOW)) == "abc"
    tree.change(1, 2)
    assert names(waiting.best(9, NOW)) == "bac"
    tree.shape = np.array([0] * 7 + [3])
    waiting.best(1, evolve(NOW, step=5))
    assert (policy.asked[-1].parents is tree.shape, policy.asked[-1].step) == (True, 5)
    for name in "abc":
        waiting.remove(ChoiceKey(name, 0))
    assert tree.watches == []


@pytest.mark.parametrize(("first", "limit"), [(0, 0), (1, 1), (2, 2), (3, 2), (None, 2)])
def test_of_a_prompt_that_is_scored_the_cache_counts_up_to_its_first_scored_token(first: int | None, limit: int):
    tree = FakeTree(usable_tokens=9)
    waiting = Waiting(MostCached(), None, tree)
    waiting.add(order_of("a", prompt_logprobs_from=first), 0)
    assert [watch.limit for watch in tree.watches] == [limit]


def test_a_policy_that_does_not_look_at_the_cache_watches_nothing():
    tree = FakeTree()
    waiting = Waiting(load_policy("fcfs"), None, tree)
    waiting.add(order_of("a"), 0)
    assert tree.watches == []
    waiting.remove(ChoiceKey("a", 0))


@frozen
class Recording:
    can_starve: bool = False
    needs_cache: bool = True
    seen: list[WaitingRows] = field(factory=list)

    def order(self, waiting: WaitingRows, now: Situation, limit: int) -> Ints:
        self.seen.append(waiting)
        return np.arange(len(waiting.arrival))


@pytest.mark.parametrize("priority", [None, PrioritySettings()])
def test_each_column_is_what_its_name_says(priority: PrioritySettings | None):
    tree, policy = FakeTree(), Recording()
    waiting = Waiting(policy, priority, tree)
    for name, key in (("x", None), ("a", "blue"), ("b", None)):
        waiting.add(order_of(name, prompt_ids=(1,) * 30, max_new_tokens=70, routing_key=key), 500)
    tree.change(1, 20, node=9)
    waiting.remove(ChoiceKey("x", 0))
    waiting.best(2, NOW)
    rows = policy.seen[-1]
    assert rows.arrival.tolist() == [1, 2]
    assert rows.prompt_tokens.tolist() == [30, 30]
    assert rows.cached_tokens.tolist() == [20, 0]
    assert rows.max_new_tokens.tolist() == [70, 70]
    assert rows.served_before.tolist() == [500, 500]
    assert rows.routing_key.tolist() == [routing_number("blue"), -1]
    assert rows.node.tolist() == [9, 0]
    assert all(getattr(rows, name).dtype == np.int64 for name in WaitingRows.__slots__ if not name.startswith("__"))


def test_a_routing_key_has_one_number_that_fits_a_column():
    numbers = {routing_number(str(index)) for index in range(1000)}
    assert len(numbers) == 1000
    assert all(0 <= number < 2**63 for number in numbers)
    assert routing_number(None) == -1


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({}, [0, 7, -7, None]),
        ({"low_values_first": True}, [0, -7, 7, None]),
        ({"default": 3}, [0, 7, -7, 3]),
        ({"default": 3, "low_values_first": True}, [0, -7, 7, -3]),
    ],
)
def test_a_rank_is_the_priority_turned_to_higher_is_better(changes: dict[str, Any], ranks: list[int | None]):
    priority = PrioritySettings(**changes)
    found = [rank_of(order_of("a", priority=value), priority) for value in (0, 7, -7, None)]
    worst = min(rank_of(order_of("a", priority=value), priority) for value in (-(10**40), 10**40))
    assert [None if rank < worst else rank for rank in found] == ranks


def test_without_priority_scheduling_a_priority_changes_nothing():
    waiting = table()
    waiting.add(order_of("a", priority=1), 0)
    waiting.add(order_of("b", priority=2), 0)
    assert names(waiting.best(2, NOW)) == "ab"
    assert waiting.rank(order_of("b", priority=2)) == 0


def test_a_choice_is_told_of_once_when_its_time_to_wait_is_over_and_not_when_it_left():
    waiting = table()
    for name, until_s in (("a", 30.0), ("b", 10.0), ("c", 20.0), ("d", math.inf)):
        waiting.add(order_of(name, wait_until_s=until_s), 0)
    assert waiting.next_expiry_s == 10.0
    assert names(waiting.expired(9.9)) == ""
    waiting.remove(ChoiceKey("c", 0))
    assert names(waiting.expired(25.0)) == "b"
    assert names(waiting.expired(25.0)) == ""
    waiting.remove(ChoiceKey("a", 0))
    waiting.add(order_of("a", wait_until_s=50.0), 0)
    assert waiting.next_expiry_s == 50.0
    assert names(waiting.expired(99.0)) == "a"
    assert waiting.next_expiry_s == math.inf


def test_what_left_long_before_its_time_was_over_is_not_kept():
    waiting = table()
    for index in range(1000):
        waiting.add(order_of(str(index), wait_until_s=1e9), 0)
        waiting.remove(ChoiceKey(str(index), 0))
    assert len(waiting._expiries) < 100
    assert len(waiting._rows) < 100


@pytest.mark.parametrize("seed", range(5))
def test_closing_the_holes_moves_what_is_known_of_a_choice_with_it(seed: int):
    numbers = random.Random(seed)
    tree, policy = FakeTree(), MostCached()
    waiting = Waiting(policy, None, tree)
    ready: list[str] = []
    deferred: list[str] = []
    for index in range(400):
        waiting.add(order_of(f"{index} "), 0)
        ready.append(f"{index} ")
        if index % 40 == 39:
            deferred += ready[::9]
            for name in deferred:
                waiting.defer(ChoiceKey(name, 0))
            ready = [name for name in ready if name not in deferred]
        while len(ready) + len(deferred) > 30:
            gone = ready.pop(numbers.randrange(len(ready)))
            waiting.remove(ChoiceKey(gone, 0))
        assert names(waiting.best(99, NOW)) == "".join(ready)
        # What the tree says later still reaches the right one.
        there = numbers.randrange(len(tree.watches))
        first = sorted([*ready, *deferred], key=int)[there]
        tree.change(there, 2)
        best = names(waiting.best(1, NOW))
        assert best == (first if first in ready else ready[0])
        tree.change(there, 0)
    for name in sorted(deferred, key=int):
        waiting.undefer(ChoiceKey(name, 0))
    assert names(waiting.best(99, NOW)) == "".join(sorted([*ready, *deferred], key=int))


class Model(RuleBasedStateMachine):
    """Adds, removes and defers at random; the table must agree with a list that is sorted on every question."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = {
            (policy, setting): table(policy, setting)
            for policy in ("fcfs", "lof")
            for setting in (None, PrioritySettings(default=2), PrioritySettings(low_values_first=True))
        }
        self.orders: list[Submit] = []
        self.deferred: set[ChoiceKey] = set()
        self.count = 0

    @rule(
        shape=st.lists(
            st.tuples(st.integers(1, 3), st.none() | st.integers(-2, 2), st.none() | st.integers(0, 5)), max_size=50
        )
    )
    def add(self, shape: list[tuple[int, int | None, int | None]]) -> None:
        for most, priority, until_s in shape:
            self.count += 1
            wait_until_s = math.inf if until_s is None else float(until_s)
            order = order_of(str(self.count), max_new_tokens=most, priority=priority, wait_until_s=wait_until_s)
            self.orders.append(order)
            for waiting in self.tables.values():
                waiting.add(order, 0)

    @rule(data=st.data(), share=st.sampled_from([1, 10, 60]))
    def remove(self, data: st.DataObject, share: int) -> None:
        for _ in range(min(share, len(self.orders))):
            order = self.orders.pop(data.draw(st.integers(0, len(self.orders) - 1)) if share == 1 else 0)
            self.deferred.discard(order.key)
            for waiting in self.tables.values():
                waiting.remove(order.key)

    @rule(data=st.data(), is_deferred=st.booleans())
    def defer(self, data: st.DataObject, is_deferred: bool) -> None:
        if self.orders:
            key = data.draw(st.sampled_from(self.orders)).key
            (self.deferred.add if is_deferred else self.deferred.discard)(key)
            for waiting in self.tables.values():
                (waiting.defer if is_deferred else waiting.undefer)(key)

    @rule(limit=st.integers(0, 40))
    def best(self, limit: int) -> None:
        for (policy, priority), waiting in self.tables.items():
            ready = [order for order in self.orders if order.key not in self.deferred]
            if policy == "lof":
                ready.sort(key=lambda order: -order.max_new_tokens)
            if priority is not None:
                ready.sort(key=lambda order: -rank_of(order, priority))
            assert names(waiting.best(limit, NOW)) == names(ready[:limit])

    @invariant()
    def the_next_to_expire_is_known(self) -> None:
        soonest = min((order.wait_until_s for order in self.orders), default=math.inf)
        for waiting in self.tables.values():
            assert waiting.next_expiry_s == soonest
            assert len(waiting) == len(self.orders)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(1, 32))
def test_ranks_are_served_best_first_whatever_the_limit(ranks: list[int], limit: int):
    waiting = table(priority=PrioritySettings())
    for index, rank in enumerate(ranks):
        waiting.add(order_of(f"{index} ", priority=rank), 0)
    expected = sorted(range(len(ranks)), key=lambda index: -ranks[index])[:limit]
    assert names(waiting.best(limit, NOW)) == "".join(f"{index} " for index in expected)
