"""Preemption and retraction at exact instants: who gives way, when, and how little is computed again."""

import pytest

from stages.messages import Usage
from stages.settings import PrioritySettings
from tests.sim.history_device import HistoryDevice
from tests.sim.scenes import make_device, play, prefilled, settings, words
from tests.sim.simkit import Heard, submit


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def two_at_odds(overlap: bool, threshold: int | None) -> tuple[HistoryDevice, dict[str, Heard]]:
    """Play one of priority 0 with 21 prompt tokens beside one of priority 20 that comes at 2.05."""
    device = make_device()
    events = [
        (0.0, submit("low", words(21, 1), max_new_tokens=20, priority=0)),
        (2.05, submit("high", words(16, 2), max_new_tokens=3, priority=20)),
    ]
    priority = PrioritySettings(preemption_threshold=threshold)
    return device, play(settings(max_running_requests=1, overlap=overlap, priority=priority), device, events)


def test_a_preempted_choice_goes_on_from_the_last_open_group_and_says_nothing_twice(overlap: bool):
    device, heard = two_at_odds(overlap, threshold=10)
    low, high = heard["low"], heard["high"]
    # The decode steps that are out when it comes are finished: one, or two with the next planned ahead.
    before = 11 if overlap else 10
    gave_way_s = 1.0 + 0.125 * (before - 1)
    assert low.times_s[:before] == tuple(1.0 + 0.125 * step for step in range(before))
    assert high.times_s == (gave_way_s + 0.5, gave_way_s + 0.625, gave_way_s + 0.75)
    # The resume is one prefill step, and then a token each decode step again.
    assert low.times_s[before:] == tuple(gave_way_s + 1.25 + 0.125 * step for step in range(20 - before))
    # Of its 31 or 32 tokens 28 were kept: those up to the last group that had been closed.
    (resumed,) = [step for step in device.steps[-20:] if step.key.family == "prefill" and step.start[0]]
    assert (resumed.start.tolist(), resumed.num_valid.tolist()) == ([28], [21 + before - 28])
    assert (low.ended.usage, high.ended.usage) == (Usage(21, 20, num_retractions=1), Usage(16, 3))


@pytest.mark.parametrize("threshold", [20, 21, None])
def test_nobody_gives_way_to_one_that_is_better_by_no_more_than_the_threshold(threshold: int | None, overlap: bool):
    _, heard = two_at_odds(overlap, threshold)
    assert heard["low"].times_s[-1] == 1.0 + 19 * 0.125
    assert heard["high"].times_s[0] == 1.0 + 19 * 0.125 + 0.5
    assert heard["low"].ended.usage.num_retractions == 0


def test_one_that_is_better_by_one_more_than_the_threshold_takes_the_place(overlap: bool):
    _, heard = two_at_odds(overlap, threshold=19)
    assert heard["low"].ended.usage.num_retractions == 1


def test_of_several_the_worst_and_newest_gives_way_and_only_as_many_as_it_takes(overlap: bool):
    events = [
        (0.0, submit("fair", words(8, 1), max_new_tokens=30, priority=5)),
        (0.0, submit("old", words(8, 2), max_new_tokens=30, priority=0)),
        (0.0, submit("new", words(8, 3), max_new_tokens=30, priority=0)),
        (2.05, submit("high", words(16, 4), max_new_tokens=3, priority=20)),
    ]
    wanted = settings(max_running_requests=3, overlap=overlap, priority=PrioritySettings(preemption_threshold=0))
    heard = play(wanted, make_device(), events)
    assert {name: one.ended.usage.num_retractions for name, one in heard.items()} == {
        "fair": 0,
        "old": 0,
        "new": 1,
        "high": 0,
    }


def test_a_preempted_choice_comes_back_before_what_waits_at_its_rank(overlap: bool):
    events = [
        (0.0, submit("low", words(16, 1), max_new_tokens=20, priority=0)),
        (0.1, submit("other", words(16, 2), max_new_tokens=2, priority=0)),
        (1.05, submit("high", words(16, 3), max_new_tokens=3, priority=20)),
    ]
    wanted = settings(max_running_requests=1, overlap=overlap, priority=PrioritySettings())
    heard = play(wanted, make_device(), events)
    assert list(heard) == ["high", "low", "other"]
    assert heard["other"].times_s[0] == heard["low"].times_s[-1] + 0.5


def test_nobody_is_preempted_where_that_would_not_be_enough(overlap: bool):
    # Of 22 pages the good one may use fifteen, the bad one six: they and the one left do not do for a prompt of eleven.
    events = [
        (0.0, submit("good", words(96, 1), max_new_tokens=24, priority=20)),
        (0.0, submit("bad", words(8, 2), max_new_tokens=40, priority=0)),
        (4.05, submit("big", words(80, 3), max_new_tokens=3, priority=20)),
    ]
    wanted = settings(overlap=overlap, priority=PrioritySettings(), cache=None, schedule_conservativeness=2.0)
    heard = play(wanted, make_device(num_pages=23), events)
    assert heard["bad"].ended.usage.num_retractions == 0
    assert heard["bad"].times_s[0] == 0.5
    assert heard["big"].times_s[0] > heard["good"].times_s[-1] > 5.0


def test_a_retracted_choice_resumes_from_what_the_cache_kept_when_the_other_has_ended(overlap: bool):
    device = make_device(num_pages=6)
    events = [
        (0.0, submit("a", words(9, 1), max_new_tokens=16)),
        (0.0, submit("b", words(9, 2), max_new_tokens=16)),
    ]
    heard = play(settings(overlap=overlap, schedule_conservativeness=0.0), device, events)
    stays, goes = (heard[name] for name in sorted(heard, key=lambda name: heard[name].ended.usage.num_retractions))
    # Both have two of the five pages. At 1.375 their eighth tokens would be written as the 17th: there is one page.
    assert stays.times_s == tuple(0.5 + 0.125 * step for step in range(16))
    assert goes.times_s == (
        *(0.5 + 0.125 * step for step in range(8)),
        *(2.375 + 0.5 + 0.125 * step for step in range(8)),
    )
    # Its state ended a group, so all it had read is kept: one token is computed, the one it had not read yet.
    (resumed,) = [step for step in device.steps if step.key.family == "prefill" and step.start[0]]
    assert (resumed.start.tolist(), resumed.num_valid.tolist()) == ([16], [1])
    assert prefilled(device) == 9 + 9 + 1
    assert goes.ended.usage == Usage(9, 16, num_retractions=1)


def test_without_a_cache_a_retracted_choice_computes_all_of_its_tokens_again(overlap: bool):
    device = make_device(num_pages=6)
    events = [
        (0.0, submit("a", words(9, 1), max_new_tokens=16)),
        (0.0, submit("b", words(9, 2), max_new_tokens=16)),
    ]
    heard = play(settings(overlap=overlap, schedule_conservativeness=0.0, cache=None), device, events)
    assert sorted(one.ended.usage.num_retractions for one in heard.values()) == [0, 1]
    # Seventeen are two chunks.
    assert prefilled(device) == 9 + 9 + 17
    assert max(one.times_s[8] for one in heard.values()) == 2.375 + 2 * 0.5


def test_of_equals_the_one_with_fewest_tokens_gives_way(overlap: bool):
    events = [
        (0.0, submit("ahead", words(9, 1), max_new_tokens=16)),
        (0.6, submit("behind", words(9, 2), max_new_tokens=16)),
    ]
    wanted = settings(overlap=overlap, schedule_conservativeness=0.0)
    heard = play(wanted, make_device(num_pages=6), events)
    assert {name: one.ended.usage.num_retractions for name, one in heard.items()} == {"ahead": 0, "behind": 1}
