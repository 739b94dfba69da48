"""Where snapshots of a prompt are taken: pages of 8 tokens, chunks of 16, a stride of 32 where not said otherwise."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from stages.scheduler.placement import Placement

USER, OBSERVATION = 500, 501
PLACEMENT = Placement(
    grid_tokens=8, stride_tokens=1024, chunk_tokens=16, boundary_token_ids=frozenset({USER, OBSERVATION})
)


def prompt(length: int, **turns_at: int) -> list[int]:
    """Return a prompt in which turns begin at the positions given."""
    ids = list(range(length))
    for position in turns_at.values():
        ids[position] = USER
    return ids


@pytest.mark.parametrize(
    ("length", "captures"), [(1, []), (8, []), (9, [8]), (16, [8]), (17, [16]), (40, [32]), (41, [40])]
)
def test_the_last_grid_point_before_the_last_token_is_kept(length: int, captures: list[int]):
    assert PLACEMENT.captures(prompt(length), 0, 0) == captures


@pytest.mark.parametrize(
    ("start", "length", "captures"),
    # Grid points are counted from where the prefill begins, whatever page that is in.
    [(4, 40, [36]), (12, 40, [36]), (36, 44, []), (36, 45, [44]), (32, 40, []), (32, 41, [40])],
)
def test_the_grid_begins_where_the_prefill_begins(start: int, length: int, captures: list[int]):
    assert PLACEMENT.captures(prompt(length), start, start) == captures


@pytest.mark.parametrize(
    ("num_matched", "captures"), [(0, [56]), (7, [56]), (8, [8, 56]), (27, [24, 56]), (56, [56]), (64, [56])]
)
def test_the_last_grid_point_of_what_another_prompt_shares_is_kept(num_matched: int, captures: list[int]):
    assert PLACEMENT.captures(prompt(64), 0, num_matched) == captures


@pytest.mark.parametrize(("start", "num_matched", "captures"), [(20, 20, [60]), (20, 27, [60]), (20, 29, [28, 60])])
def test_what_was_matched_no_further_than_the_resume_point_is_kept_no_second_time(
    start: int, num_matched: int, captures: list[int]
):
    assert PLACEMENT.captures(prompt(64), start, num_matched) == captures


@pytest.mark.parametrize(
    ("turns", "captures"),
    [
        ({"first": 20}, [16, 56]),
        ({"first": 24}, [24, 56]),
        ({"first": 20, "second": 40}, [16, 56]),
        ({"first": 5}, [56]),
        ({"first": 63}, [56]),
        ({}, [56]),
    ],
)
def test_the_last_grid_point_before_the_first_turn_is_kept(turns: dict[str, int], captures: list[int]):
    assert PLACEMENT.captures(prompt(64, **turns), 0, 0) == captures


def test_a_turn_that_began_before_the_resume_point_is_kept_no_second_time():
    assert PLACEMENT.captures(prompt(64, first=20), 24, 24) == [56]


def test_without_boundary_tokens_no_prompt_is_searched():
    assert evolve(PLACEMENT, boundary_token_ids=frozenset()).captures(prompt(64, first=20), 0, 0) == [56]


@pytest.mark.parametrize(
    ("stride", "start", "captures"),
    [
        (32, 0, [32, 64, 96]),
        # Rounded down to the grid, and no finer than it.
        (39, 0, [32, 64, 96]),
        (48, 0, [48, 96]),
        (1, 80, [88, 96]),
        # From where the prefill begins.
        (32, 20, [52, 84, 92]),
    ],
)
def test_under_a_long_prompt_there_is_one_each_stride(stride: int, start: int, captures: list[int]):
    assert evolve(PLACEMENT, stride_tokens=stride).captures(prompt(100), start, start) == captures


@pytest.mark.parametrize(
    ("length", "start", "num_matched", "captures"),
    [
        (64, 0, 0, [16, 32, 48, 56]),
        (65, 0, 0, [16, 32, 48, 64]),
        # In the chunk in which it diverges it is kept there instead.
        (64, 0, 27, [16, 24, 48, 56]),
        (64, 0, 32, [16, 32, 48, 56]),
        (64, 20, 20, [36, 52, 60]),
        (8, 0, 0, []),
    ],
)
def test_on_peers_fixed_grid_there_is_one_each_chunk(length: int, start: int, num_matched: int, captures: list[int]):
    placement = evolve(PLACEMENT, is_fixed_grid=True)
    assert placement.captures(prompt(length), start, num_matched) == captures


@given(
    length=st.integers(1, 300),
    start_groups=st.integers(0, 80),
    matched=st.integers(0, 300),
    stride=st.integers(1, 100),
    turn=st.integers(0, 299),
    is_fixed_grid=st.booleans(),
)
def test_every_point_is_on_the_grid_behind_the_start_and_before_the_last_token(
    length: int, start_groups: int, matched: int, stride: int, turn: int, is_fixed_grid: bool
):
    start = min(4 * start_groups, (length - 1) // 4 * 4)
    placement = evolve(PLACEMENT, stride_tokens=stride, is_fixed_grid=is_fixed_grid)
    captures = placement.captures(prompt(length, turn=min(turn, length - 1)), start, min(max(matched, start), length))
    assert captures == sorted(set(captures))
    assert all(start < point < length and (point - start) % 8 == 0 for point in captures)
