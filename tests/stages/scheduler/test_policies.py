"""What each schedule policy puts first."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.step import Ints
from stages.scheduler.policies import Situation, WaitingRows, load_policy
from stages.scheduler.selection import by_digits, smallest, smallest_pairs


def order(name: str, now: Situation | None = None, **columns: list[int]) -> list[int]:
    """Return the whole order of choices that came one after another; a column that is not given is all nothing."""
    num = len(next(iter(columns.values())))
    given_columns = {key: np.array(values, np.int64) for key, values in columns.items()}
    nothing: dict[str, Any] = {field: np.zeros(num, np.int64) for field in WaitingRows.__slots__ if field[0] != "_"}
    rows = WaitingRows(**{**nothing, "arrival": np.arange(num) + 7, **given_columns})
    if now is None:
        now = Situation(parents=parents_of({}, max(columns.get("node", [0]))))
    whole: list[int] = load_policy(name).order(rows, now, num).tolist()
    return whole


def parents_of(shape: Mapping[int, int], largest: int) -> Ints:
    """Return the parents of nodes up to `largest`, those of `shape` and else the root."""
    return np.array([shape.get(node, 0) for node in range(largest + 1)])


def test_lpm_puts_the_most_cached_first():
    assert order("lpm", cached_tokens=[0, 64, 0, 128, 64]) == [3, 1, 4, 0, 2]


def test_lof_puts_the_longest_output_first():
    assert order("lof", max_new_tokens=[5, 9, 5, 20]) == [3, 1, 0, 2]


@pytest.mark.parametrize("name", ["spf", "shortest-prefill-first"])
def test_shortest_prefill_first_counts_what_is_not_cached(name: str):
    assert order(name, prompt_tokens=[100, 50, 900, 51], cached_tokens=[0, 0, 880, 1]) == [2, 1, 3, 0]


def test_hrrn_weighs_the_wait_against_what_is_left_to_compute():
    # Ratios at 1,000 served tokens: 1000/100, 500/10, 900/100, 100/2, fully cached.
    found = order(
        "hrrn",
        Situation(served_tokens=1000),
        prompt_tokens=[100, 60, 100, 12, 40],
        cached_tokens=[0, 50, 0, 10, 40],
        served_before=[0, 500, 100, 900, 1000],
    )
    assert found == [4, 1, 3, 0, 2]


def test_hrrn_lets_a_long_prompt_overtake_once_it_has_waited_long_enough():
    columns = {"prompt_tokens": [1000, 10], "served_before": [0, 5000]}
    assert order("hrrn", Situation(5040), **columns) == [0, 1]
    assert order("hrrn", Situation(5060), **columns) == [1, 0]


def test_routing_key_puts_the_key_that_runs_most_first_and_the_keyless_last():
    keys = [4, -1, 2, 9, 4, 2, -1, 3]
    assert order("routing-key", Situation(running_keys={2: 1, 9: 5, 77: 8}), routing_key=keys) == [
        3,
        2,
        5,
        7,
        0,
        4,
        1,
        6,
    ]
    assert order("routing-key", routing_key=keys) == [2, 5, 7, 0, 4, 3, 1, 6]
    assert order("routing-key", Situation(running_keys={-1: 9, 4: 1}), routing_key=keys)[-2:] == [1, 6]


def test_random_differs_from_step_to_step_and_puts_everybody_first_about_as_often():
    firsts = [order("random", Situation(step=step), node=[0] * 8)[0] for step in range(4000)]
    counts = np.bincount(firsts, minlength=8)
    assert counts.sum() == 4000
    # Five standard deviations of a fair draw.
    assert (abs(counts - 500) < 5 * 21).all()


def test_random_keeps_the_order_of_those_who_stay_when_one_of_them_leaves():
    whole = order("random", arrival=[1, 2, 3, 4, 5])
    without = order("random", arrival=[1, 2, 4, 5])
    assert [[1, 2, 4, 5][index] for index in without] == [index + 1 for index in whole if index != 2]


def test_dfs_weight_follows_the_branch_on_which_most_wait():
    # 1 -> (2, 3 -> 4), 5; two wait at 2, one at 3, two at 4, two at 5, one at 1, one at no node at all.
    parents = parents_of({2: 1, 3: 1, 4: 3}, 5)
    node = [0, 5, 5, 1, 2, 4, 3, 4, 2]
    assert order("dfs-weight", Situation(parents=parents), node=node) == [5, 7, 6, 4, 8, 3, 1, 2, 0]


def test_dfs_weight_takes_the_branch_that_has_waited_longest_of_equal_ones():
    assert order("dfs-weight", node=[3, 2, 2, 3, 1]) == [0, 3, 1, 2, 4]
    assert order("dfs-weight", Situation(parents=parents_of({9: 1, 8: 2}, 9)), node=[8, 9]) == [0, 1]


def naive_walk(node: list[int], parents: Mapping[int, int]) -> list[int]:
    def is_beneath(low: int, high: int) -> bool:
        return low == high or (low != 0 and is_beneath(parents.get(low, 0), high))

    def visit(place: int) -> list[int]:
        children = [child for child in every if child != 0 and parents.get(child, 0) == place]
        below = {child: [index for index, at in enumerate(node) if is_beneath(at, child)] for child in children}
        busy = sorted(
            (child for child in children if below[child]), key=lambda child: (-len(below[child]), below[child])
        )
        own = [index for index, at in enumerate(node) if at == place]
        return [index for child in busy for index in visit(child)] + own

    every = {*node, *parents, *parents.values()}
    return visit(0)


@given(
    node=st.lists(st.integers(0, 12), max_size=30),
    parents=st.fixed_dictionaries({}, optional={child: st.integers(1, child - 1) for child in range(2, 13)}),
    spread=st.sampled_from([1, 1000, 30_000]),
)
def test_dfs_weight_agrees_with_a_walk_that_counts_anew_at_every_node(
    node: list[int], parents: dict[int, int], spread: int
):
    far = [at * spread for at in node]
    shape = {child * spread: parent * spread for child, parent in parents.items()}
    now = Situation(parents=parents_of(shape, 12 * spread))
    if node:
        assert order("dfs-weight", now, node=far) == naive_walk(node, parents)


few = st.integers(-3, 3)


@given(pairs=st.lists(st.tuples(few, few), max_size=40), limit=st.integers(0, 45))
def test_the_best_few_are_the_beginning_of_a_stable_sort(pairs: list[tuple[int, int]], limit: int):
    first = np.array([pair[0] for pair in pairs], np.int64)
    second = np.array([pair[1] for pair in pairs], np.int64)
    places = range(len(pairs))
    assert smallest(first, limit).tolist() == sorted(places, key=lambda index: pairs[index][0])[:limit]
    assert smallest_pairs(first, second, limit).tolist() == sorted(places, key=lambda index: pairs[index])[:limit]


@given(st.lists(st.integers(0, 3) | st.integers(-(2**40), 2**40) | st.integers(0, 2**20)))
def test_sorting_by_digits_is_a_stable_sort(numbers: list[int]):
    assert by_digits(np.array(numbers, np.int64)).tolist() == sorted(range(len(numbers)), key=lambda at: numbers[at])
