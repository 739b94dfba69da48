"""What one call leaves behind on its way: each stage notes its own instants, ingress makes a RequestRecord of it.

A Trail is shared by the asks and choices of its call and travels with every Submit; whoever has one writes to it and
awaits nothing. A token costs two stores in it. Core: times are passed in.

# Invariant: nothing here is text of a prompt or an answer.
"""

from typing import Literal

from attrs import define, field

from stages.errors import (
    Aborted,
    BodyTooLarge,
    BodyTooSlow,
    ContextOverflow,
    DeadlineExceeded,
    Draining,
    EngineFailure,
    PriorityRefused,
    QueueFull,
    RemoteFailure,
    RequestError,
    Unavailable,
)
from stages.messages import Cause, Ended, Finish, Outcome, RequestRecord, Usage
from stages.trace_context import TraceContext

# The more it says of how a call went, the later it stands: a call is told by the worst of its choices.
_BY_WEIGHT: tuple[Outcome, ...] = ("stop", "tool_calls", "length", "abort", "error")
_UNAVAILABLE = 503


@define(eq=False)
class Trail:
    """One call under way: what it is, when it got where (seconds on trio's clock, None for not yet), what it counts."""

    request_id: str = ""
    route: str = ""
    dialect: str = ""
    model: str = ""
    trace: TraceContext | None = None
    arrived_s: float = 0.0
    # Unix time of arrived_s, so that whoever reads records can tell the day.
    arrived_unix_s: float = 0.0
    is_streamed: bool = False
    is_constrained: bool = False
    num_choices: int = 1
    parsed_s: float | None = None
    prompt_ready_s: float | None = None
    submitted_s: float | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    prompt_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    retractions: int = 0
    # Whether any choice has called a tool.
    has_called: bool = False
    status: int | None = None
    cause: Cause | None = None
    _failure: Exception | None = None
    _worst: Outcome | None = None
    _num_ended: int = 0
    # Tokens of the choices that have ended, as their clients count them: what followed a stop string is not in it.
    _ended_tokens: int = 0
    _refused: bool = field(default=False)

    @property
    def phase(self) -> Literal["rendering", "waiting", "running"]:
        """Return where the call stands; an engine behind this server does not say when it lets one in."""
        if self.admitted_s is not None or self.first_token_s is not None:
            return "running"
        if self.submitted_s is not None:
            return "waiting"
        return "rendering"

    def rendered(self, num_tokens: int, now_s: float) -> None:
        """Note that the ids of one ask's prompt are there."""
        self.prompt_ready_s = now_s
        self.prompt_tokens += num_tokens

    def admitted(self, choice: int, usage: Usage, now_s: float) -> None:
        """Note that a choice left the queue, and what it found cached."""
        if self.admitted_s is None:
            self.admitted_s = now_s
        if choice == 0:
            self.cached_host_tokens += usage.cached_host_tokens
            self.cached_device_tokens += usage.cached_tokens - usage.cached_host_tokens

    def ended(self, ended: Ended) -> None:
        """Note how a choice ended."""
        usage, finish = ended.usage, ended.finish
        self._num_ended += 1
        self._ended_tokens += usage.completion_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        self.retractions += usage.num_retractions
        if self.admitted_s is None and ended.choice == 0:  # an engine behind this server says it only now
            self.cached_device_tokens += usage.cached_tokens
        self._weigh(_outcome_of(finish, self.has_called))
        if finish.cause is not None:
            self.cause = finish.cause
        elif finish.kind == "error" or finish.status is not None:
            self.cause = self.cause or "engine_failed"
        self._refused = self._refused or (finish.status is not None and self.first_token_s is None)

    def failed(self, error: Exception) -> None:
        """Note why the call failed as a whole, or was refused."""
        self._failure = error
        if self.cause is None or not isinstance(error, Unavailable):
            self.cause = cause_of(error)

    def record(self, now_s: float, is_complete: bool) -> RequestRecord:
        """Return the record of the call, which ends now; an incomplete one was cut off by its client leaving."""
        return RequestRecord(
            request_id=self.request_id,
            route=self.route,
            dialect=self.dialect,
            model=self.model,
            is_streamed=self.is_streamed,
            is_constrained=self.is_constrained,
            num_choices=self.num_choices,
            arrived_unix_s=self.arrived_unix_s,
            arrived_s=self.arrived_s,
            parsed_s=self.parsed_s,
            prompt_ready_s=self.prompt_ready_s,
            submitted_s=self.submitted_s,
            admitted_s=self.admitted_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            ended_s=now_s,
            prompt_tokens=self.prompt_tokens,
            cached_device_tokens=self.cached_device_tokens,
            cached_host_tokens=self.cached_host_tokens,
            completion_tokens=self._ended_tokens if self._num_ended >= self.num_choices else self.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
            retractions=self.retractions,
            outcome=self._outcome(is_complete),
            status=self.status,
            cause=self.cause,
            trace=self.trace,
        )

    def _outcome(self, is_complete: bool) -> Outcome:
        if not is_complete:
            return "disconnected"
        if self._failure is None:
            return "refused" if self._refused else self._worst or "stop"
        if isinstance(self._failure, Aborted):
            return "abort"
        return "error" if self._was_running(self._failure) else "refused"

    def _was_running(self, failure: Exception) -> bool:
        is_ours = isinstance(failure, EngineFailure) and not isinstance(failure, RemoteFailure)
        return is_ours or self.first_token_s is not None

    def _weigh(self, outcome: Outcome) -> None:
        if self._worst is None or _BY_WEIGHT.index(outcome) > _BY_WEIGHT.index(self._worst):
            self._worst = outcome


def cause_of(error: Exception) -> Cause:
    """Return the short word for why a call failed."""
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return cause
    return "internal"


def _outcome_of(finish: Finish, has_called: bool) -> Literal["stop", "tool_calls", "length", "abort", "error"]:
    if finish.kind == "stop":
        return "tool_calls" if has_called else "stop"
    return "stop" if finish.kind == "content_filter" else finish.kind


# The first that fits.
_CAUSES: tuple[tuple[type[Exception], Cause], ...] = (
    (QueueFull, "queue_full"),
    (Draining, "draining"),
    (DeadlineExceeded, "timeout"),
    (PriorityRefused, "priority_refused"),
    (Unavailable, "unavailable"),
    (ContextOverflow, "context_length"),
    (BodyTooLarge, "body_too_large"),
    (BodyTooSlow, "body_too_slow"),
    (RequestError, "invalid"),
    (Aborted, "aborted"),
    (RemoteFailure, "engine_refused"),
    (EngineFailure, "engine_failed"),
)
