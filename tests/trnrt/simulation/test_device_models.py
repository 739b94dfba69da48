import json
from pathlib import Path

import pytest
from attrs import evolve

from graphs.keys import GraphKey
from stages.errors import ConfigError
from stages.settings import CacheSettings, SchedulerSettings
from tests.trnrt.simulation.models import TABLE, linear
from trnrt.simulation.device_models import DEVICE_MODELS, load_device_model, to_table

SETTINGS = SchedulerSettings(max_running_requests=4, chunked_prefill_size_tokens=256)


@pytest.mark.parametrize(
    ("name", "batch", "tokens_per_s"),
    [
        *(("trn2-tp32", *row) for row in [(1, 140), (8, 521), (32, 925), (64, 1335)]),
        *(("trn2-tp64", *row) for row in [(1, 168), (8, 779), (32, 1547), (64, 2252)]),
    ],
)
def test_decode_at_8k_gives_the_roofline_tables_rates(name: str, batch: int, tokens_per_s: float):
    key = GraphKey("decode", batch, 1, 8192 // 64, "greedy")

    assert batch / load_device_model(name).step_seconds(key) == pytest.approx(tokens_per_s, rel=0.025)


def test_a_long_context_costs_its_index_keys_on_every_rank():
    model = load_device_model("trn2-tp32")
    at_8k, at_128k = (
        model.step_seconds(GraphKey("decode", 64, 1, pages, "greedy")) for pages in (8192 // 64, 131_072 // 64)
    )

    assert at_128k - at_8k == pytest.approx(64 * (131_072 - 8192) * 704 / (725e9 * 0.6))


def test_a_large_chunk_is_bound_by_computing_and_a_small_one_by_reading_weights():
    model = load_device_model("trn2-tp32")
    small, middle, large = (
        model.step_seconds(GraphKey("prefill", 1, tokens, 128, "greedy")) for tokens in (128, 256, 8192)
    )

    assert middle < 1.2 * small
    assert large > 8192 * 33.4e9 / (32 * 79e12)


def test_the_cpu_model_is_the_measured_table_within_a_tenth():
    model = load_device_model("cpu")
    decode_ms = {rows: model.step_seconds(GraphKey("decode", rows, 1, 4, "greedy")) * 1e3 for rows in (1, 8, 32)}

    assert decode_ms == {
        1: pytest.approx(2.16, rel=0.15),
        8: pytest.approx(4.37, rel=0.1),
        32: pytest.approx(9.21, rel=0.1),
    }
    assert 256 / model.step_seconds(GraphKey("prefill", 1, 256, 4, "greedy")) == pytest.approx(4849, rel=0.02)


@pytest.mark.parametrize("name", DEVICE_MODELS)
def test_each_model_says_where_it_comes_from_and_survives_its_own_file(name: str, tmp_path: Path):
    model = load_device_model(name)
    file = tmp_path / "model.json"
    file.write_text(json.dumps(to_table(model)))

    assert load_device_model(str(file)) == model
    assert ("not run on hardware" in model.source) == name.startswith("trn2")


def test_slots_come_first_and_pages_take_the_rest():
    without, with_cache = (
        linear().capacity(evolve(SETTINGS, cache=cache), None, 0.0) for cache in (None, CacheSettings(max_snapshots=6))
    )

    assert (without.num_slots, with_cache.num_slots) == (1 + 4, 1 + 2 * 4 + 6)
    assert without.num_pages == 1 + (1_000_000 - 5 * 10) // 64
    assert with_cache.num_pages == 1 + (1_000_000 - 15 * 10) // 64
    assert with_cache.num_host_pages == with_cache.num_host_slots == 1


def test_host_memory_is_halved_between_snapshots_and_pages():
    capacity = linear().capacity(evolve(SETTINGS, cache=CacheSettings()), None, 64_000.0)

    assert (capacity.num_host_slots, capacity.num_host_pages) == (1 + 3200, 1 + 500)


def test_a_transfer_takes_its_bytes_over_the_link():
    assert linear().transfer_seconds(10, 5) == (10 * 64 + 5 * 10) / 1000


def test_memory_too_small_names_the_flags():
    with pytest.raises(ConfigError, match="--max-running-requests, --snapshot-slots"):
        linear(memory_bytes=300).capacity(SETTINGS, None, 0.0)


def test_more_pages_than_can_be_simulated_name_the_device_model():
    with pytest.raises(ConfigError, match="--device-model"):
        linear(memory_bytes=1e30).capacity(SETTINGS, None, 0.0)
    assert linear(memory_bytes=1e30).capacity(SETTINGS, 6400, 0.0).num_pages == 1 + 100


def test_max_total_tokens_bounds_the_pages():
    capacity = linear().capacity(SETTINGS, 6400, 0.0)

    assert capacity.num_pages == 1 + 100
    assert capacity.context_length_tokens == 6400


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([], "kind"),
        (TABLE | {"kind": "magic"}, "kind"),
        (TABLE | {"kind": ["linear"]}, "kind"),
        (TABLE | {"step_s": "fast"}, "step_s"),
        (TABLE | {"step_s": -1}, "step_s"),
        (TABLE | {"memory_bytes": 0}, "memory_bytes"),
        (TABLE | {"chunk_tokens": 64.5}, "chunk_tokens"),
        (TABLE | {"source": 3}, "source"),
        (TABLE | {"speed": 3}, "speed"),
        ({name: value for name, value in TABLE.items() if name != "row_s"}, "row_s is missing"),
    ],
)
def test_a_wrong_file_names_the_flag_the_file_and_the_field(table: object, text: str, tmp_path: Path):
    file = tmp_path / "model.json"
    file.write_text(json.dumps(table))

    with pytest.raises(ConfigError, match=rf"--device-model: .*model\.json.*{text}|--device-model.*{text}"):
        load_device_model(str(file))
