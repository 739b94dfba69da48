"""The prefix cache at exact instants: conversations, sessions, bursts, choices, and what is computed for them."""

from functools import partial
from itertools import pairwise

import pytest
import trio
from attrs import evolve

from stages.messages import Cancel, CloseSession, OpenSession, Sampling, Submit
from stages.settings import CacheSettings
from tests.sim.scenes import Act, Event, answer, make_device, play, prefilled, settings, words
from tests.sim.simkit import Heard, SimEngine, run_sim, sim_engine, submit

SHARED = words(40, 1)


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def turn_after(order: Submit, name: str, num_new: int = 4) -> Submit:
    """Return the next turn of a conversation: its prompt, its answer, and num_new tokens of the user's."""
    return submit(name, order.prompt_ids + answer(order) + words(num_new, 77), session=order.session)


# --- conversations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_answered", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
@pytest.mark.parametrize("length", [39, 40, 41])
def test_a_next_turn_computes_its_new_tokens_the_last_answered_one_and_at_most_an_open_group(
    length: int, num_answered: int, overlap: bool
):
    first = submit("first", words(length, 1), max_new_tokens=num_answered)
    second = turn_after(first, "second")
    device = make_device()
    heard = play(settings(overlap=overlap), device, [(0.0, first), (20.0, second)])
    # The last answered token was never read; before it, up to three tokens are in a group that was open.
    read = length + num_answered - 1
    # A decode step keeps the state that ended a group; without one there is the last grid point of the prompt.
    expected = read - read % 4 if num_answered > 1 or read % 4 == 0 else (length - 1) // 8 * 8
    assert heard["second"].ended.usage.cached_tokens == expected
    assert prefilled(device) == length + len(second.prompt_ids) - expected
    assert heard["second"].times_s[0] == 20.5


def test_a_next_turn_sent_at_once_waits_for_what_the_step_in_flight_still_holds(overlap: bool):
    first = submit("first", words(40, 1), max_new_tokens=20)
    said = answer(first)[:6]
    first = evolve(first, stop_token_ids=frozenset({said[-1]}))
    second = submit("second", first.prompt_ids + said + words(4, 77))
    device = make_device()
    # The first hears its end at 2.125; ahead of that a step was planned that reads the end token.
    heard = play(settings(overlap=overlap), device, [(0.0, first), (2.126, second)])
    assert heard["first"].times_s[-1] == 2.125
    assert heard["second"].ended.usage.cached_tokens == 44
    assert prefilled(device) == 40 + 6
    assert heard["second"].times_s[0] == (2.25 if overlap else 2.126) + 0.5


def test_a_prompt_that_parts_before_what_the_step_in_flight_holds_does_not_wait(overlap: bool):
    first = submit("first", words(40, 1), max_new_tokens=20)
    said = answer(first)[:6]
    first = evolve(first, stop_token_ids=frozenset({said[-1]}))
    second = submit("second", first.prompt_ids[:39] + words(9, 77))
    heard = play(settings(overlap=overlap), make_device(), [(0.0, first), (2.126, second)])
    assert heard["second"].ended.usage.cached_tokens == 32


def test_a_conversation_of_ten_turns_computes_each_token_once_but_the_open_groups(overlap: bool):
    orders = [submit("turn0", words(40, 1), max_new_tokens=6)]
    for index in range(1, 10):
        orders.append(turn_after(orders[-1], f"turn{index}", 7))
    device = make_device(num_pages=129)
    heard = play(settings(overlap=overlap), device, [(20.0 * index, order) for index, order in enumerate(orders)])
    for before, order in pairwise(orders):
        read = len(before.prompt_ids) + before.max_new_tokens - 1
        assert heard[order.key.request_id].ended.usage.cached_tokens == read - read % 4
    lost = sum((len(order.prompt_ids) + order.max_new_tokens - 1) % 4 + 1 for order in orders[:-1])
    assert prefilled(device) == 40 + 9 * 7 + lost


def test_the_same_prompt_again_computes_no_more_than_its_last_page(overlap: bool):
    device = make_device()
    events = [(0.0, submit("first", SHARED)), (9.0, submit("again", SHARED))]
    heard = play(settings(overlap=overlap), device, events)
    assert heard["again"].ended.usage.cached_tokens == 32
    assert heard["again"].times_s[0] == 9.5


def test_a_third_prompt_resumes_where_the_second_one_diverged(overlap: bool):
    first = submit("first", words(60, 1), max_new_tokens=1)
    second = submit("second", words(27, 1) + words(20, 2), max_new_tokens=1)
    third = submit("third", words(27, 1) + words(20, 3), max_new_tokens=1)
    heard = play(settings(overlap=overlap), make_device(), [(0.0, first), (9.0, second), (18.0, third)])
    # Nobody could know at the first; the second leaves a snapshot at the last grid point that both agree on.
    assert [heard[name].ended.usage.cached_tokens for name in ("first", "second", "third")] == [0, 0, 24]


def test_prompts_of_different_namespaces_share_nothing(overlap: bool):
    device = make_device()
    events = [(9.0 * index, submit(salt, SHARED, namespace=salt)) for index, salt in enumerate(("", "a", "b"))]
    heard = play(settings(overlap=overlap), device, events)
    assert [one.ended.usage.cached_tokens for one in heard.values()] == [0, 0, 0]
    assert prefilled(device) == 3 * 40


# --- sharing --------------------------------------------------------------------------------------------------------


def burst(num: int) -> list[Event]:
    return [(0.0, submit(f"b{index}", SHARED + words(8, 20 + index), max_new_tokens=1)) for index in range(num)]


def test_a_burst_with_a_common_prefix_computes_it_once(overlap: bool):
    device = make_device(num_pages=129)
    heard = play(settings(overlap=overlap), device, burst(5))
    assert prefilled(device) == 48 + 4 * 8
    # Three chunks of the first, then one step of all the others.
    assert sorted(one.times_s[0] for one in heard.values()) == [1.5, 2.0, 2.0, 2.0, 2.0]
    assert sorted(one.ended.usage.cached_tokens for one in heard.values()) == [0, 40, 40, 40, 40]


def test_whoever_comes_while_the_prefix_is_being_computed_waits_for_it_too(overlap: bool):
    device = make_device(num_pages=129)
    (first, second) = burst(2)
    heard = play(settings(overlap=overlap), device, [first, (1.1, second[1])])
    assert heard["b1"].times_s == (2.0,)
    assert prefilled(device) == 48 + 8


def test_a_stranger_overtakes_those_who_wait_for_a_shared_prefix(overlap: bool):
    device = make_device(num_pages=129)
    events = [*burst(3), (0.1, submit("stranger", words(8, 90), max_new_tokens=1))]
    heard = play(settings(overlap=overlap, max_running_requests=2), device, events)
    # It needs no longer a step than the chunk that the first one's prompt takes next.
    assert heard["stranger"].times_s == (1.0,)
    assert prefilled(device) == 48 + 2 * 8 + 8


@pytest.mark.parametrize(("leave_s", "computed_s", "kept"), [(0.2, 0.5, 16), (0.7, 1.0, 32), (2.7, 3.0, 88)])
def test_when_the_first_of_a_burst_is_cancelled_the_next_goes_on_from_what_it_had_computed(
    leave_s: float, computed_s: float, kept: int, overlap: bool
):
    device = make_device(num_pages=129)
    prompts = [words(88, 1) + words(8, 20 + index) for index in range(4)]
    events = [(index / 100, submit(f"b{index}", prompt, max_new_tokens=1)) for index, prompt in enumerate(prompts)]

    async def cancel(engine: SimEngine) -> None:
        engine.cancel(Cancel("b0", deliver=True))

    heard = play(settings(overlap=overlap), device, events, {leave_s: cancel})
    assert heard.pop("b0").ended.usage.completion_tokens == 0
    if kept < 88:
        # The second computes the rest of what they share and its own; then the others their own, in one step.
        assert prefilled(device) == kept + (96 - kept) + 2 * 8
        assert [heard[f"b{index}"].ended.usage.cached_tokens for index in (1, 2, 3)] == [kept, 88, 88]
        own_s = computed_s + 0.5 * (96 - kept) / 16
        assert [heard[f"b{index}"].times_s[0] for index in (1, 2, 3)] == [own_s, own_s + 0.5, own_s + 0.5]
    else:
        # The step that was out takes the snapshot that they wait for.
        assert prefilled(device) == 96 + 3 * 8
        assert [heard[f"b{index}"].times_s[0] for index in (1, 2, 3)] == [computed_s + 0.5] * 3


def test_four_choices_of_a_prompt_compute_it_once_and_each_draws_its_own(overlap: bool):
    device = make_device(num_pages=129)
    orders = tuple(
        submit("n", (*SHARED, 5), choice=choice, seed=choice, sampling=Sampling(temperature=1.0)) for choice in range(4)
    )

    async def main() -> tuple[Heard, ...]:
        async with sim_engine(settings(overlap=overlap), device) as engine:
            return await engine.ask_choices(orders)

    heard = run_sim(main)
    assert [one.token_ids for one in heard] == [answer(order) for order in orders]
    # The last token of a prompt is always computed; 40 of its 41 are shared.
    assert prefilled(device) == 41 + 3
    assert [one.ended.usage.cached_tokens for one in heard] == [0, 40, 40, 40]
    assert [one.times_s[0] for one in heard] == [1.5] + [2.125] * 3


# --- sessions -------------------------------------------------------------------------------------------------------


def under_pressure(
    overlap: bool, sessions: tuple[str, ...], acts: dict[float, Act] | None = None, max_pinned: int = 2
) -> dict[str, int]:
    """Play a turn of each conversation, then what fills all four snapshots, then a next turn of each.

    Returns how much of each next turn was cached.
    """
    firsts = [submit(name, words(40, salt), session=name or None) for salt, name in enumerate((*sessions, ""))]
    firsts = [order if order.session else submit("none", order.prompt_ids) for order in firsts]
    noise = [(100.0 + 3 * index, submit(f"noise{index}", words(40, 50 + index))) for index in range(4)]
    events = [
        *((5.0 * index, order) for index, order in enumerate(firsts)),
        *noise,
        *((200.0 + 5 * index, turn_after(order, f"{order.key.request_id}2")) for index, order in enumerate(firsts)),
    ]
    cache = CacheSettings(max_snapshots=4, max_pinned=max_pinned)
    wanted = settings(overlap=overlap, max_running_requests=2, cache=cache)
    heard = play(wanted, make_device(num_slots=9), events, acts)
    return {order.key.request_id: heard[f"{order.key.request_id}2"].ended.usage.cached_tokens for order in firsts}


async def close(engine: SimEngine, session: str) -> None:
    assert (await engine.order(CloseSession(session))).is_done


async def open_for(engine: SimEngine, session: str, timeout_s: float) -> None:
    assert (await engine.order(OpenSession(session, timeout_s))).text == session


def test_what_a_session_pins_outlives_what_evicts_all_others(overlap: bool):
    assert under_pressure(overlap, ("s",)) == {"s": 40, "none": 0}


def test_a_closed_session_is_evicted_like_all_others(overlap: bool):
    assert under_pressure(overlap, ("s",), {50.0: partial(close, session="s")}) == {"s": 0, "none": 0}


@pytest.mark.parametrize(("timeout_s", "cached"), [(90.0, 0), (250.0, 40)])
def test_a_session_that_was_idle_for_too_long_is_closed(timeout_s: float, cached: int, overlap: bool):
    # Its turn ends at 1.875, the pressure begins at 100.
    acts = {0.0: partial(open_for, session="s", timeout_s=timeout_s)}
    assert under_pressure(overlap, ("s",), acts)["s"] == cached


def test_of_more_sessions_than_may_pin_the_one_idle_for_longest_loses_its_pin(overlap: bool):
    assert under_pressure(overlap, ("old", "new"), max_pinned=1) == {"old": 0, "new": 40, "none": 0}


def test_a_session_with_a_new_turn_pins_that_and_no_longer_the_one_before(overlap: bool):
    first = submit("first", words(40, 1), session="s")
    second = turn_after(first, "second")
    held: list[int] = []

    async def look(engine: SimEngine) -> None:
        await trio.sleep(0.0)
        tree = engine.core.memory.tree
        assert tree is not None
        held.append(tree.num_snapshots - tree.num_evictable_snapshots)

    wanted = settings(overlap=overlap)
    play(wanted, make_device(), [(0.0, first), (10.0, second)], {5.0: look, 20.0: look})
    assert held == [1, 1]


def test_a_pin_gives_way_to_a_request_that_could_not_run_otherwise(overlap: bool):
    first = submit("first", words(40, 1), session="s")
    # All 16 pages: the pin's six would not leave enough.
    big = submit("big", words(120, 2), max_new_tokens=8)
    device = make_device(num_pages=17)
    heard = play(settings(overlap=overlap), device, [(0.0, first), (10.0, big), (30.0, turn_after(first, "second"))])
    assert heard["big"].ended.finish.kind == "length"
    assert heard["big"].times_s[0] == 10.0 + 8 * 0.5
    assert heard["second"].ended.usage.cached_tokens == 0
