"""When a client hears that its prompt was let in, and how much of it was cached, at exact instants."""

from functools import partial

import pytest

from stages.messages import Usage
from tests.sim.history_device import HistoryDevice
from tests.sim.scenes import make_device, play, settings, words
from tests.sim.simkit import capacity, submit

asking = partial(submit, tells_start=True)


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def test_a_start_is_told_before_the_prompt_is_computed_with_what_was_cached(overlap: bool) -> None:
    shared = words(40, 1)
    events = [(0.0, asking("first", shared)), (9.0, asking("again", shared)), (18.0, submit("silent", shared))]
    heard = play(settings(overlap=overlap), make_device(), events)
    assert heard["first"].starts == ((0.0, Usage(40, 0)),)
    assert heard["first"].times_s[0] == 1.5
    assert heard["again"].starts == ((9.0, Usage(40, 0, 32)),)
    assert heard["again"].ended.usage.cached_tokens == 32
    assert heard["silent"].starts == ()


def test_one_that_waits_hears_it_when_it_is_let_in_and_not_when_it_comes(overlap: bool) -> None:
    events = [(0.0, asking("first", words(16, 1))), (0.25, asking("second", words(16, 2)))]
    heard = play(settings(overlap=overlap, max_running_requests=1), make_device(), events)
    ((start_s, usage),) = heard["second"].starts
    assert start_s == heard["first"].times_s[-1]
    assert usage == Usage(16, 0)
    assert heard["second"].times_s[0] == start_s + 0.5


def test_one_that_never_gets_in_hears_only_its_end(overlap: bool) -> None:
    events = [(0.0, asking("first", words(16, 1))), (0.25, asking("second", words(16, 2), wait_until_s=0.375))]
    heard = play(settings(overlap=overlap, max_running_requests=1), make_device(), events)
    assert heard["second"].starts == ()
    assert heard["second"].ended.finish.kind == "abort"


def test_a_retracted_choice_hears_its_start_once(overlap: bool) -> None:
    orders = [asking(f"r{index}", words(12, index + 1), max_new_tokens=30) for index in range(4)]
    device = HistoryDevice(capacity(num_pages=14), lambda step: 0.125)
    wanted = settings(overlap=overlap, schedule_conservativeness=0.0, cache=None)
    heard = play(wanted, device, [(0.0, order) for order in orders])
    assert sum(one.ended.usage.num_retractions for one in heard.values()) > 0
    assert [len(one.starts) for one in heard.values()] == [1, 1, 1, 1]
