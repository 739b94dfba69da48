"""Flags, environment and TOML become one frozen Config, once; everything after this reads it and nothing changes it.

Each setting is one field: its flag is the field's name with dashes, its environment variable TRNRT_ and the name in
capitals, its TOML key the name. A flag beats the environment, which beats the file, which beats the preset, which
beats the default. `--help`, the table in docs/CONFIGURATION.md and the errors are all made from the fields.
"""

import argparse
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import attrs
from attrs import Attribute, frozen

from stages.errors import ConfigError
from stages.scheduler.eviction import eviction_names
from stages.scheduler.policies import policy_names
from trnrt.presets import PRESETS

POLICIES, EVICTIONS = policy_names(), eviction_names()
# Those that can order equals of a priority.
PRIORITY_POLICIES = ("fcfs", "lof", "priority")
SHORTEST_FIRST = ("shortest-prefill-first", "spf")

# No number of anything is larger, and arithmetic with it stays exact in a float.
MAX_INT = 2**53

GROUPS = ("model", "http", "api", "scheduler", "cache", "device", "logging")


def setting(
    default: Any, group: str, text: str, *, low: float | None = None, alias: str | None = None, secret: bool = False
) -> Any:
    """Return a field with its group, its one line of help, its smallest value and SGLang's other name for it."""
    metadata = {"group": group, "text": text, "low": low, "alias": alias, "secret": secret}
    return attrs.field(default=default, metadata=metadata, repr=not secret)


@frozen
class Config:
    """Every setting of `python -m trnrt`, resolved."""

    model_path: str | None = setting(
        None, "model", "checkpoint folder; the shipped demo model when absent", alias="model"
    )
    tokenizer_path: str | None = setting(None, "model", "folder with tokenizer.json; the model's own when absent")
    served_model_name: str | None = setting(None, "model", "name in /v1/models and answers; the folder's when absent")
    model_alias: str = setting("claude-*", "model", "other names it answers to, by commas; * stands for any text")
    context_length: int | None = setting(None, "model", "longest prompt + answer in tokens; the model's own", low=8)
    dtype: Literal["auto", "bfloat16", "float32"] = setting(
        "auto", "model", "type of weights; auto is the checkpoint's"
    )
    preset: str = setting("default", "model", f"named settings: {', '.join(PRESETS)}")
    config: str | None = setting(None, "model", "TOML file with settings by field name")

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

    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "logging", "least severe line to log")
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
    decode_log_interval: int = setting(
        40, "logging", "decode steps between two lines about them; prefill steps have one each; 0: no such lines", low=0
    )
    otlp_endpoint: str | None = setting(
        None,
        "logging",
        "OpenTelemetry collector to send traces to, OTLP over HTTP: http://HOST:4318; needs trnrt[otel]",
        alias="otlp-traces-endpoint",
    )
    otlp_sample_ratio: float = setting(
        1.0, "logging", "share of requests to trace, 0 to 1, of those that belong to no trace yet", low=0
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
        secrets = {field.name for field in attrs.fields(Config) if field.metadata["secret"]}
        values = attrs.asdict(self)
        return values | {name: "***" for name in secrets if values[name] is not None}


def load_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Return the Config of argv over environ over the TOML file over the preset; raises ConfigError with a name."""
    return config_of(vars(parser().parse_args(argv)), environ)


def config_of(given: Mapping[str, Any], environ: Mapping[str, str], suited: Mapping[str, Any] | None = None) -> Config:
    """Return the Config of flags already parsed; `suited` are settings by field name that beat only the defaults."""
    fields = {field.name: field for field in attrs.fields(Config)}
    values: dict[str, Any] = {}
    from_env = {
        name: _convert(field, environ[key], key)
        for name, field in fields.items()
        if (key := f"TRNRT_{name.upper()}") in environ
    }
    toml_path = given.get("config") or from_env.get("config")
    from_file = _read_toml(toml_path, fields) if toml_path else {}
    preset = given.get("preset") or from_env.get("preset") or from_file.get("preset") or "default"
    if preset not in PRESETS:
        raise ConfigError(f"--preset: there is no preset {preset!r}; choose from {', '.join(PRESETS)}")
    for layer in (suited or {}, PRESETS[preset].settings, from_file, from_env, given):
        values.update(layer)
    config = Config(**values)
    _check(config)
    # An order by priority without priorities would be no order at all.
    implied = config.schedule_policy == "priority"
    return attrs.evolve(config, enable_priority_scheduling=config.enable_priority_scheduling or implied)


def parser(
    groups: Sequence[str] = GROUPS,
    prog: str = "python -m trnrt",
    description: str = "Serve GLM-5.3-Flash behind SGLang's native API and OpenAI's Chat and Completions.",
) -> argparse.ArgumentParser:
    """Return the parser of the flags of `groups`, all of `serve`'s by default: grouped, one line a flag."""
    result = _Parser(
        prog=prog,
        description=description,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=54, width=150),
    )
    for group in groups:
        section = result.add_argument_group(group)
        for field in attrs.fields(Config):
            if field.metadata["group"] == group:
                _add_flag(section, field)
    return result


def convert(name: str, raw: str, where: str) -> Any:
    """Return the value of the setting `name` from its text; raises ConfigError naming `where` it stands."""
    return _convert(getattr(attrs.fields(Config), name), raw, where)


def flag_name(field: "Attribute[Any]") -> str:
    """Return the flag of a field."""
    return "--" + field.name.replace("_", "-")


def field_kind(field: "Attribute[Any]") -> tuple[type, tuple[str, ...]]:
    """Return a field's plain type and, for a Literal, its choices."""
    hint = get_type_hints(Config)[field.name]
    if get_origin(hint) is UnionType:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is Literal:
        return str, get_args(hint)
    return hint, ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(message)


def _add_flag(section: Any, field: "Attribute[Any]") -> None:
    kind, choices = field_kind(field)
    default = "" if field.default is None else f" [{field.default}]"
    options: dict[str, Any] = {
        "dest": field.name,
        "type": lambda raw: _convert(field, raw, flag_name(field)),
        "metavar": "{" + ",".join(choices) + "}" if choices else kind.__name__.upper(),
    }
    if kind is bool:
        options |= {"nargs": "?", "const": True}
    section.add_argument(flag_name(field), help=field.metadata["text"].replace("%", "%%") + default, **options)
    if alias := field.metadata["alias"]:
        section.add_argument(f"--{alias}", help=argparse.SUPPRESS, **options)


def _convert(field: "Attribute[Any]", raw: Any, where: str) -> Any:
    kind, choices = field_kind(field)
    try:
        value = _scalar(kind, raw)
    except ValueError:
        raise ConfigError(f"{where}: expected {_noun(kind)}, got {raw!r}") from None
    if choices and value not in choices:
        raise ConfigError(f"{where}: expected one of {', '.join(choices)}, got {raw!r}")
    low = field.metadata["low"]
    if low is not None and not value >= low:
        raise ConfigError(f"{where}: must be at least {low:g}, got {raw}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: must be a finite number, got {raw}")
    if isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
        raise ConfigError(f"{where}: must be at most {MAX_INT} in size, got {raw}")
    return value


def _scalar(kind: type, raw: Any) -> Any:
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if str(raw).lower() not in words:
            raise ValueError
        return words[str(raw).lower()]
    if isinstance(raw, bool) or (kind is not str and not isinstance(raw, str | int | float)):
        raise ValueError
    if kind is int and isinstance(raw, float):
        raise ValueError
    if kind is str and not isinstance(raw, str):
        raise ValueError
    return kind(raw)


def _noun(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def _read_toml(path: str, fields: "Mapping[str, Attribute[Any]]") -> dict[str, Any]:
    try:
        table = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:  # not TOML, or not UTF-8
        raise ConfigError(f"--config: cannot read {path}: {error}") from None
    values = {}
    for key, raw in table.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise ConfigError(f"--config: {path} has an unknown key {key!r}")
        values[name] = _convert(fields[name], raw, f"{path}: {key}")
    return values


def _check(config: Config) -> None:
    _ = config.penalty_tokens
    if config.log_requests_level > 3:
        raise ConfigError(f"--log-requests-level: must be at most 3, got {config.log_requests_level}")
    if config.otlp_sample_ratio > 1:
        raise ConfigError(f"--otlp-sample-ratio: must be at most 1, got {config.otlp_sample_ratio:g}")
    if config.port > 65535:
        raise ConfigError(f"--port: must be at most 65535, got {config.port}")
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
