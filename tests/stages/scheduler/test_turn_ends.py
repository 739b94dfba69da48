"""What a choice leaves behind for the next turn: shadows, what of them is offered, and what that makes worthless."""

import numpy as np
import pytest

from graphs.step import StepInput
from stages.messages import Cancel, Submit
from stages.scheduler.nodes import subtree
from stages.settings import CacheSettings
from tests.sim.bench import Bench
from tests.sim.history_device import HistoryDevice
from tests.sim.scenes import answer, settings, words
from tests.sim.simkit import capacity, submit


@pytest.fixture(params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def bench_of(overlap: bool = False, max_snapshots: int = 8, **sizes: int) -> Bench:
    wanted = settings(overlap=overlap, cache=CacheSettings(max_snapshots=max_snapshots))
    return Bench(wanted, HistoryDevice(capacity(**{"num_slots": 25, **sizes})))


def decodes(steps: list[StepInput]) -> list[StepInput]:
    return [step for step in steps if step.key.family == "decode"]


def resumes(bench: Bench, prompt_ids: tuple[int, ...]) -> int:
    """Return how many tokens of a prompt the tree could give."""
    tree = bench.core.memory.tree
    assert tree is not None
    match = tree.match("", np.array(prompt_ids, np.int32), len(prompt_ids) - 1)
    return match.resume.end if match.resume is not None else 0


def test_a_decoding_choice_copies_its_state_just_before_a_group_begins(overlap: bool):
    bench = bench_of(overlap)
    given = decodes(bench.run(submit("a", words(9, 1), max_new_tokens=16)))
    assert [int(step.start[0]) for step in given] == list(range(9, 24))
    assert [int(step.start[0]) for step in given if len(step.copies.slots)] == [12, 16, 20]
    # From its own slot, to one that stays the same.
    pairs = {tuple(pair) for step in given for pair in step.copies.slots.tolist()}
    assert len(pairs) == 1
    ((source, target),) = pairs
    assert source == int(given[0].slots[0])
    assert target != source


@pytest.mark.parametrize("stops", [{"stop": ("never",)}, {"stop_regex": ("never",)}])
def test_a_choice_with_text_stops_keeps_its_state_at_the_last_two_groups_by_turns(overlap: bool, stops):
    bench = bench_of(overlap)
    given = decodes(bench.run(submit("a", words(9, 1), max_new_tokens=16, **stops)))
    targets = [int(step.copies.slots[0, 1]) for step in given if len(step.copies.slots)]
    assert len(targets) == 3
    assert targets[0] == targets[2] != targets[1]


def test_a_choice_of_one_token_has_no_shadow(overlap: bool):
    bench = bench_of(overlap)
    assert all(not len(step.copies.slots) for step in bench.run(submit("a", words(8, 1), max_new_tokens=1)))
    assert bench.core.load().used_slots == 0


@pytest.mark.parametrize("num_new", range(1, 10))
def test_the_end_of_a_turn_is_offered_where_a_group_ends_and_never_behind_what_was_read(num_new: int, overlap: bool):
    bench = bench_of(overlap)
    order = submit("a", words(16, 1), max_new_tokens=num_new)
    bench.run(order)
    num_read = 16 + num_new - 1
    expected = num_read - num_read % 4
    assert resumes(bench, order.prompt_ids + answer(order) + (1,)) == expected


@pytest.mark.parametrize("num_kept", range(1, 13))
def test_of_what_was_generated_behind_a_stop_string_nothing_is_offered(num_kept: int, overlap: bool):
    bench = bench_of(overlap)
    order = submit("a", words(17, 1), max_new_tokens=40, stop=("stop",))
    bench.send(order)
    while len(bench.answers.get("a", ())) < 12:
        bench.step()
    bench.core.cancel(Cancel("a", choice=0, num_generated=num_kept))
    list(bench.steps())
    # 28 tokens were read, and the state kept at 20 and 24; a step more, and at 24 and 28. The prompt's is at 16.
    kept = (16, 24, 28) if overlap else (16, 20, 24, 28)
    expected = max(point for point in kept if point <= 17 + num_kept)
    assert resumes(bench, order.prompt_ids + answer(order)) == expected
    # And nobody who goes on otherwise gets further than what both have.
    assert resumes(bench, order.prompt_ids + answer(order)[:num_kept] + (998,) * 20) == expected


def test_a_choice_that_ends_in_mid_page_leaves_its_page_to_the_tree_and_who_resumes_there_copies_it():
    bench = bench_of()
    order = submit("a", words(16, 1), max_new_tokens=5)
    bench.run(order)
    first, *_ = bench.run(submit("b", order.prompt_ids + answer(order) + words(9, 2)))
    assert first.start[0] == 20
    ((source, target),) = first.copies.pages.tolist()
    assert first.page_table[0, 2] == target
    assert source not in first.page_table[0].tolist()
    ((from_slot, to_slot),) = first.copies.slots.tolist()
    assert to_slot == first.slots[0] != from_slot


def test_a_choice_that_ends_at_the_end_of_a_page_leaves_nothing_to_copy_but_its_state():
    bench = bench_of()
    order = submit("a", words(16, 1), max_new_tokens=9)
    bench.run(order)
    first, *_ = bench.run(submit("b", order.prompt_ids + answer(order) + words(9, 2)))
    assert first.start[0] == 24
    assert not len(first.copies.pages)
    assert len(first.copies.slots) == 1


def test_a_capture_in_mid_page_saves_the_page_as_it_is_then():
    bench = bench_of()
    order = submit("a", words(16, 1), max_new_tokens=5)
    bench.run(order)
    # Resumed at 20 the grid's points are 28, 36, ... : each inside a page.
    bench.send(submit("b", order.prompt_ids + answer(order) + words(9, 2)))
    given = bench.step()
    assert given is not None
    assert given.copies.captures[:, :2].tolist() == [[0, 8]]
    ((source, target),) = given.copies.saves.tolist()
    assert given.page_table[0, 28 // 8] == source != target


def talk(bench: Bench, name: str, salt: int, num_turns: int) -> Submit:
    """Hold a conversation and return its last turn."""
    order = submit(f"{name}0", words(16, salt), max_new_tokens=9)
    bench.run(order)
    for turn in range(1, num_turns):
        order = submit(f"{name}{turn}", order.prompt_ids + answer(order) + words(7, 70), max_new_tokens=9)
        bench.run(order)
    return order


def test_the_turns_a_conversation_left_behind_go_before_what_others_need():
    # A first turn leaves two snapshots, where the prompt ends and where the turn ends, each later one leaves its end.
    bench = bench_of(max_snapshots=5, num_slots=24, num_pages=129)
    old = talk(bench, "old", 1, num_turns=1)
    long = talk(bench, "long", 2, num_turns=4)
    tree = bench.core.memory.tree
    assert tree is not None
    assert tree.num_snapshots == 5
    # Seven, for which there was no room, and still the older conversation's end is there, and the newer one's.
    assert resumes(bench, old.prompt_ids + answer(old) + (1,)) == 24
    assert resumes(bench, long.prompt_ids + answer(long) + (1,)) == len(long.prompt_ids) + 8


def test_what_a_second_conversation_branched_off_from_is_not_worthless():
    bench = bench_of(num_pages=129)
    first = submit("a", words(16, 1), max_new_tokens=9)
    bench.run(first)
    stem = first.prompt_ids + answer(first)
    for salt in (70, 80):
        bench.run(submit(f"b{salt}", stem + words(7, salt), max_new_tokens=9))
    tree = bench.core.memory.tree
    assert tree is not None
    root = tree._radix.roots[""]
    (end_of_first,) = [node for node in subtree(root) if node.end == 24 and node.has_snapshot]
    # The token sampled last is theirs in common; they part behind it.
    assert len(end_of_first.children[stem[24]].children) == 2
    assert not end_of_first.is_superseded
