"""One frozen settings class per stage; trnrt/config.py fills them from flags, stages only read them."""

from attrs import frozen

from stages.messages import Sampling


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
    incremental_streaming_output: bool = False


@frozen
class PromptSettings:
    """Template and tokenizer."""

    tokenizer_path: str
    template: str = "glm5"


@frozen
class SchedulerSettings:
    """Queue limits, policy and step composition."""

    max_queued_requests: int = 2048
    max_running_requests: int = 32
    chunked_prefill_size_tokens: int = 256
    max_prefill_rows: int = 4
    schedule_policy: str = "fcfs"
    new_token_reserve: float = 0.3
    # Plan the next step while one is on the device.
    overlap: bool = False


@frozen
class DetokenizerSettings:
    """Parsers by name; None is off."""

    tokenizer_path: str
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
