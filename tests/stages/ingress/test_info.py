import pytest
from attrs import evolve

from stages.errors import InvalidRequest, NotFound
from stages.ingress import info as facts
from tests.stages.ingress.http import LOAD, fake_info

INFO = fake_info(lambda: "ready")


def test_the_served_model_is_listed_and_found_by_its_name_only() -> None:
    listed = facts.models(INFO)["data"]
    assert listed == [facts.model(INFO, "fake")]
    with pytest.raises(NotFound) as caught:
        facts.model(INFO, "Fake")
    assert (caught.value.param, caught.value.code, caught.value.status) == ("model", "model_not_found", 404)


def test_the_served_model_is_found_by_its_other_names_too() -> None:
    info = evolve(INFO, model=evolve(INFO.model, aliases=("claude-*", "gpt-4o")))
    for name in ("claude-haiku-4-5[1m]", "gpt-4o"):
        assert facts.model(info, name) == facts.model(INFO, "fake")
    for name in ("Claude-x", "gpt-4o-mini", "my-claude-x", "*"):
        with pytest.raises(NotFound):
            facts.model(info, name)


def test_server_info_holds_what_sglangs_benchmark_reads() -> None:
    body = facts.server_info(INFO)
    assert body["max_total_num_tokens"] == 8 * 64
    assert body["version"] == "0.1.0"
    assert body["port"] == 30000
    (state,) = body["internal_states"]  # type: ignore[misc]
    assert state["last_gen_throughput"] == 12.35
    assert state["effective_max_running_requests_per_dp"] == 32


def test_loads_hold_the_core_always_and_other_sections_on_demand() -> None:
    for include in ("all", "", "core,memory,queues,disagg"):
        (load,) = facts.loads(INFO, 0.0, include)["loads"]  # type: ignore[misc]
        assert load["num_running_reqs"] == 3
        assert load["queues"]["waiting"] == 4
        assert load["memory"]["token_capacity"] == 512
    (core,) = facts.loads(INFO, 0.0, "core")["loads"]  # type: ignore[misc]
    assert {"memory", "queues", "disaggregation"} & set(core) == set()
    assert (core["num_used_tokens"], core["max_total_num_tokens"], core["token_usage"]) == (128, 512, 0.25)


def test_what_only_the_cache_holds_counts_as_free() -> None:
    info = evolve(INFO, load=lambda: evolve(LOAD, used_pages=6, evictable_pages=5))
    (core,) = facts.loads(info, 0.0, "core")["loads"]  # type: ignore[misc]
    assert (core["num_used_tokens"], core["num_total_tokens"], core["token_usage"]) == (64, 64 + 50, 0.125)
    assert facts.get_load(info)[0]["num_tokens"] == 64 + 50


def test_the_hit_rate_is_told_to_four_places() -> None:
    (core,) = facts.loads(INFO, 0.0, "core")["loads"]  # type: ignore[misc]
    (state,) = facts.server_info(INFO)["internal_states"]  # type: ignore[misc]
    assert core["cache_hit_rate"] == state["cache_hit_rate"] == 0.1235


@pytest.mark.parametrize(("is_paused", "num_paused"), [(True, 3), (False, 0)])
def test_retracted_and_paused_requests_are_told(is_paused: bool, num_paused: int) -> None:
    info = evolve(INFO, load=lambda: evolve(LOAD, retracted=2, is_paused=is_paused))
    (load,) = facts.loads(info, 0.0)["loads"]  # type: ignore[misc]
    assert load["queues"] == {
        "waiting": 4, "grammar": 0, "paused": num_paused, "retracted": 2, "prealloc_ready": 0,
    }  # fmt: skip
    (state,) = facts.server_info(info)["internal_states"]  # type: ignore[misc]
    assert (state["num_retracted_reqs"], state["is_paused"]) == (2, is_paused)


def test_loads_tell_the_time_in_iso_form_and_only_of_ranks_that_exist() -> None:
    assert facts.loads(INFO, 0.0)["timestamp"] == "1970-01-01T00:00:00+00:00"
    assert facts.loads(INFO, 0.0, dp_rank=1)["loads"] == []


def test_an_unknown_section_is_named() -> None:
    with pytest.raises(InvalidRequest, match="Unknown section: bogus"):
        facts.loads(INFO, 0.0, "core,bogus")


def test_loads_as_gauges_hold_every_number_once_with_its_rank() -> None:
    lines = facts.loads_as_gauges(facts.loads(INFO, 0.0)).splitlines()
    assert 'sglang_num_running_reqs{dp_rank="0"} 3' in lines
    assert 'sglang_memory_token_capacity{dp_rank="0"} 512' in lines
    assert 'sglang_queues_waiting{dp_rank="0"} 4' in lines
    assert len([line for line in lines if not line.startswith("#")]) == len(lines) / 2
    assert not any("timestamp" in line or "mode" in line for line in lines)
