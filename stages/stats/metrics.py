"""The families of /metrics, each with what it says and where its values come from. Core.

`trnrt:` is ours; `sglang:` and `vllm:` are the names that gateways, autoscalers and dashboards of those servers read,
with their labels and buckets. A family is there as soon as its server is, with zeros until something happens, and its
gauges are zero again when nothing runs. Names of counters are without their _total, as OpenMetrics has it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from attrs import define, field, frozen

from stages.messages import Load
from stages.stats.book import Book
from stages.stats.histograms import (
    CHOICES,
    SGLANG_END_TO_END_S,
    SGLANG_FIRST_TOKEN_S,
    SGLANG_INTER_TOKEN_S,
    SGLANG_QUEUE_S,
    SGLANG_STAGE_S,
    STAGES,
    TOKENS,
    VLLM_FIRST_TOKEN_S,
    VLLM_INTER_TOKEN_S,
    VLLM_REQUEST_S,
    Bounds,
)
from stages.stats.report import stage_of
from stages.stats.sources import Sources
from stages.stats.statistics import PromptCache, Stage

Labels = tuple[str, ...]


@frozen
class Sample:
    """One series' value; of a histogram, how many are within each bound, how many in all, and their sum."""

    labels: Labels
    value: float = 0.0
    buckets: tuple[int, ...] = ()


@define(eq=False)
class View:
    """What a scrape sees, as of one instant."""

    book: Book
    sources: Sources
    now_s: float
    num_lost: int
    cpu_s: float
    load: Load | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.load = self.sources.load() if self.sources.load is not None else None

    def total(self, name: str) -> float:
        """Return a total that the scheduler counts; 0 where there is none."""
        return self.book.counters.totals.get(name, 0.0)

    def calls(self, name: str) -> int:
        """Return a count of calls that have ended, streamed or not."""
        return sum(self.book.calls[name, is_streamed] for is_streamed in (False, True))

    def stages(self) -> list[Stage]:
        """Return how the stages stand."""
        return [stage_of(watched, self.book, self.now_s) for watched in self.sources.stages]

    def stage(self, name: str) -> Stage | None:
        """Return how one stage stands, None where there is none."""
        watched = next((one for one in self.sources.stages if one.name == name), None)
        return stage_of(watched, self.book, self.now_s) if watched is not None else None

    def running(self) -> int:
        """Return how many choices run, or calls where the engine is another's."""
        return self.load.running if self.load is not None else self._in_phase("running")

    def waiting(self) -> int:
        """Return how many wait for a place."""
        return self.load.waiting if self.load is not None else self._in_phase("waiting")

    def compiling(self) -> int:
        """Return how many calls wait for their grammar."""
        return sum(
            trail.is_constrained and trail.prompt_ready_s is not None and trail.submitted_s is None
            for trail in self.sources.live()
        )

    def usage(self) -> float:
        """Return the share of pages that requests hold; what only the cache holds counts as free."""
        if self.load is None or not self.load.total_pages:
            return 0.0
        return (self.load.used_pages - self.load.evictable_pages) / self.load.total_pages

    def _in_phase(self, phase: str) -> int:
        return sum(trail.phase == phase for trail in self.sources.live())


Values = Iterable[Sample]
Kind = Literal["gauge", "counter", "histogram"]


@frozen(eq=False)
class Family:
    """One family of series; labels are its own, behind those that all of its prefix have."""

    name: str
    kind: Kind
    text: str
    values: Callable[[View], Values]
    labels: Labels = ()
    bounds: Bounds = ()
    # Whether it is there only where the engine is this process's.
    of_engine: bool = False
    # Whether it is there only with a prompt token cache.
    of_prompt_cache: bool = False


def families(sources: Sources) -> list[Family]:
    """Return the families of a role."""
    return [
        family
        for family in FAMILIES
        if (sources.load is not None or not family.of_engine)
        and (sources.prompt_cache is not None or not family.of_prompt_cache)
    ]


def common_labels(prefix: str, sources: Sources) -> Mapping[str, str]:
    """Return the labels that all families of a prefix have."""
    labels = {"model_name": sources.model}
    if prefix == "sglang":
        labels |= {"engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0", "dp_rank": "0"}
    elif prefix == "vllm":
        labels["engine"] = "0"
    if sources.worker is not None:
        labels["worker"] = str(sources.worker)
    return labels


# ---------------------------------------------------------------------------------------------------------------------
# Where values come from
# ---------------------------------------------------------------------------------------------------------------------


def _one(read: Callable[[View], float]) -> Callable[[View], Values]:
    return lambda view: [Sample((), read(view))]


def _load(read: Callable[[Load], float]) -> Callable[[View], Values]:
    return lambda view: [Sample((), read(view.load))] if view.load is not None else []


def _total(name: str) -> Callable[[View], Values]:
    return _one(lambda view: view.total(name))


def _by_streaming(name: str) -> Callable[[View], Values]:
    return lambda view: [Sample((str(flag),), view.book.calls[name, flag]) for flag in (False, True)]


def _split(name: str, bounds: Bounds) -> Callable[[View], Values]:
    """Return what reads a histogram with one series for streamed calls and one for others."""

    def read(view: View) -> Values:
        for flag in (False, True):
            one = view.book.histograms.of(name, flag)
            yield Sample((str(flag),), one.sum, tuple(one.cumulative(bounds)))

    return read


def _joined(name: str, bounds: Bounds, *labels: str) -> Callable[[View], Values]:
    """Return what reads a histogram of streamed and other calls together."""

    def read(view: View) -> Values:
        both = [view.book.histograms.of(name, flag) for flag in (False, True)]
        counts = zip(*(one.cumulative(bounds) for one in both), strict=True)
        yield Sample(labels, sum(one.sum for one in both), tuple(map(sum, counts)))

    return read


def _per_stage(view: View) -> Values:
    for stage in STAGES:
        yield from _joined(f"stage_{stage}", SGLANG_STAGE_S, stage)(view)


def _finished(view: View) -> Values:
    outcomes = view.book.outcomes
    yield Sample(("stop",), outcomes["stop"] + outcomes["tool_calls"])
    yield Sample(("length",), outcomes["length"])
    yield Sample(("abort",), outcomes["abort"] + outcomes["disconnected"])
    yield Sample(("error",), outcomes["error"])


def _computed(view: View) -> Values:
    cached = view.total("cached_tokens_device") + view.total("cached_tokens_host")
    yield Sample(("prefill_compute",), view.total("prefill_tokens"))
    yield Sample(("prefill_cache",), cached)
    yield Sample(("decode",), view.total("completion_tokens"))


def _cached(view: View) -> Values:
    device, host = view.total("cached_tokens_device"), view.total("cached_tokens_host")
    return [Sample(("device",), device), Sample(("host",), host), Sample(("total",), device + host)]


def _hit_rate(view: View) -> float:
    return view.book.counters.snapshot(view.now_s).cache_hit_rate


def _memory(kind: str) -> Callable[[View], Values]:
    return _one(lambda view: view.sources.memory_bytes.get(kind, 0) / 2**30)


def _stage_seconds(name: str, state: Literal["waiting_s", "working_s"]) -> Callable[[View], float]:
    def read(view: View) -> float:
        stage = view.stage(name)
        return (getattr(stage, state) or 0.0) if stage is not None else 0.0

    return read


def _stages(read: Callable[[Stage], float | None]) -> Callable[[View], Values]:
    def values(view: View) -> Values:
        for stage in view.stages():
            value = read(stage)
            if value is not None:
                yield Sample((stage.name,), value)

    return values


def _prompt_cache(read: Callable[[PromptCache], Mapping[str, float]]) -> Callable[[View], Values]:
    """Return what reads the prompt token cache, by the label's value or "" without a label."""

    def values(view: View) -> Values:
        if view.sources.prompt_cache is not None:
            for label, value in read(view.sources.prompt_cache()).items():
                yield Sample((label,) if label else (), value)

    return values


def _owners(read: Callable[[Load], Mapping[str, tuple[int, int, int]]]) -> Callable[[View], Values]:
    """Return what reads a pool of each tier, given total, used and what the cache alone holds."""

    def values(view: View) -> Values:
        if view.load is not None:
            for tier, (total, used, cached) in read(view.load).items():
                yield Sample((tier, "running"), used - cached)
                yield Sample((tier, "cached"), cached)
                yield Sample((tier, "free"), total - used)

    return values


def _pages(load: Load) -> Mapping[str, tuple[int, int, int]]:
    host = max(load.total_host_pages, 0), load.used_host_pages, load.used_host_pages
    return {"device": (load.total_pages, load.used_pages, load.evictable_pages), "host": host}


def _snapshots(load: Load) -> Mapping[str, tuple[int, int, int]]:
    host = max(load.total_host_snapshots, 0), load.used_host_snapshots, load.used_host_snapshots
    return {"device": (load.total_snapshots, load.used_snapshots, load.evictable_snapshots), "host": host}


def _http(counts: Iterable[tuple[tuple[object, ...], int]]) -> Values:
    return [Sample(tuple(map(str, labels)), count) for labels, count in counts]


# ---------------------------------------------------------------------------------------------------------------------
# The families
# ---------------------------------------------------------------------------------------------------------------------

_CAUSES = ("queue_full", "queue_timeout", "displaced", "draining", "timeout", "priority_refused", "unavailable")
_OUTCOMES = ("stop", "tool_calls", "length", "abort", "error", "refused", "disconnected")

_OURS = [
    Family("trnrt:build_info", "gauge", "version and role", lambda view: [
        Sample((view.sources.version, view.sources.role), 1)], ("version", "role")),
    Family("trnrt:uptime_seconds", "gauge", "since the server started", _one(
        lambda view: view.now_s - view.book.started_s)),
    Family("trnrt:process_cpu_seconds", "counter", "CPU time of the process", _one(lambda view: view.cpu_s)),
    Family("trnrt:calls_active", "gauge", "generation calls under way", _one(
        lambda view: sum(1 for _ in view.sources.live()))),
    Family("trnrt:calls", "counter", "generation calls by how they ended", lambda view: [
        Sample((outcome,), view.book.outcomes[outcome]) for outcome in _OUTCOMES], ("outcome",)),
    Family("trnrt:unavailable", "counter", "generation calls refused or ended by a 503, by cause", lambda view: [
        Sample((cause,), view.book.unavailable[cause])
        for cause in dict.fromkeys((*_CAUSES, *view.book.unavailable))], ("cause",)),
    Family("trnrt:lost", "counter", "what was dropped rather than keep a request waiting, by kind", lambda view: [
        Sample(("records",), view.num_lost),
        *(Sample((kind,), count()) for kind, count in view.sources.lost.items())], ("kind",)),
    Family("trnrt:prompt_cache_enabled", "gauge", "whether the prompt token cache is used", _prompt_cache(
        lambda cache: {"": cache.is_on}), of_prompt_cache=True),
    Family("trnrt:prompt_cache_bytes", "gauge", "memory the prompt token cache has", _prompt_cache(
        lambda cache: {"": cache.num_bytes}), of_prompt_cache=True),
    Family("trnrt:prompt_cache_prompts", "counter", "chats by whether any part was found", _prompt_cache(
        lambda cache: {"hit": cache.hits, "miss": cache.misses}), ("result",),
        of_prompt_cache=True),
    Family("trnrt:prompt_cache_tokens", "counter", "tokens of chats: found, or encoded", _prompt_cache(
        lambda cache: {"found": cache.found_tokens, "encoded": cache.encoded_tokens}), ("source",),
        of_prompt_cache=True),
    Family("trnrt:prompt_cache_audits", "counter", "hits encoded whole and compared, by result", _prompt_cache(
        lambda cache: {"equal": max(cache.audits - cache.mismatches, 0), "other": cache.mismatches}), ("result",),
        of_prompt_cache=True),
    Family("trnrt:stage_depth", "gauge", "items in a stage's inbox", _stages(lambda stage: stage.depth), ("stage",)),
    Family("trnrt:stage_depth_max", "gauge", "the most there ever were", _stages(
        lambda stage: stage.high_water), ("stage",)),
    Family("trnrt:stage_received", "counter", "items a stage took", _stages(
        lambda stage: stage.received), ("stage",)),
    Family("trnrt:stage_working_seconds", "counter", "time a stage worked", _stages(
        lambda stage: stage.working_s), ("stage",)),
    Family("trnrt:stage_waiting_seconds", "counter", "time a stage waited for an item", _stages(
        lambda stage: stage.waiting_s), ("stage",)),
    Family("trnrt:generated_tokens", "counter", "tokens delivered", _one(lambda view: view.book.completion_tokens)),
    Family("trnrt:time_to_first_token_seconds", "histogram", "from a call's arrival to its first token", _joined(
        "time_to_first_token", VLLM_FIRST_TOKEN_S), (), VLLM_FIRST_TOKEN_S),
    Family("trnrt:inter_token_seconds", "histogram", "between two tokens of one choice", _joined(
        "inter_token", SGLANG_INTER_TOKEN_S), (), SGLANG_INTER_TOKEN_S),
    Family("trnrt:end_to_end_seconds", "histogram", "from a call's arrival to its end", _joined(
        "end_to_end", VLLM_REQUEST_S), (), VLLM_REQUEST_S),
    Family("trnrt:pages", "gauge", "pages of latents by tier and owner", _owners(_pages), ("tier", "owner"), (), True),
    Family("trnrt:snapshots", "gauge", "recurrent states of prefixes by tier and owner", _owners(
        _snapshots), ("tier", "owner"), (), True),
    Family("trnrt:steps", "counter", "steps by family", lambda view: [
        Sample((name,), view.total(f"steps_{name}")) for name in ("prefill", "decode")], ("family",), (), True),
    Family("trnrt:device_seconds", "counter", "time the device worked", _total("device_s"), (), (), True),
    Family("trnrt:preemptions", "counter", "times a choice gave way to a better priority", _total(
        "preemptions"), (), (), True),
    Family("trnrt:retractions", "counter", "times a choice gave its memory back for want of it", _total(
        "retractions"), (), (), True),
    Family("trnrt:paused", "gauge", "1 while an operator has paused the engine", _load(
        lambda load: load.is_paused), (), (), True),
]  # fmt: skip

_STREAMING = ("is_streaming",)
_SGLANG = [
    Family("sglang:num_running_reqs", "gauge", "requests on the device", _one(lambda view: view.running())),
    Family("sglang:num_queue_reqs", "gauge", "requests that wait", _one(lambda view: view.waiting())),
    Family("sglang:num_grammar_queue_reqs", "gauge", "requests that wait for their grammar", _one(
        lambda view: view.compiling())),
    Family("sglang:num_paused_reqs", "gauge", "running requests while paused", _load(
        lambda load: load.running if load.is_paused else 0), (), (), True),
    Family("sglang:num_retracted_reqs", "gauge", "requests that gave their memory back and wait", _load(
        lambda load: load.retracted), (), (), True),
    Family("sglang:utilization", "gauge", "running requests over their limit", lambda view: [
        Sample((), view.running() / view.sources.max_running)] if view.sources.max_running else [], (), (), True),
    Family("sglang:gen_throughput", "gauge", "generated tokens a second, over 10 s", _one(
        lambda view: view.book.rate("completion_tokens", view.now_s))),
    Family("sglang:cache_hit_rate", "gauge", "share of prompt tokens that was cached, of every choice", _one(
        _hit_rate), (), (), True),
    Family("sglang:realtime_tokens", "counter", "prompt tokens computed and found cached, generated ones", _computed, (
        "mode",), (), True),
    Family("sglang:cached_tokens", "counter", "prompt tokens found cached, of every choice, by where", _cached, (
        "cache_source",), (), True),
    Family("sglang:token_usage", "gauge", "share of pages that requests hold", _one(
        lambda view: view.usage()), (), (), True),
    Family("sglang:full_token_usage", "gauge", "the same, of the layers that keep every token", _one(
        lambda view: view.usage()), (), (), True),
    Family("sglang:mamba_usage", "gauge", "share of recurrent states that requests hold", _load(
        lambda load: load.used_slots / load.total_slots if load.total_slots else 0.0), (), (), True),
    Family("sglang:num_used_tokens", "gauge", "tokens of the pages that requests hold", _load(
        lambda load: (load.used_pages - load.evictable_pages) * load.page_size_tokens), (), (), True),
    Family("sglang:kv_used_tokens", "gauge", "the same", _load(
        lambda load: (load.used_pages - load.evictable_pages) * load.page_size_tokens), (), (), True),
    Family("sglang:kv_evictable_tokens", "gauge", "tokens of the pages that only the cache holds", _load(
        lambda load: load.evictable_pages * load.page_size_tokens), (), (), True),
    Family("sglang:kv_available_tokens", "gauge", "tokens of free pages", _load(
        lambda load: (load.total_pages - load.used_pages) * load.page_size_tokens), (), (), True),
    Family("sglang:mamba_used_tokens", "gauge", "recurrent states of running requests", _load(
        lambda load: load.used_slots), (), (), True),
    Family("sglang:mamba_evictable_tokens", "gauge", "snapshots that the cache would give", _load(
        lambda load: load.evictable_snapshots), (), (), True),
    Family("sglang:mamba_available_tokens", "gauge", "recurrent states that nobody holds", _load(
        lambda load: load.total_slots - load.used_slots + load.total_snapshots - load.used_snapshots), (), (), True),
    Family("sglang:max_total_num_tokens", "gauge", "tokens of all pages", _load(
        lambda load: load.total_pages * load.page_size_tokens), (), (), True),
    Family("sglang:page_size", "gauge", "tokens of a page", _load(lambda load: load.page_size_tokens), (), (), True),
    Family("sglang:num_pages", "gauge", "pages on the device", _load(lambda load: load.total_pages), (), (), True),
    Family("sglang:cache_config_info", "gauge", "page size and pages, as labels", lambda view: [
        Sample((str(view.load.page_size_tokens), str(view.load.total_pages)), 1)] if view.load is not None else [], (
        "page_size", "num_pages"), (), True),
    Family("sglang:context_len", "gauge", "longest prompt and answer, in tokens", _one(
        lambda view: view.sources.context_tokens)),
    Family("sglang:weight_memory_usage_gb", "gauge", "memory of the weights, GiB", _memory("weight"), (), (), True),
    Family("sglang:kv_cache_memory_usage_gb", "gauge", "memory of the cache, GiB", _memory("kv_cache"), (), (), True),
    Family("sglang:graph_memory_usage_gb", "gauge", "memory of compiled graphs, GiB", _memory("graph"), (), (), True),
    Family("sglang:startup_time_seconds", "gauge", "time the start took, by phase", lambda view: [
        Sample((phase,), seconds) for phase, seconds in view.sources.startup_s.items()], ("phase",)),
    Family("sglang:spec_accept_length", "gauge", "tokens a step gives one request; 0 while nothing is drafted", _one(
        lambda view: 0.0), (), (), True),
    Family("sglang:spec_accept_rate", "gauge", "accepted over drafted tokens; 0 while nothing is drafted", _one(
        lambda view: 0.0), (), (), True),
    Family("sglang:num_retracted_requests", "counter", "times a request gave its memory back", _one(
        lambda view: view.total("retractions") + view.total("preemptions")), (), (), True),
    Family("sglang:forward_execution_seconds", "counter", "time the device worked", _total("device_s"), (), (), True),
    Family("sglang:scheduler_idle_seconds", "counter", "time the scheduler waited", _one(
        _stage_seconds("scheduler", "waiting_s")), (), (), True),
    Family("sglang:scheduler_stage_seconds", "counter", "time the scheduler worked", lambda view: [
        Sample(("working",), _stage_seconds("scheduler", "working_s")(view))], ("category",), (), True),
    Family("sglang:scheduler_process_cpu_seconds", "counter", "CPU time of the process", lambda view: [
        Sample(("process",), view.cpu_s)], ("category",), (), True),
    Family("sglang:routing_keys_active", "gauge", "distinct routing keys of running requests", _load(
        lambda load: load.routing_keys), (), (), True),
    Family("sglang:prompt_tokens", "counter", "prompt tokens of calls that ended", _by_streaming(
        "prompt_tokens"), _STREAMING),
    Family("sglang:generation_tokens", "counter", "generated tokens of calls that ended", _by_streaming(
        "completion_tokens"), _STREAMING),
    Family("sglang:num_requests", "counter", "calls that ended, but for refused ones", _by_streaming(
        "calls"), _STREAMING),
    Family("sglang:num_so_requests", "counter", "of those, with a grammar", _one(
        lambda view: view.calls("constrained"))),
    Family("sglang:num_aborted_requests", "counter", "of those, aborted or left by their client", _one(
        lambda view: view.calls("aborted"))),
    Family("sglang:http_requests", "counter", "HTTP requests", lambda view: _http(view.sources.http_requests.items()), (
        "endpoint", "method")),
    Family("sglang:http_requests_active", "gauge", "HTTP requests under way", lambda view: _http(
        view.sources.http_active.items()), ("endpoint", "method")),
    Family("sglang:http_responses", "counter", "HTTP answers", lambda view: _http(
        view.sources.http_responses.items()), ("endpoint", "method", "status_code")),
    Family("sglang:time_to_first_token_seconds", "histogram", "from a call's arrival to its first token", _split(
        "time_to_first_token", SGLANG_FIRST_TOKEN_S), _STREAMING, SGLANG_FIRST_TOKEN_S),
    Family("sglang:e2e_request_latency_seconds", "histogram", "from a call's arrival to its end", _split(
        "end_to_end", SGLANG_END_TO_END_S), _STREAMING, SGLANG_END_TO_END_S),
    Family("sglang:inter_token_latency_seconds", "histogram", "between two tokens of one choice", _joined(
        "inter_token", SGLANG_INTER_TOKEN_S), (), SGLANG_INTER_TOKEN_S),
    Family("sglang:request_time_per_output_token_seconds", "histogram", "a call's mean time between tokens", _joined(
        "time_per_token", SGLANG_INTER_TOKEN_S), (), SGLANG_INTER_TOKEN_S),
    Family("sglang:queue_time_seconds", "histogram", "from joining the queue to a place on the device", _joined(
        "queue_wait", SGLANG_QUEUE_S), (), SGLANG_QUEUE_S),
    Family("sglang:per_stage_req_latency_seconds", "histogram", "a call's time in each stage", _per_stage, (
        "stage",), SGLANG_STAGE_S),
    Family("sglang:prompt_tokens_histogram", "histogram", "prompt tokens of a call", _joined(
        "prompt_tokens", TOKENS), (), TOKENS),
    Family("sglang:uncached_prompt_tokens_histogram", "histogram", "those that were not cached", _joined(
        "uncached_tokens", TOKENS), (), TOKENS),
    Family("sglang:generation_tokens_histogram", "histogram", "generated tokens of a call", _joined(
        "completion_tokens", TOKENS), (), TOKENS),
]  # fmt: skip

_VLLM = [
    Family("vllm:num_requests_running", "gauge", "requests on the device", _one(lambda view: view.running())),
    Family("vllm:num_requests_waiting", "gauge", "requests that wait", _one(lambda view: view.waiting())),
    Family("vllm:kv_cache_usage_perc", "gauge", "share of pages that requests hold, 0 to 1", _one(
        lambda view: view.usage()), (), (), True),
    Family("vllm:gpu_cache_usage_perc", "gauge", "its older name", _one(lambda view: view.usage()), (), (), True),
    Family("vllm:cache_config_info", "gauge", "page size and pages, as labels", lambda view: [
        Sample((str(view.load.page_size_tokens), str(view.load.total_pages)), 1)] if view.load is not None else [], (
        "block_size", "num_gpu_blocks"), (), True),
    Family("vllm:prefix_cache_queries", "counter", "prompt tokens looked up in the cache, of every choice", _total(
        "looked_up_tokens"), (), (), True),
    Family("vllm:prefix_cache_hits", "counter", "prompt tokens found there", _one(
        lambda view: view.total("cached_tokens_device") + view.total("cached_tokens_host")), (), (), True),
    Family("vllm:num_preemptions", "counter", "times a request gave its memory back", _one(
        lambda view: view.total("retractions") + view.total("preemptions")), (), (), True),
    Family("vllm:prompt_tokens", "counter", "prompt tokens of calls that ended", _one(
        lambda view: view.calls("prompt_tokens"))),
    Family("vllm:generation_tokens", "counter", "tokens delivered", _one(lambda view: view.book.completion_tokens)),
    Family("vllm:request_success", "counter", "calls that ended, but for refused ones", _finished, (
        "finished_reason",)),
    Family("vllm:admission_rejections", "counter", "calls refused or ended by a 503", lambda view: [
        Sample((cause,), view.book.unavailable[cause])
        for cause in dict.fromkeys((*_CAUSES, *view.book.unavailable))], ("reason",)),
    Family("vllm:time_to_first_token_seconds", "histogram", "from a call's arrival to its first token", _joined(
        "time_to_first_token", VLLM_FIRST_TOKEN_S), (), VLLM_FIRST_TOKEN_S),
    Family("vllm:inter_token_latency_seconds", "histogram", "between two tokens of one choice", _joined(
        "inter_token", VLLM_INTER_TOKEN_S), (), VLLM_INTER_TOKEN_S),
    Family("vllm:time_per_output_token_seconds", "histogram", "its older name", _joined(
        "inter_token", VLLM_INTER_TOKEN_S), (), VLLM_INTER_TOKEN_S),
    Family("vllm:request_time_per_output_token_seconds", "histogram", "a call's mean time between tokens", _joined(
        "time_per_token", VLLM_INTER_TOKEN_S), (), VLLM_INTER_TOKEN_S),
    Family("vllm:e2e_request_latency_seconds", "histogram", "from a call's arrival to its end", _joined(
        "end_to_end", VLLM_REQUEST_S), (), VLLM_REQUEST_S),
    Family("vllm:request_queue_time_seconds", "histogram", "from joining the queue to a place on the device", _joined(
        "queue_wait", VLLM_REQUEST_S), (), VLLM_REQUEST_S),
    Family("vllm:request_inference_time_seconds", "histogram", "from that place to the last token", _joined(
        "inference", VLLM_REQUEST_S), (), VLLM_REQUEST_S),
    Family("vllm:request_prefill_time_seconds", "histogram", "from that place to the first token", _joined(
        "prefill", VLLM_REQUEST_S), (), VLLM_REQUEST_S),
    Family("vllm:request_decode_time_seconds", "histogram", "from the first token to the last", _joined(
        "decode", VLLM_REQUEST_S), (), VLLM_REQUEST_S),
    Family("vllm:request_prompt_tokens", "histogram", "prompt tokens of a call", _joined(
        "prompt_tokens", TOKENS), (), TOKENS),
    Family("vllm:request_generation_tokens", "histogram", "generated tokens of a call", _joined(
        "completion_tokens", TOKENS), (), TOKENS),
    Family("vllm:request_params_n", "histogram", "choices of a call", _joined("num_choices", CHOICES), (), CHOICES),
]  # fmt: skip

FAMILIES = [*_OURS, *_SGLANG, *_VLLM]
