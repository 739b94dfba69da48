import pytest

from stages.errors import ConfigError
from stages.messages import Sampling
from stages.settings import ModelSettings
from trnrt.config import Config
from trnrt.shapes import graph_settings, host_sizes

MODEL = ModelSettings(
    served_model_name="m",
    model_path="m",
    model_type="glm5_next",
    architectures=(),
    context_length_tokens=8192,
    vocab_size=4096,
    eos_token_ids=frozenset(),
    reasoning_parser=None,
    tool_call_parser=None,
    default_sampling=Sampling(),
)


def test_every_running_request_has_a_slot_and_a_bucket() -> None:
    for rows in (1, 3, 8, 32):
        settings = graph_settings(Config(max_running_requests=rows, max_total_tokens=65_536), MODEL)

        # The null slot, a slot and a shadow a row, and two snapshots a row by default.
        assert settings.num_slots == 1 + 2 * rows + 2 * rows
        assert settings.buckets.batch[-1] == rows
        assert max(settings.buckets.prefill_batch) <= rows


def test_no_chunk_is_longer_than_the_context() -> None:
    settings = graph_settings(Config(chunked_prefill_size=10**12, max_total_tokens=65_536), MODEL)

    assert settings.buckets.tokens == (64, 8192)


def test_without_the_prefix_cache_a_row_has_one_slot_and_snapshots_have_none() -> None:
    settings = graph_settings(
        Config(max_running_requests=4, max_total_tokens=65_536, disable_radix_cache=True, snapshot_slots=9), MODEL
    )

    assert settings.num_slots == 5


@pytest.mark.parametrize(("gigabytes", "sizes"), [(0.0, (1, 1)), (1e-3, (6, 51)), (2e-4, (2, 11))])
def test_host_memory_is_half_pages_and_half_snapshots(gigabytes: float, sizes: tuple[int, int]) -> None:
    assert host_sizes(gigabytes, page_bytes=100_000, slot_bytes=10_000) == sizes


def test_host_memory_too_small_for_one_snapshot_is_refused_by_the_flags_name() -> None:
    with pytest.raises(ConfigError, match=r"--host-cache-gb: must be at least 0\.0002 "):
        host_sizes(1e-4, page_bytes=100_000, slot_bytes=10_000)


def test_the_largest_page_bucket_holds_the_context() -> None:
    settings = graph_settings(Config(max_total_tokens=65_536), MODEL)

    assert settings.buckets.pages[-1] * settings.page_size_tokens == 8192
    assert settings.num_pages == 65_536 // 64 + 1


def test_deterministic_has_one_bucket_of_each_kind() -> None:
    buckets = graph_settings(Config(deterministic=True, max_total_tokens=65_536), MODEL).buckets

    assert [len(sizes) for sizes in (buckets.batch, buckets.prefill_batch, buckets.tokens, buckets.pages)] == [1] * 4


def test_graphs_take_masks_and_changed_logits_only_where_a_flag_says_so() -> None:
    plain = graph_settings(Config(max_total_tokens=65_536), MODEL)
    assert (plain.takes_mask, plain.adjust_tokens) == (False, ())

    settings = graph_settings(Config(max_total_tokens=65_536, structured_outputs=True), MODEL)
    assert (settings.takes_mask, settings.adjust_tokens) == (True, ())
    settings = graph_settings(Config(max_total_tokens=65_536, penalties=True), MODEL)
    assert (settings.takes_mask, settings.adjust_tokens) == (False, (64, 1024, 4096))
    assert settings.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize(
    ("buckets", "sizes"), [("16", (16, 4096)), (" 8, 4096 ", (8, 4096)), ("1,5000", (1, 4096)), ("9999", (4096,))]
)
def test_the_last_number_of_changed_tokens_is_the_whole_vocabulary(buckets: str, sizes: tuple[int, ...]) -> None:
    config = Config(max_total_tokens=65_536, penalties=True, penalty_buckets=buckets)

    assert graph_settings(config, MODEL).adjust_tokens == sizes
