"""/metrics: it follows the rules of the format, has the names that others read, and says what was counted."""

import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from stages.inbox import Meter
from stages.messages import Load, Record, TokenGaps
from stages.stats.book import Book
from stages.stats.exposition import scrape
from stages.stats.histograms import BOUNDS, SGLANG_STAGE_S, TOKENS, Histogram
from stages.stats.metrics import FAMILIES
from stages.stats.sources import Sources, Watched
from stages.stats.stage import Stats, open_stats
from stages.stats.statistics import PromptCache
from stages.trail import Trail
from tests.stages.stats.lint import Exposition, read
from tests.stages.stats.records import record, refused

IDLE = Load(0, 0, 0, 3, 8, 0, 32, 64, evictable_pages=3, total_snapshots=4, used_snapshots=2, evictable_snapshots=2)
BUSY = evolve(IDLE, running=2, waiting=3, used_pages=7, used_slots=2, routing_keys=1)
# What the public test of SGLang's metrics looks for.
LOOKED_FOR = [
    "num_running_reqs",
    "num_used_tokens",
    "token_usage",
    "gen_throughput",
    "num_queue_reqs",
    "num_grammar_queue_reqs",
    "cache_hit_rate",
    "spec_accept_length",
    "prompt_tokens_total",
    "generation_tokens_total",
    "cached_tokens_total",
    "num_requests_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "http_requests_active",
    "routing_keys_active",
    "weight_memory_usage_gb",
    "kv_cache_memory_usage_gb",
    "startup_time_seconds",
    "scheduler_process_cpu_seconds_total",
    "realtime_tokens_total",
]
# What gateways and autoscalers read.
READ_BY_GATEWAYS = [
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:cache_config_info",
    "sglang:num_queue_reqs",
    "sglang:num_running_reqs",
    "sglang:token_usage",
    "sglang:cache_config_info",
    "vllm:e2e_request_latency_seconds",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
]


def a_stats(load: Load | None = IDLE) -> Stats:
    stats = open_stats()
    stats.book = Book(100.0, 1_700_000_000.0)
    stats.sources = Sources(
        model='m"\\\n',
        load=(lambda: load) if load is not None else None,
        max_running=32,
        stages=[Watched("queue", lambda: 1, high_water=lambda: 4)],
        startup_s={"total": 1.5},
    )
    return stats


def scraped(stats: Stats, now_s: float = 110.0) -> Exposition:
    text, content_type = scrape(stats, now_s).text(is_open=False)
    assert content_type.startswith("text/plain; version=0.0.4")
    return read(text.decode())


def filled(stats: Stats) -> Stats:
    book = stats.book
    for count in (Record("looked_up_tokens", 40), Record("cached_tokens_device", 10), Record("cached_tokens_host", 5)):
        book.record(count, 105.0)
    book.record(Record("prefill_tokens", 25), 105.0)
    book.record(Record("completion_tokens", 30), 105.0)
    book.record(Record("steps_decode", 7), 105.0)
    book.delivered(TokenGaps(30, ((0.0125, 20), (0.5, 9))), 105.0)
    book.ended(record(is_streamed=True), 105.0)
    book.ended(record(outcome="disconnected", is_constrained=True), 106.0)
    book.ended(refused("queue_full"), 107.0)
    book.ended(refused("draining"), 107.0)
    stats.sources.http_requests = {("/metrics", "GET"): 2, ("other", "GET"): 1}
    stats.sources.http_active = {("/metrics", "GET"): 1}
    stats.sources.http_responses = {("/metrics", "GET", 200): 1}
    stats.sources.lost["prod_log"] = lambda: 3
    return stats


@pytest.mark.parametrize("load", [None, IDLE, BUSY], ids=["render", "idle", "busy"])
@pytest.mark.parametrize("fill", [lambda stats: stats, filled], ids=["empty", "filled"])
def test_the_text_follows_the_rules(load: Load | None, fill: object) -> None:
    stats = a_stats(load)
    exposed = scraped(fill(stats))  # type: ignore[operator]
    assert exposed.problems == []
    assert all(dict(labels)["model_name"] == r"m\"\\\n" for _, labels in exposed.series)


def test_the_linter_finds_what_is_wrong() -> None:
    text = """# HELP a_total x
# TYPE a_total gauge
a_total{x="1"} 1
a_total{x="1"} 2
# TYPE b counter
b -1
# HELP h x
# TYPE h histogram
h_bucket{le="1"} 2
h_bucket{le="2"} 1
h_count 3
stray 1"""
    assert len(read(text).problems) >= 9


def test_the_names_that_others_read_are_there_from_the_start() -> None:
    text = scrape(a_stats(), 100.0).text(is_open=False)[0].decode()
    assert [name for name in (*LOOKED_FOR, *READ_BY_GATEWAYS) if name not in text] == []
    assert all(part in text for part in ("_sum{", "_count{", "_bucket{", 'phase="total"', 'category="process"'))
    renderer = scrape(a_stats(None), 100.0).text(is_open=False)[0].decode()
    assert "vllm:num_requests_running{" in renderer
    assert "cache_" not in renderer


def test_a_prompt_token_cache_is_told_of_where_there_is_one() -> None:
    stats = a_stats(None)
    assert "prompt_cache" not in scrape(stats, 100.0).text("")[0].decode()
    stats.sources.prompt_cache = lambda: PromptCache(True, None, 1000, 2000, 7, 30, 10, 900, 100, 3, 1)
    exposed = scraped(stats)
    assert exposed.problems == []
    assert exposed.value("trnrt:prompt_cache_enabled") == 1
    assert exposed.value("trnrt:prompt_cache_bytes") == 1000
    assert exposed.value("trnrt:prompt_cache_prompts_total", result="hit") == 30
    assert exposed.value("trnrt:prompt_cache_tokens_total", source="encoded") == 100
    assert exposed.value("trnrt:prompt_cache_audits_total", result="equal") == 2
    assert exposed.value("trnrt:prompt_cache_audits_total", result="other") == 1


def counters_of(exposed: Exposition) -> dict[object, float]:
    ends = ("_total", "_bucket", "_sum", "_count")
    return {series: value for series, value in exposed.series.items() if series[0].endswith(ends)}


def test_no_counter_falls_while_a_cached_prompt_is_let_in_and_computed() -> None:
    stats = filled(a_stats())
    earlier = counters_of(scraped(stats))
    admission = {"looked_up_tokens": 100, "cached_tokens_device": 90, "cached_tokens_host": 5}
    for counts in (admission, {"prefill_tokens": 5}, {"prompt_tokens": 100}):
        for name, count in counts.items():
            stats.book.record(Record(name, count), 110.0)
        exposed = scraped(stats)
        later = counters_of(exposed)
        assert [name for name, value in later.items() if value < earlier[name]] == []
        assert exposed.value("vllm:prefix_cache_hits_total") <= exposed.value("vllm:prefix_cache_queries_total")
        assert 0 < exposed.value("sglang:cache_hit_rate") <= 1
        earlier = later


def test_no_counter_falls_when_a_step_ends_whose_time_is_known_only_then() -> None:
    stats, meter, worked = a_stats(), Meter(), [0.0]
    stats.sources.stages = [Watched("executor", lambda: 1, [meter], works=lambda: worked[0])]
    meter.waits(100.0)
    meter.works(101.0, 1, 1)
    told = []
    for now_s, device_s in ((101.0, 0.0), (101.9, 0.0), (102.0, 1.0), (102.9, 1.0), (103.0, 2.0), (110.0, 2.0)):
        worked[0] = device_s
        exposed = scraped(stats, now_s)
        told.append(exposed.value("trnrt:stage_waiting_seconds_total"))
        assert exposed.value("trnrt:stage_working_seconds_total") == device_s
    assert told == sorted(told)
    assert told[-1] == 8.0


def test_no_two_families_have_one_name() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert all(family.name.partition(":")[0] in ("trnrt", "sglang", "vllm") for family in FAMILIES)
    assert all(bool(family.bounds) == (family.kind == "histogram") for family in FAMILIES)


def test_figures_are_those_that_were_counted() -> None:
    exposed = scraped(filled(a_stats(BUSY)))
    values = {
        "sglang:num_running_reqs": 2,
        "sglang:num_queue_reqs": 3,
        "sglang:token_usage": 0.5,
        "sglang:mamba_usage": 2 / 32,
        "sglang:num_used_tokens": 4 * 64,
        "sglang:kv_evictable_tokens": 3 * 64,
        "sglang:kv_available_tokens": 64,
        "sglang:utilization": 2 / 32,
        "sglang:routing_keys_active": 1,
        "sglang:cache_hit_rate": 15 / 40,
        "sglang:gen_throughput": 3.0,
        "sglang:num_so_requests_total": 1,
        "sglang:num_aborted_requests_total": 1,
        "sglang:inter_token_latency_seconds_count": 29,
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 3,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prefix_cache_queries_total": 40,
        "vllm:prefix_cache_hits_total": 15,
        "vllm:generation_tokens_total": 30,
        "vllm:prompt_tokens_total": 80,
        "vllm:e2e_request_latency_seconds_count": 2,
        "vllm:e2e_request_latency_seconds_sum": 20.0,
        "trnrt:uptime_seconds": 10.0,
    }
    assert {name: exposed.value(name) for name in values} == values
    for flag in ("True", "False"):
        assert exposed.value("sglang:num_requests_total", is_streaming=flag) == 1
        assert exposed.value("sglang:time_to_first_token_seconds_sum", is_streaming=flag) == 4.0
    assert exposed.value("sglang:realtime_tokens_total", mode="prefill_compute") == 25
    assert exposed.value("sglang:realtime_tokens_total", mode="decode") == 30
    assert exposed.value("sglang:cached_tokens_total", cache_source="total") == 15
    assert exposed.value("vllm:request_success_total", finished_reason="stop") == 1
    assert exposed.value("vllm:request_success_total", finished_reason="abort") == 1
    assert exposed.value("vllm:admission_rejections_total", reason="queue_full") == 1
    assert exposed.value("trnrt:unavailable_total", cause="draining") == 1
    assert exposed.value("trnrt:calls_total", outcome="refused") == 2
    assert exposed.value("trnrt:lost_total", kind="prod_log") == 3
    assert exposed.value("trnrt:pages", tier="device", owner="running") == 4
    assert exposed.value("trnrt:stage_depth_max", stage="queue") == 4
    assert exposed.value("sglang:inter_token_latency_seconds_bucket", le="0.015") == 20
    assert exposed.value("sglang:inter_token_latency_seconds_bucket", le="0.01") == 0
    stages = {
        "parse": 0.5,
        "prompt": 0.5,
        "grammar": 0.25,
        "queue": 1.75,
        "prefill": 1.0,
        "decode": 5.0,
        "deliver": 1.0,
    }
    for stage, seconds in stages.items():
        assert exposed.value("sglang:per_stage_req_latency_seconds_sum", stage=stage) == 2 * seconds


def test_gauges_are_zero_again_when_nothing_runs() -> None:
    exposed = scraped(filled(a_stats()), now_s=500.0)
    for name in (
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:gen_throughput",
        "sglang:num_used_tokens",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "trnrt:calls_active",
    ):
        assert exposed.value(name) == 0, name


def test_without_an_engine_calls_run_and_wait_by_how_far_they_came() -> None:
    stats, running, waiting = a_stats(None), Trail("a"), Trail("b", is_constrained=True)
    running.first_token_s = running.submitted_s = 1.0
    waiting.submitted_s = 1.0
    compiling = Trail("c", is_constrained=True, prompt_ready_s=1.0)
    stats.sources.live = lambda: (running, waiting, compiling)
    exposed = scraped(stats)
    assert exposed.value("vllm:num_requests_running") == 1
    assert exposed.value("vllm:num_requests_waiting") == 1
    assert exposed.value("sglang:num_grammar_queue_reqs") == 1
    assert exposed.value("trnrt:calls_active") == 3


def test_a_worker_is_told_from_others_by_a_label() -> None:
    stats = a_stats(None)
    stats.sources.worker = 2
    assert all(("worker", "2") in labels for _, labels in scraped(stats).series)


def test_openmetrics_is_given_where_it_is_asked_for() -> None:
    text, content_type = scrape(filled(a_stats()), 110.0).text(is_open=True)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    assert b"# TYPE sglang:num_requests counter\n" in text


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 5)), max_size=50), st.sets(st.sampled_from(TOKENS)))
def test_a_histogram_of_fewer_bounds_says_the_same_as_one_of_its_own(
    observed: list[tuple[float, int]], chosen: set[float]
) -> None:
    histogram, bounds = Histogram(TOKENS), tuple(sorted(chosen))
    for value, count in observed:
        histogram.observe(value, count)
    wanted = [sum(count for value, count in observed if value <= bound) for bound in (*bounds, float("inf"))]
    assert histogram.cumulative(bounds) == wanted


def test_what_is_as_large_as_a_bound_is_within_it() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(1.0 + 1e-12)
    assert histogram.cumulative((1.0, 2.0)) == [1, 2, 2]


def test_bounds_rise_and_are_all_counted() -> None:
    for family in FAMILIES:
        if family.kind == "histogram":
            assert list(family.bounds) == sorted(set(family.bounds)), family.name
    assert (len(SGLANG_STAGE_S), SGLANG_STAGE_S[0]) == (30, 0.001)
    assert all(list(bounds) == sorted(set(bounds)) for bounds in BOUNDS.values())


async def test_a_scrape_of_a_stats_that_nothing_fills_costs_nobody_anything(autojump_clock: object) -> None:
    stats = a_stats()
    stats.receive.close()
    stats.send.send(record())
    assert scraped(stats, trio.current_time()).value("trnrt:lost_total", kind="records") == 1
