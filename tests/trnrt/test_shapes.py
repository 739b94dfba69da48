from stages.messages import Sampling
from stages.settings import ModelSettings
from trnrt.config import Config
from trnrt.shapes import graph_settings

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

        assert settings.num_slots == rows + 1
        assert settings.buckets.batch[-1] == rows
        assert max(settings.buckets.prefill_batch) <= rows


def test_the_largest_page_bucket_holds_the_context() -> None:
    settings = graph_settings(Config(max_total_tokens=65_536), MODEL)

    assert settings.buckets.pages[-1] * settings.page_size_tokens == 8192
    assert settings.num_pages == 65_536 // 64 + 1


def test_deterministic_has_one_bucket_of_each_kind() -> None:
    buckets = graph_settings(Config(deterministic=True, max_total_tokens=65_536), MODEL).buckets

    assert [len(sizes) for sizes in (buckets.batch, buckets.prefill_batch, buckets.tokens, buckets.pages)] == [1] * 4
