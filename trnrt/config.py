"""Flags, environment and TOML become one frozen Config, once; everything after this reads it and nothing changes it.

Each setting is one field, as trnrt/flags.py reads it; a preset beats the defaults, the file and all else the preset.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
from attrs import frozen

from stages.errors import ConfigError
from stages.logs.switches import MAX_REQUESTS_LEVEL
from stages.scheduler.eviction import eviction_names
from stages.scheduler.policies import policy_names
from trnrt.flags import MAX_INT, FlagParser, Layers, setting, settings_of, shown
from trnrt.flags import convert as convert_field
from trnrt.presets import PRESETS

POLICIES, EVICTIONS = policy_names(), eviction_names()
# Those that can order equals of a priority.
PRIORITY_POLICIES = ("fcfs", "lof", "priority")
SHORTEST_FIRST = ("shortest-prefill-first", "spf")

MIB = 1024 * 1024
GROUPS = ("model", "http", "api", "scheduler", "cache", "device", "logging")


@frozen(kw_only=True)
class HttpConfig:
    """The settings of a server that listens, whatever it serves."""

    host: str = setting("127.0.0.1", "http", "address to listen on")
    port: int = setting(30000, "http", "port to listen on; 0 takes a free one", low=0)
    max_request_bytes: int = setting(32 * 1024 * 1024, "http", "largest request body in bytes; 413 above", low=1)
    keep_alive_timeout: float = setting(
        75.0, "http", "seconds an idle connection is kept, or a TLS handshake may take", low=0.001
    )
    write_timeout: float = setting(30.0, "http", "seconds a client may stop reading before it is cut off", low=0.001)
    body_timeout: float = setting(30.0, "http", "seconds a client may take to send a body; 408 after", low=0.001)
    drain_timeout: float = setting(30.0, "http", "seconds running requests may take to finish after SIGTERM", low=0)
    request_timeout: float | None = setting(
        None, "http", "seconds a request may take in all; none when absent", low=0.001
    )
    sse_ping: float = setting(15.0, "http", "seconds of silence before a stream gets a comment frame", low=0.001)

    uds: str | None = setting(None, "http", "path of a Unix socket to listen on, in place of host and port")
    root_path: str = setting("", "http", "what a proxy in front leaves at the beginning of paths")
    ssl_certfile: str | None = setting(None, "http", "certificate chain to serve HTTPS with, PEM")
    ssl_keyfile: str | None = setting(None, "http", "the certificate's private key, PEM")
    ssl_keyfile_password: str | None = setting(None, "http", "password of the private key", secret=True)
    api_key: str | None = setting(None, "http", "key that every route but health checks needs", secret=True)
    admin_api_key: str | None = setting(None, "http", "key that admin routes need, in place of --api-key", secret=True)
    allowed_origins: str = setting("*", "http", "origins of web pages that may call, by commas; * is any")

    prompt_cache_mb: int = setting(
        0, "api", "MiB of memory for ids of parts of chats, so that a turn encodes what is new; 0: no such cache", low=0
    )
    prompt_cache_audit: float = setting(
        0.01, "api", "share of the prompt cache's hits that are encoded whole and compared, 0 to 1", low=0
    )

    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "logging", "least severe line to log")
    enable_metrics: bool = setting(False, "logging", "serve Prometheus metrics at /metrics, without a key")
    log_format: Literal["text", "json"] = setting("text", "logging", "form of log lines: for people, or JSON")
    log_requests: bool = setting(False, "logging", "a line for every request as it ends")
    log_requests_level: int = setting(
        0,
        "logging",
        "0: counts and times; 1: sampling too; 2: texts, cut to 2,048 characters; 3: whole",
        low=0,
    )
    log_requests_format: Literal["auto", "text", "json"] = setting(
        "auto", "logging", "form of requests' lines; auto is --log-format"
    )
    access_log: bool = setting(False, "logging", "a line for every HTTP call as it ends, but for health checks")
    access_log_health: bool = setting(False, "logging", "--access-log has health checks and /metrics too")
    otlp_endpoint: str | None = setting(
        None,
        "logging",
        "OpenTelemetry collector to send traces to, OTLP over HTTP: http://HOST:4318; needs trnrt[otel]",
        alias="otlp-traces-endpoint",
    )
    otlp_sample_ratio: float = setting(
        1.0, "logging", "share of requests to trace, 0 to 1, of those that belong to no trace yet", low=0
    )
    prod_dir: str | None = setting(
        None,
        "logging",
        "folder of the production log: counts and times of every call; none when absent",
        alias="prod-log-dir",
    )
    prod_max_mb: int = setting(
        1024, "logging", "MiB that all files of the production log have together", low=1, alias="prod-log-max-mb"
    )


@frozen(kw_only=True)
class Config(HttpConfig):
    """Every setting of `python -m trnrt`, resolved."""

    model_path: str | None = setting(
        None, "model", "checkpoint folder or hub name (org/name); the shipped demo model when absent", alias="model"
    )
    revision: str | None = setting(None, "model", "revision of the model on the hub; main when absent")
    tokenizer_path: str | None = setting(
        None, "model", "folder or hub name of tokenizer.json; the model's own when absent"
    )
    served_model_name: str | None = setting(None, "model", "name in /v1/models and answers; the folder's when absent")
    chat_template: str | None = setting(None, "model", "file or built-in name of a template in place of the model's")
    model_alias: str = setting("claude-*", "model", "other names it answers to, by commas; * stands for any text")
    context_length: int | None = setting(None, "model", "longest prompt + answer in tokens; the model's own", low=8)
    dtype: Literal["auto", "bfloat16", "float32"] = setting(
        "auto", "model", "type of weights; auto is the checkpoint's"
    )
    preset: str = setting("default", "model", f"named settings: {', '.join(PRESETS)}")
    config: str | None = setting(None, "model", "TOML file with settings by field name")

    reasoning_parser: str | None = setting("auto", "api", "a name of docs/PARSERS.md, none, or auto: the model card's")
    tool_call_parser: str | None = setting("auto", "api", "a name of docs/PARSERS.md, none, or auto: the model card's")
    sampling_defaults: Literal["model", "openai"] = setting(
        "model", "api", "defaults of chat: generation_config.json or OpenAI's"
    )
    incremental_streaming_output: bool = setting(False, "api", "/generate streams deltas instead of cumulative text")

    max_running_requests: int = setting(32, "scheduler", "requests in one decode step at most", low=1)
    max_queued_requests: int = setting(2048, "scheduler", "requests that may wait; 503 above", low=1)
    max_total_tokens: int | None = setting(
        None, "scheduler", "tokens the paged cache holds; 65,536 to 262,144 by the context", low=64
    )
    chunked_prefill_size: int = setting(256, "scheduler", "prompt tokens of one request in one step", low=64)
    schedule_policy: str = setting("fcfs", "scheduler", f"order of the queue: {', '.join(POLICIES)}")
    schedule_conservativeness: float = setting(
        1.0, "scheduler", "share of future tokens kept free; below 1 admits more and retracts more often", low=0
    )
    max_queued_tokens: int | None = setting(None, "scheduler", "prompt tokens that may wait; 503 above", low=1)
    queue_timeout: float | None = setting(
        None, "scheduler", "seconds a request may wait to be admitted; 503 after", low=0.001
    )
    max_token_gap: float | None = setting(
        None, "scheduler", "longest wanted seconds between a stream's tokens while prompts run", low=0.001
    )
    disable_overlap_schedule: bool = setting(
        False, "scheduler", "plan a step only when the last is done, not while it runs"
    )
    enable_priority_scheduling: bool = setting(False, "scheduler", "serve better `priority` first; higher is better")
    schedule_low_priority_values_first: bool = setting(False, "scheduler", "lower `priority` is better")
    default_priority_value: int | None = setting(
        None, "scheduler", "priority of a request without one; the worst when absent"
    )
    priority_scheduling_preemption_threshold: int = setting(
        10, "scheduler", "a running request gives way to one better by more than this", low=0
    )
    disable_priority_preemption: bool = setting(False, "scheduler", "a running request never gives way")
    abort_on_priority_when_disabled: bool = setting(
        False, "scheduler", "503 for a request with `priority` while priorities are off"
    )

    disable_radix_cache: bool = setting(False, "cache", "keep no prefix for later requests")
    radix_eviction_policy: str = setting("lru", "cache", f"what leaves the cache first: {', '.join(EVICTIONS)}")
    radix_eviction_policy_config: str | None = setting(None, "cache", "JSON object of the eviction policy's parameters")
    snapshot_slots: int | None = setting(
        None,
        "cache",
        "recurrent-state snapshots the cache may hold; twice --max-running-requests",
        low=1,
        alias="max-mamba-cache-size",
    )
    snapshot_stride: int = setting(4096, "cache", "tokens between snapshots under a long prompt", low=64)
    host_cache_gb: float = setting(0.0, "cache", "host memory for prefixes the device has no room for, in GB", low=0)
    session_snapshots: int | None = setting(
        None, "cache", "snapshots that sessions may pin; a quarter of --snapshot-slots", low=0
    )

    device: Literal["cpu"] = setting("cpu", "device", "device to run on")
    device_mode: Literal["auto", "eager", "compiled"] = setting(
        "auto", "device", "auto starts eager and swaps compiled graphs in"
    )
    device_threads: int | None = setting(None, "device", "compute threads; all cores but one when absent", low=1)
    deterministic: bool = setting(
        False, "device", "one fixed shape: same bits alone or in any batch", alias="enable-deterministic-inference"
    )
    structured_outputs: bool = setting(
        False, "device", "graphs that take masks: JSON, patterns, grammars, strict tool calls, thinking budgets"
    )
    penalties: bool = setting(False, "device", "graphs that change logits: penalties and logit_bias")
    penalty_buckets: str = setting(
        "64,1024", "device", "how many tokens of a request may be changed, by commas; the whole vocabulary is added"
    )
    compile_cache_dir: str | None = setting(None, "device", "folder of compiled graphs; ~/.cache/trnrt when absent")

    decode_log_interval: int = setting(
        40, "logging", "decode steps between two lines about them; prefill steps have one each; 0: no such lines", low=0
    )

    @property
    def penalty_tokens(self) -> tuple[int, ...]:
        """Return --penalty-buckets as numbers; raises ConfigError unless they are some, rising and above 0."""
        sizes = [size.strip() for size in self.penalty_buckets.split(",")]
        numbers = tuple(int(size) for size in sizes if size.isascii() and size.isdecimal() and len(size) < 17)
        if len(numbers) < len(sizes) or list(numbers) != sorted(set(numbers)) or not numbers[0]:
            raise ConfigError(
                f"--penalty-buckets: expected rising whole numbers above 0, by commas, got {self.penalty_buckets!r}"
            )
        return numbers

    def flags(self) -> dict[str, object]:
        """Return every setting by name, as /server_info and the log line show them: of a secret only that it is set."""
        return shown(self)


def load_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Return the Config of argv over environ over the TOML file over the preset; raises ConfigError with a name."""
    return config_of(vars(parser().parse_args(argv)), environ)


def config_of(given: Mapping[str, Any], environ: Mapping[str, str], suited: Mapping[str, Any] | None = None) -> Config:
    """Return the Config of flags already parsed; `suited` are settings by field name that beat only the defaults."""
    layers = Layers(Config, given, environ)
    preset = layers.get("preset") or "default"
    if preset not in PRESETS:
        raise ConfigError(f"--preset: there is no preset {preset!r}; choose from {', '.join(PRESETS)}")
    values = layers.merged(suited or {}, PRESETS[preset].settings)
    config = Config(**values)
    _check(config)
    # An order by priority without priorities would be no order at all.
    implied = config.schedule_policy == "priority"
    return attrs.evolve(config, enable_priority_scheduling=config.enable_priority_scheduling or implied)


def parser(
    groups: Sequence[str] = GROUPS,
    prog: str = "python -m trnrt",
    description: str = "Serve GLM-5.3-Flash behind SGLang's native API and OpenAI's Chat and Completions.",
) -> FlagParser:
    """Return the parser of the flags of `groups`, all of `serve`'s by default: grouped, one line a flag."""
    result = FlagParser(prog, description)
    result.add_settings(Config, groups)
    return result


def convert(name: str, raw: str, where: str) -> Any:
    """Return the value of the setting `name` from its text; raises ConfigError naming `where` it stands."""
    return convert_field(settings_of(Config)[name], raw, where)


def check_http(config: HttpConfig) -> None:
    """Raise ConfigError, naming the flag, for what no server can listen or be seen by."""
    if config.port > 65535:
        raise ConfigError(f"--port: must be at most 65535, got {config.port}")
    if config.log_requests_level > MAX_REQUESTS_LEVEL:
        raise ConfigError(
            f"--log-requests-level: must be at most {MAX_REQUESTS_LEVEL}, got {config.log_requests_level}"
        )
    if config.prompt_cache_audit > 1:
        raise ConfigError(f"--prompt-cache-audit: must be at most 1, got {config.prompt_cache_audit:g}")
    if config.prompt_cache_mb * MIB > MAX_INT:
        raise ConfigError(f"--prompt-cache-mb: must be at most {MAX_INT // MIB}, got {config.prompt_cache_mb}")
    if config.otlp_sample_ratio > 1:
        raise ConfigError(f"--otlp-sample-ratio: must be at most 1, got {config.otlp_sample_ratio:g}")


def _check(config: Config) -> None:
    _ = config.penalty_tokens
    check_http(config)
    if config.chunked_prefill_size % 64:
        raise ConfigError(f"--chunked-prefill-size: must be a multiple of 64, got {config.chunked_prefill_size}")
    if config.host_cache_gb * 1e9 > MAX_INT:
        raise ConfigError(f"--host-cache-gb: must be at most {MAX_INT // 10**9}, got {config.host_cache_gb:g}")
    if config.schedule_policy not in POLICIES:
        raise ConfigError(f"--schedule-policy: expected one of {', '.join(POLICIES)}, got {config.schedule_policy!r}")
    if config.radix_eviction_policy not in EVICTIONS:
        raise ConfigError(
            f"--radix-eviction-policy: expected one of {', '.join(EVICTIONS)}, got {config.radix_eviction_policy!r}"
        )
    if config.enable_priority_scheduling and config.schedule_policy not in PRIORITY_POLICIES:
        raise ConfigError(
            f"--enable-priority-scheduling: goes with --schedule-policy {', '.join(PRIORITY_POLICIES)}, "
            f"not with {config.schedule_policy}"
        )
    if config.disable_radix_cache and config.schedule_policy in SHORTEST_FIRST:
        raise ConfigError(
            f"--schedule-policy: {config.schedule_policy} needs the prefix cache, without --disable-radix-cache"
        )
