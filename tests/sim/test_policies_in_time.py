"""What each schedule policy does to the instants of first tokens, with one request running at a time.

Such a place becomes free with nothing else to run, so these instants are the same with the next step planned ahead;
where they are not the test says why.
"""

import pytest

from stages.settings import PrioritySettings
from tests.sim.scenes import DECODE_S, PREFILL_S, Event, answer, firsts, make_device, play, settings, words
from tests.sim.simkit import submit

SHARED = words(40, 1)


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def four_that_wait() -> list[Event]:
    """Return a request that leaves SHARED in the cache, one that keeps the place until 11.0, and four behind it."""
    return [
        (0.0, submit("warm", SHARED + words(8, 2), max_new_tokens=1)),
        (10.0, submit("blocker", words(16, 3), max_new_tokens=5)),
        (10.1, submit("long", words(64, 4), max_new_tokens=4)),
        (10.2, submit("short", words(16, 5), max_new_tokens=2)),
        (10.3, submit("cached", SHARED + words(4, 6), max_new_tokens=8)),
        (10.4, submit("middle", words(32, 7), max_new_tokens=6)),
    ]


# How long each keeps the place: its prompt in chunks, then a decode step for all tokens but the first.
PREFILLS_S = {"long": 4 * PREFILL_S, "short": PREFILL_S, "cached": PREFILL_S, "middle": 2 * PREFILL_S}
DECODES_S = {"long": 3 * DECODE_S, "short": DECODE_S, "cached": 7 * DECODE_S, "middle": 5 * DECODE_S}


@pytest.mark.parametrize(
    ("policy", "order", "instants"),
    [
        ("fcfs", ("long", "short", "cached", "middle"), (13.0, 13.875, 14.5, 16.375)),
        # 40 of its 44 tokens are cached; nobody else has any.
        ("lpm", ("cached", "long", "short", "middle"), (11.5, 14.375, 15.25, 16.375)),
        # The only one below the root of the tree.
        ("dfs-weight", ("cached", "long", "short", "middle"), (11.5, 14.375, 15.25, 16.375)),
        # 4, 16, 32 and 64 tokens to compute.
        ("shortest-prefill-first", ("cached", "short", "middle", "long"), (11.5, 12.875, 14.0, 16.625)),
        ("spf", ("cached", "short", "middle", "long"), (11.5, 12.875, 14.0, 16.625)),
        # 8, 6, 4 and 2 tokens to generate.
        ("lof", ("cached", "middle", "long", "short"), (11.5, 13.375, 16.0, 16.875)),
        # Nobody has waited for long.
        ("hrrn", ("cached", "short", "middle", "long"), (11.5, 12.875, 14.0, 16.625)),
        # Without keys there is nothing to keep together.
        ("routing-key", ("long", "short", "cached", "middle"), (13.0, 13.875, 14.5, 16.375)),
        # Drawn; by its turn what helped the last one has been evicted for those before it.
        ("random", ("short", "middle", "long", "cached"), (11.5, 12.625, 15.25, 17.125)),
    ],
)
def test_a_policy_decides_who_is_next_whenever_the_place_is_free(
    policy: str, order: tuple[str, ...], instants: tuple[float, ...], overlap: bool
):
    wanted = settings(schedule_policy=policy, max_running_requests=1, overlap=overlap)
    first = firsts(play(wanted, make_device(), four_that_wait()))
    assert (first.pop("warm"), first.pop("blocker")) == (1.5, 10.5)
    assert first == dict(zip(order, instants, strict=True))
    at_s = 11.0
    for name in order:
        is_evicted = policy == "random" and name == "cached"
        assert first[name] == at_s + (3 * PREFILL_S if is_evicted else PREFILLS_S[name])
        at_s = first[name] + DECODES_S[name]


@pytest.mark.parametrize(
    ("policy", "long_s"),
    [
        ("fcfs", 2.5),
        # Each of the six was shorter, and there before its turn came.
        ("spf", 7.0),
        # At 2.5 the engine has served 56 tokens since it came, 56 / 48 of its prompt, against 19 / 16 of the next one;
        # at 3.25 it is 74 / 48 against 19 / 16.
        ("hrrn", 4.75),
    ],
)
def test_short_ones_that_keep_coming_hold_up_a_long_one_only_where_the_policy_can_starve(
    policy: str, long_s: float, overlap: bool
):
    events = [
        (0.0, submit("first", words(16, 3), max_new_tokens=5)),
        (0.1, submit("long", words(48, 4), max_new_tokens=1)),
        *((0.2 + 0.75 * index, submit(f"short{index}", words(16, 10 + index), max_new_tokens=3)) for index in range(6)),
    ]
    wanted = settings(schedule_policy=policy, max_running_requests=1, overlap=overlap)
    first = firsts(play(wanted, make_device(), events))
    assert first["long"] == long_s


@pytest.mark.parametrize(
    ("policy", "order"), [("lpm", ("q1", "p1", "p2", "p3", "cold")), ("dfs-weight", ("p1", "p2", "q1", "p3", "cold"))]
)
def test_the_branch_on_which_most_wait_goes_first_until_it_is_no_heavier(
    policy: str, order: tuple[str, ...], overlap: bool
):
    p, q = words(24, 1), words(24, 2)
    events = [
        (0.0, submit("p", p + words(8, 8), max_new_tokens=1)),
        (0.1, submit("q", q + words(8, 9), max_new_tokens=1)),
        (10.0, submit("blocker", words(16, 3), max_new_tokens=5)),
        (10.1, submit("cold", words(8, 23), max_new_tokens=2)),
        (10.2, submit("q1", q + words(8, 20), max_new_tokens=2)),
        *((10.3 + index / 10, submit(f"p{index}", p + words(8, 20 + index), max_new_tokens=2)) for index in (1, 2, 3)),
    ]
    wanted = settings(schedule_policy=policy, max_running_requests=1, overlap=overlap)
    heard = play(wanted, make_device(), events)
    # Each keeps the place for one prefill step, since 24 of its 32 tokens are cached, and one decode step.
    expected = {name: 11.0 + PREFILL_S + place * (PREFILL_S + DECODE_S) for place, name in enumerate(order)}
    assert {name: at_s for name, at_s in firsts(heard).items() if name in expected} == expected
    assert [heard[name].ended.usage.cached_tokens for name in order] == [24, 24, 24, 24, 0]


@pytest.mark.parametrize(
    ("policy", "order"), [("fcfs", ("keyless", "red", "blue")), ("routing-key", ("blue", "red", "keyless"))]
)
def test_the_key_that_runs_goes_first_and_those_without_a_key_last(policy: str, order: tuple[str, ...], overlap: bool):
    events = [
        (0.0, submit("running", words(16, 3), max_new_tokens=40, routing_key="blue")),
        (0.0, submit("blocker", words(16, 4), max_new_tokens=5)),
        (0.1, submit("keyless", words(16, 5), max_new_tokens=5)),
        (0.2, submit("red", words(16, 6), max_new_tokens=5, routing_key="red")),
        (0.3, submit("blue", words(16, 7), max_new_tokens=5, routing_key="blue")),
    ]
    wanted = settings(schedule_policy=policy, max_running_requests=2, overlap=overlap)
    first = firsts(play(wanted, make_device(), events))
    # Planned ahead, the running one's decode step stands before each newcomer's prefill.
    assert [first[name] for name in order] == ([1.625, 2.875, 4.125] if overlap else [1.5, 2.5, 3.5])


@pytest.mark.parametrize(
    ("low_values_first", "default", "order"),
    [
        (False, None, ("nine", "five", "zero", "none")),
        (False, 7, ("nine", "none", "five", "zero")),
        (True, None, ("zero", "five", "nine", "none")),
    ],
)
def test_better_priorities_go_first_and_one_without_any_last_or_where_its_default_is(
    low_values_first: bool, default: int | None, order: tuple[str, ...], overlap: bool
):
    events = [
        (0.0, submit("blocker", words(16, 3), max_new_tokens=5, priority=5)),
        (0.1, submit("none", words(16, 4), max_new_tokens=2)),
        (0.2, submit("zero", words(16, 5), max_new_tokens=2, priority=0)),
        (0.3, submit("five", words(16, 6), max_new_tokens=2, priority=5)),
        (0.4, submit("nine", words(16, 7), max_new_tokens=2, priority=9)),
    ]
    priority = PrioritySettings(low_values_first, default, preemption_threshold=None)
    wanted = settings(schedule_policy="priority", max_running_requests=1, overlap=overlap, priority=priority)
    first = firsts(play(wanted, make_device(), events))
    assert {name: first[name] for name in order} == dict(zip(order, (1.5, 2.125, 2.75, 3.375), strict=True))


def test_planning_ahead_costs_the_next_one_a_decode_step_where_an_end_token_could_not_be_known(overlap: bool):
    blocker = submit("blocker", words(16, 3), max_new_tokens=9)
    # It ends with its fourth token.
    stopped = submit("blocker", words(16, 3), max_new_tokens=9, stop_token_ids=frozenset({answer(blocker)[3]}))
    wanted = settings(schedule_policy="fcfs", max_running_requests=1, overlap=overlap)
    heard = play(wanted, make_device(), [(0.0, stopped), (0.1, submit("next", words(16, 4), max_new_tokens=1))])
    assert heard["blocker"].times_s == (0.5, 0.625, 0.75, 0.875)
    assert heard["next"].times_s == (0.875 + (DECODE_S if overlap else 0.0) + PREFILL_S,)
