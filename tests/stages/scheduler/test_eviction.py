"""The eviction policies: what each ranks first, and what every file in the folder must be."""

from pathlib import Path

import pytest
from attrs import evolve

from stages.errors import ConfigError
from stages.scheduler import eviction
from stages.scheduler.eviction import NodeFacts, eviction_names, load_eviction

NODE = NodeFacts(last_access=10, created=5, hits=1, priority=0, start=0, end=64, history_tokens=640)
PARAMETERS = {"tlru": {"threshold": 256.0, "next_prompt_estimate": 64.0}}
TLRU = load_eviction("tlru", PARAMETERS["tlru"])


def first(name: str, *nodes: NodeFacts, **parameters: float) -> NodeFacts:
    policy = load_eviction(name, parameters)
    return min(nodes, key=policy.key)


def test_every_file_in_the_folder_is_a_policy():
    files = {path.stem for path in Path(eviction.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(eviction_names()) == {name.replace("_", "-") for name in files}
    assert files == {"lru", "lfu", "slru", "tlru", "priority", "fifo", "mru", "filo"}


@pytest.mark.parametrize("name", eviction_names())
def test_a_policy_ranks_by_numbers_alone_and_says_the_same_twice(name: str):
    policy = load_eviction(name, PARAMETERS.get(name, {}))
    key = policy.key(NODE)
    assert key
    assert all(isinstance(part, int | float) for part in key)
    assert policy.key(evolve(NODE)) == key
    assert load_eviction(name, PARAMETERS.get(name, {})) == policy


@pytest.mark.parametrize("name", eviction_names())
def test_a_policy_orders_any_two_nodes(name: str):
    policy = load_eviction(name, PARAMETERS.get(name, {}))
    other = NodeFacts(last_access=11, created=6, hits=2, priority=3, start=600, end=640, history_tokens=640)
    assert policy.key(NODE) != policy.key(other)
    assert len(policy.key(NODE)) == len(policy.key(other))


@pytest.mark.parametrize("name", eviction_names())
def test_a_parameter_nobody_knows_is_refused_by_name(name: str):
    with pytest.raises(ConfigError, match="has no parameter 'shape'"):
        load_eviction(name, {"shape": 1.0})


def test_a_policy_nobody_knows_is_refused_by_name():
    with pytest.raises(ConfigError, match="there is no policy 'best'"):
        load_eviction("best", {})


def test_lru_takes_the_least_recently_used():
    assert first("lru", NODE, evolve(NODE, last_access=9, hits=9)).last_access == 9


def test_mru_takes_the_most_recently_used():
    assert first("mru", NODE, evolve(NODE, last_access=11)).last_access == 11


def test_fifo_takes_the_oldest_however_recently_used():
    assert first("fifo", NODE, evolve(NODE, created=4, last_access=99)).created == 4


def test_filo_takes_the_newest():
    assert first("filo", NODE, evolve(NODE, created=6, last_access=99)).created == 6


def test_lfu_takes_the_least_often_used_and_then_the_least_recently():
    assert first("lfu", NODE, evolve(NODE, hits=2, last_access=1)).hits == 1
    assert first("lfu", NODE, evolve(NODE, last_access=9)).last_access == 9


def test_priority_takes_the_worst_and_then_the_least_recently_used():
    assert first("priority", NODE, evolve(NODE, priority=-1, last_access=99)).priority == -1
    assert first("priority", NODE, evolve(NODE, last_access=9)).last_access == 9


def test_slru_protects_from_the_second_hit_on_and_counts_no_further():
    assert first("slru", NODE, evolve(NODE, hits=2, last_access=1)).hits == 1
    assert first("slru", evolve(NODE, hits=2), evolve(NODE, hits=9, last_access=9)).hits == 9


def test_slru_protects_from_the_threshold_on():
    assert first("slru", evolve(NODE, hits=2), evolve(NODE, hits=3, last_access=1), protected_threshold=3).hits == 2
    with pytest.raises(ConfigError, match="protected_threshold"):
        load_eviction("slru", {"protected_threshold": 0})


def test_tlru_takes_first_what_the_next_turn_can_do_without():
    # 640 tokens and 64 to come, of which 256 may be computed: positions from 448 on can go.
    safe, needed = evolve(NODE, start=448, last_access=99), evolve(NODE, start=447)
    assert min(needed, safe, key=TLRU.key) is safe
    assert min(needed, evolve(needed, last_access=9), key=TLRU.key).last_access == 9
    assert min(safe, evolve(safe, last_access=9), key=TLRU.key).last_access == 9


def test_tlru_can_do_without_all_of_a_short_conversation():
    assert TLRU.key(evolve(NODE, start=0, history_tokens=192)) == (False, 10)
    assert TLRU.key(evolve(NODE, start=0, history_tokens=193)) == (True, 10)


@pytest.mark.parametrize(("threshold", "estimate"), [(64, 64), (64, 65), (64, -1), (0, 0)])
def test_tlru_refuses_an_estimate_outside_its_threshold(threshold: float, estimate: float):
    with pytest.raises(ConfigError, match="0 <= next_prompt_estimate < threshold"):
        load_eviction("tlru", {"threshold": threshold, "next_prompt_estimate": estimate})


def test_tlru_takes_an_estimate_of_nothing_and_needs_both_parameters():
    load_eviction("tlru", {"threshold": 1, "next_prompt_estimate": 0})
    for name, missing in (("threshold", "next_prompt_estimate"), ("next_prompt_estimate", "threshold")):
        with pytest.raises(ConfigError, match=f"tlru needs the parameter '{missing}'"):
            load_eviction("tlru", {name: 1})
