"""One frozen settings class per stage; trnrt/config.py fills them from flags, stages only read them."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from attrs import field, frozen

from stages.engine.origin import Origin
from stages.messages import Penalties, Sampling


@frozen
class IngressSettings:
    """HTTP: where to listen and what to accept."""

    host: str = "127.0.0.1"
    port: int = 30000
    max_request_bytes: int = 32 * 1024 * 1024
    keep_alive_timeout_s: float = 75.0
    write_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    sse_ping_s: float = 15.0
    request_timeout_s: float | None = None
    api_key: str | None = None
    admin_api_key: str | None = None
    allowed_origins: tuple[str, ...] = ("*",)
    # What a proxy in front leaves at the beginning of paths.
    root_path: str = ""
    # A Unix socket's path, in place of host and port.
    unix_socket: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = None
    enable_metrics: bool = False
    # The share of calls without a trace that begin one; None where nothing is traced.
    trace_sample_ratio: float | None = None


@frozen
class Bounds:
    """How much of a thing OpenAI's routes may be asked for."""

    max_choices: int = 128
    max_top_logprobs: int = 20
    max_temperature: float = 2.0


@frozen
class ModelSettings:
    """What the dialects and the request task know of the served model."""

    served_model_name: str
    model_path: str
    model_type: str
    architectures: tuple[str, ...]
    context_length_tokens: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    reasoning_parser: str | None
    tool_call_parser: str | None
    default_sampling: Sampling
    # Where a request says nothing of them; other than none only for models whose engines have penalties.
    default_penalties: Penalties = field(factory=Penalties)
    # The same of completions, which SGLang's own servers draw with OpenAI's defaults.
    completion_sampling: Sampling = field(factory=Sampling)
    completion_penalties: Penalties = field(factory=Penalties)
    bounds: Bounds = Bounds()
    incremental_streaming_output: bool = False
    refuses_priority: bool = False
    queue_timeout_s: float | None = None
    # Which optional inputs the graphs have: token masks (--structured-outputs), changed logits (--penalties).
    structured_outputs: bool = False
    penalties: bool = False
    # What ends every chat beside the request's own stops: the chat template's.
    chat_stop: tuple[str, ...] = ()
    # Tokens of the context that neither prompt nor answer may use.
    reserved_tokens: int = 0
    # Whether prompts and answers that are too long for the context are cut, in place of a refusal.
    truncates: bool = False
    # Other names clients may call it by; * stands for any text.
    aliases: tuple[str, ...] = ()

    def answers_to(self, name: str) -> bool:
        """Return whether `name` means this model."""
        if name in (self.served_model_name, self.model_path):
            return True
        return any(fnmatchcase(name, alias) for alias in self.aliases)


@frozen
class PromptSettings:
    """Template and tokenizer."""

    tokenizer_path: str
    # The name of a template of ours, or the checkpoint's own.
    template: "str | TemplateSource" = "glm5"


@frozen
class TemplateSource:
    """A chat template in Jinja; `texts` has "default", and "tool_use" where tools have one of their own.

    Without texts chats are refused, `missing` says why. variables are the tokenizer's bos_token and its like,
    defaults are switches that requests may set otherwise, stop ends every answer beside the request's own.
    """

    texts: Mapping[str, str]
    missing: str = ""
    variables: Mapping[str, Any] = field(factory=dict)
    defaults: Mapping[str, Any] = field(factory=dict)
    stop: tuple[str, ...] = ()
    # Whether control tokens written in messages become control tokens, as engines' own templating has it.
    trusts_special_tokens: bool = False
    # A format of ours by name, in place of texts.
    native: str = ""


@frozen
class SchedulerSettings:
    """Queue limits, policy, memory and step composition."""

    max_queued_requests: int = 2048
    max_queued_tokens: int | None = None
    max_running_requests: int = 32
    chunked_prefill_size_tokens: int = 256
    max_prefill_rows: int = 4
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    # Plan the next step while one is on the device.
    overlap: bool = False
    # How long decoding waits for masks of rows that would run in its next step, so that they stay in one step.
    mask_patience_s: float = 0.005
    # Longest wanted silence of a stream because of another's prefill; None takes full chunks.
    max_token_gap_s: float | None = None
    priority: "PrioritySettings | None" = None
    cache: "CacheSettings | None" = None
    # Decode steps between two lines about them; 0 for no lines about steps at all.
    decode_log_interval: int = 0


@frozen
class PrioritySettings:
    """Priority scheduling: better values first, and who may take a running one's place."""

    low_values_first: bool = False
    default: int | None = None
    # A running choice gives way only to one better by more than this; None never.
    preemption_threshold: int | None = 10


@frozen
class CacheSettings:
    """The prefix cache; a SchedulerSettings without one keeps nothing after a choice's end."""

    eviction_policy: str = "lru"
    # Parameters of the eviction policy by name.
    eviction_parameters: Mapping[str, float] = field(factory=dict)
    # Snapshots the tree may hold on the device.
    max_snapshots: int = 64
    # Distance of the snapshots under a long prompt.
    stride_tokens: int = 4096
    # The first of these in a prompt ends what conversations share: system text and tools.
    boundary_token_ids: frozenset[int] = frozenset()
    # Snapshots that sessions may pin.
    max_pinned: int = 16
    # Where snapshots are taken: at the ends of turns, or on peers' fixed grid, to compare with in simulation.
    placement: Literal["turns", "grid"] = "turns"


@frozen
class DetokenizerSettings:
    """Parsers by name; None is off."""

    tokenizer_path: str
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    # Whether formats that have a parser of ids are read by it: of one's own engine, whose tags are never spelled out.
    reads_ids: bool = True


@frozen
class GrammarSettings:
    """Constrained output: whose tokens, and what a client's grammar may cost."""

    tokenizer_path: str
    vocab_size: int
    eos_token_ids: frozenset[int]
    reasoning_parser: str | None = None
    # Worker processes, each with a grammar library of its own; the second starts when the first is busy.
    num_workers: int = 2
    # Constraints that may wait for a worker; 503 beyond.
    max_compiles: int = 64
    max_source_bytes: int = 1 << 20
    compile_timeout_s: float = 5.0
    # What a worker may take beyond what it takes idle.
    worker_memory_bytes: int = 1 << 30
    max_compiled_bytes: int = 64 << 20
    cache_bytes: int = 256 << 20
    # How long masks are collected before those that are ready are told.
    mask_slice_s: float = 0.002
    # How long one mask may take before its choice ends.
    mask_limit_s: float = 2.0
    # Threads that masks may be stuck in; more rows than that wait.
    max_lanes: int = 4


@frozen
class RemoteSettings:
    """An engine behind this server: where it is, what it is asked with, how long it is waited for (None: for ever)."""

    origin: Origin
    api_key: str | None = None
    # Choices at once; 503 beyond.
    max_running_choices: int = 4096
    # Choices of one request that may be waiting for the head of their streams.
    max_opening: int = 32
    connect_timeout_s: float = 10.0
    # From the request to the first event, and between two of them; 504 beyond.
    first_event_timeout_s: float | None = None
    idle_timeout_s: float | None = None
    max_event_bytes: int = 64 * 1024 * 1024
    # End tokens that the engine knows by itself.
    own_end_ids: frozenset[int] = frozenset()
