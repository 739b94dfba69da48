"""What /v1/stats answers, class by class; every field says what it is, and docs/API.md is made of that. Core.

Times are seconds, sizes tokens, pages or snapshots as the name says; null is what this server does not have or has not
seen yet. Nothing here is text of a prompt or an answer.
"""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

# Raised when a field goes or changes its meaning; new fields do not change it.
SCHEMA = 1


def fact(text: str, **options: Any) -> Any:
    """Return a field whose meaning docs/API.md tells in the words of `text`."""
    return field(metadata={"text": text}, **options)


@frozen
class Latency:
    """Times of one kind; percentiles are within 1 %, count, mean and max exact."""

    count: int = fact("how many", default=0)
    mean_s: float | None = fact("arithmetic mean", default=None)
    p50_s: float | None = fact("half took no longer", default=None)
    p90_s: float | None = fact("90 % took no longer", default=None)
    p95_s: float | None = fact("95 % took no longer", default=None)
    p99_s: float | None = fact("99 % took no longer", default=None)
    max_s: float | None = fact("the longest", default=None)


@frozen
class Window:
    """What happened in a span of time; a call counts when it ends, a generated token when it is delivered."""

    span_s: float = fact("how much of the span has passed: what rates are over")
    calls: int = fact("generation calls that ended, refused ones too")
    calls_per_s: float = fact("calls over span_s")
    outcomes: Mapping[str, int] = fact(
        "calls by how they ended: stop, tool_calls, length, abort, error, refused (before any of it ran), disconnected"
    )
    unavailable: Mapping[str, int] = fact("calls refused or ended by a 503, by cause")
    prompt_tokens: int = fact("tokens of the calls' prompts, but for refused ones")
    prompt_tokens_per_s: float = fact("prompt_tokens over span_s")
    completion_tokens: int = fact("generated tokens")
    completion_tokens_per_s: float = fact("completion_tokens over span_s")
    cached_device_tokens: int = fact("of those, cached on the device")
    cached_host_tokens: int = fact("of those, come back from host memory")
    cache_hit_rate: float | None = fact("share cached in either tier, of the prompts of calls that got a place")
    time_to_first_token: Latency = fact("from a call's arrival to the delivery of its first token")
    inter_token: Latency = fact("between two tokens of one choice; one entry a token")
    end_to_end: Latency = fact("from a call's arrival to its end, of those that were not refused")
    queue_wait: Latency = fact("from joining the queue to a place on the device")


@frozen
class Day(Window):
    """One UTC day."""

    date: str = fact("YYYY-MM-DD", kw_only=True)


@frozen
class Windows:
    """The same figures over spans that end now; the first three begin at a boundary of 5 s or 30 s."""

    last_1m: Window = fact("the last minute")
    last_5m: Window = fact("the last five minutes")
    last_15m: Window = fact("the last fifteen minutes")
    since_start: Window = fact("since the server started")


@frozen
class Stage:
    """One stage: what stands in its inbox, and how its time goes."""

    name: str = fact("ingress, prompt, grammar, queue, scheduler, executor, detokenizer, engine or stats")
    depth: int = fact("items in its inbox now; of ingress calls under way, of queue choices that wait")
    high_water: int = fact("the most there ever were")
    capacity: int | None = fact("how many it takes before it refuses; null for no bound", default=None)
    received: int | None = fact("items it took since the start", default=None)
    waiting_s: float | None = fact("time it waited for an item, since the start", default=None)
    working_s: float | None = fact("time between an item and its next wait; of executor the device's", default=None)
    busy: float | None = fact("working_s over both, in the last 10 s or so", default=None)


@frozen
class Pages:
    """Numbers of one pool by who has them."""

    total: int = fact("all")
    running: int = fact("held by requests, sessions and copies under way, shared ones too")
    cached: int = fact("held by the prefix cache alone: given up when a request needs them")
    free: int = fact("held by nobody")


@frozen
class Tier:
    """One tier of the cache."""

    pages: Pages = fact("pages of latents and index keys")
    snapshots: Pages = fact("recurrent states of prefixes; a prefix is resumed only where one is")


@frozen
class Engine:
    """The engine of this process; null in a renderer, whose engine is another's."""

    running: int = fact("choices on the device")
    waiting: int = fact("choices in the queue, retracted ones too")
    waiting_tokens: int = fact("tokens they have to compute")
    retracted: int = fact("of those waiting, how many gave their memory back and wait to go on")
    is_paused: bool = fact("whether an operator has paused it")
    max_running: int | None = fact("choices that fit on the device at once")
    used_slots: int = fact("recurrent states of running choices")
    total_slots: int = fact("how many there are")
    page_size_tokens: int = fact("tokens of a page")
    device: Tier = fact("memory on the device")
    host: Tier | None = fact("host memory; null without that tier")
    steps_prefill: int = fact("prefill steps since the start")
    steps_decode: int = fact("decode steps since the start")
    device_s: float = fact("time the device worked since the start")
    retractions: int = fact("times a choice gave its memory back for want of it, since the start")
    preemptions: int = fact("times a choice gave way to a better priority, since the start")


@frozen
class Speculation:
    """Drafted tokens; null while nothing is drafted."""

    drafted_tokens: int = fact("tokens drafted since the start")
    accepted_tokens: int = fact("and of those, accepted")
    accept_rate: float | None = fact("accepted over drafted")
    accept_length: float | None = fact("tokens a step gives one choice, on average")


@frozen
class PromptCache:
    """The prompt token cache; null without one. Counts are of chats since the start."""

    is_on: bool = fact("whether it is used; it is turned off for good where it cannot be right, or was wrong")
    reason: str | None = fact("why it is off")
    num_bytes: int = fact("memory it has")
    max_bytes: int = fact("the most it may have")
    num_pieces: int = fact("parts of prompts it has")
    hits: int = fact("prompts of which any part was found")
    misses: int = fact("prompts of which none was")
    found_tokens: int = fact("tokens that were found, control tokens too")
    encoded_tokens: int = fact("tokens that were encoded")
    audits: int = fact("hits that were encoded whole and compared")
    mismatches: int = fact("audits and self-checks that found other ids: 0 or 1")


@frozen
class Call:
    """A generation call under way; no text."""

    request_id: str = fact("its x-request-id")
    route: str = fact("its path")
    is_streamed: bool = fact("whether the answer is streamed")
    phase: str = fact("rendering (its prompts), waiting (for a place) or running")
    age_s: float = fact("since it arrived")
    prompt_tokens: int = fact("of its prompts, 0 before they are rendered")
    cached_tokens: int = fact("of those, found cached")
    completion_tokens: int = fact("generated so far")
    num_choices: int = fact("how many choices it has, of all its prompts")


@frozen
class Failure:
    """A call that was refused or failed; no text."""

    unix_s: float = fact("when, Unix time")
    request_id: str = fact("its x-request-id")
    route: str = fact("its path")
    status: int | None = fact("HTTP status")
    outcome: str = fact("as in outcomes")
    cause: str | None = fact("why, a word")


@frozen
class Statistics:
    """Everything, as of one instant."""

    version_of_schema: int = fact("raised when a field goes or changes its meaning")
    unix_s: float = fact("when, Unix time")
    uptime_s: float = fact("since the server started")
    role: str = fact("serve or render")
    version: str = fact("of the package")
    model: str = fact("the served model's name")
    status: str = fact("starting, ready or draining")
    worker: int | None = fact("which worker process answers, where there are several")
    completion_tokens_per_s: float = fact("over the last 10 s")
    prompt_tokens_per_s: float = fact("over the last 10 s, as prompts are computed; in a renderer as calls end")
    stages: tuple[Stage, ...] = fact("in the order in which a request meets them")
    engine: Engine | None = fact("null in a renderer")
    speculation: Speculation | None = fact("null while nothing is drafted")
    prompt_cache: PromptCache | None = fact("null without --prompt-cache-mb")
    windows: Windows = fact("rates and latencies")
    days: tuple[Day, ...] = fact("the same by UTC day, the newest first; at most 14, since the start")
    num_calls: int = fact("generation calls under way")
    running: tuple[Call, ...] = fact("those that run, the oldest first; at most 100")
    waiting: tuple[Call, ...] = fact("those that do not yet, the oldest first; at most 100")
    failures: tuple[Failure, ...] = fact("the newest first: at most 50 of status 500 and above, 20 of others")
    lost: Mapping[str, int] = fact("what was dropped rather than keep a request waiting, by kind")
