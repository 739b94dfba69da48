"""What statistics reads where it stands: plain values that their owners keep, asked when somebody looks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field

from stages.inbox import Inbox, Meter
from stages.messages import Load
from stages.stats.statistics import PromptCache
from stages.trail import Trail


def _nothing() -> tuple[()]:
    return ()


@define(eq=False)
class Watched:
    """One stage as statistics sees it: its name, what stands in front of it, the meters of its tasks, its bound."""

    name: str
    depth: Callable[[], int]
    meters: Sequence[Meter] = ()
    capacity: int | None = None
    # Where its tasks hand the work on, how long that has worked.
    works: Callable[[], float] | None = None
    # Where there is no meter.
    high_water: Callable[[], int] = lambda: 0


def watched_inbox(name: str, inboxes: "Sequence[Inbox[Any]]", capacity: int | None = None) -> Watched:
    """Return the stage whose tasks read one channel through these inboxes."""
    meters = [inbox.meter for inbox in inboxes]
    return Watched(name, lambda: inboxes[0].statistics().current_buffer_used, meters, capacity)


@define(eq=False)
class Sources:
    """Where a role's figures come from; the callables are cheap and synchronous, whatever state the server is in."""

    role: str = "serve"
    version: str = "unknown"
    model: str = ""
    status: Callable[[], str] = lambda: "ready"
    worker: int | None = None
    max_running: int | None = None
    context_tokens: int = 0
    # In the order in which a request meets them.
    stages: list[Watched] = field(factory=list)
    live: Callable[[], Iterable[Trail]] = _nothing
    # None where the engine is another's.
    load: Callable[[], Load] | None = None
    # None without a prompt token cache.
    prompt_cache: Callable[[], PromptCache] | None = None
    # What was lost besides records, by kind: whoever loses something puts a counter here.
    lost: dict[str, Callable[[], int]] = field(factory=dict)
    # By kind: weight, kv_cache, graph.
    memory_bytes: Mapping[str, int] = field(factory=dict)
    # By phase.
    startup_s: Mapping[str, float] = field(factory=dict)
    # HTTP requests, those under way, and answers: by endpoint and method, answers by status too.
    http_requests: Mapping[tuple[str, str], int] = field(factory=dict)
    http_active: Mapping[tuple[str, str], int] = field(factory=dict)
    http_responses: Mapping[tuple[str, str, int], int] = field(factory=dict)
