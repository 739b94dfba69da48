"""Makes Statistics of what was counted and of what stands where it stands. Core: times are passed in."""

from collections.abc import Callable, Iterable
from itertools import islice

from stages.messages import Load
from stages.stats.book import Book
from stages.stats.sources import Sources, Watched
from stages.stats.statistics import SCHEMA, Call, Engine, Pages, Stage, Statistics, Tier
from stages.trail import Trail

MAX_CALLS = 100


def statistics_of(book: Book, sources: Sources, now_s: float, num_lost: int) -> Statistics:
    """Return everything as of now_s, on trio's clock."""
    unix_s = book.unix_s(now_s)
    totals = book.counters.totals
    running, waiting = _calls(sources.live(), now_s)
    rate = "prompt_tokens" if sources.load is not None else "ended_prompt_tokens"
    return Statistics(
        version_of_schema=SCHEMA,
        unix_s=unix_s,
        uptime_s=now_s - book.started_s,
        role=sources.role,
        version=sources.version,
        model=sources.model,
        status=sources.status(),
        worker=sources.worker,
        completion_tokens_per_s=book.rate("completion_tokens", now_s),
        prompt_tokens_per_s=book.rate(rate, now_s),
        stages=tuple(stage_of(watched, book, now_s) for watched in sources.stages),
        engine=_engine(sources.load(), totals.__getitem__, sources.max_running) if sources.load is not None else None,
        speculation=None,
        prompt_cache=sources.prompt_cache() if sources.prompt_cache is not None else None,
        windows=book.spans.windows(unix_s),
        days=book.spans.days(unix_s),
        num_calls=sum(1 for _ in sources.live()),
        running=running,
        waiting=waiting,
        failures=book.failures(),
        lost={"records": num_lost, **{name: count() for name, count in sources.lost.items()}},
    )


def stage_of(watched: Watched, book: Book, now_s: float) -> Stage:
    """Return how one stage stands as of now_s."""
    meters, depth = watched.meters, watched.depth()
    if not meters:
        return Stage(watched.name, depth, max(watched.high_water(), depth), watched.capacity)
    waiting_s, working_s = (sum(times) for times in zip(*(meter.times(now_s) for meter in meters), strict=True))
    if watched.works is not None:
        both_s, working_s = waiting_s + working_s, watched.works()
        waiting_s = book.waited(watched.name, both_s - working_s)
    return Stage(
        name=watched.name,
        depth=depth,
        high_water=max(depth, *(meter.high_water for meter in meters)),
        capacity=watched.capacity,
        received=sum(meter.received for meter in meters),
        waiting_s=waiting_s,
        working_s=working_s,
        busy=book.busy(watched.name, working_s / len(meters), now_s),
    )


def _engine(load: Load, total: Callable[[str], float], max_running: int | None) -> Engine:
    has_host = load.total_host_pages > 0
    return Engine(
        running=load.running,
        waiting=load.waiting,
        waiting_tokens=load.waiting_tokens,
        retracted=load.retracted,
        is_paused=load.is_paused,
        max_running=max_running,
        used_slots=load.used_slots,
        total_slots=load.total_slots,
        page_size_tokens=load.page_size_tokens,
        device=Tier(
            _pages(load.total_pages, load.used_pages, load.evictable_pages),
            _pages(load.total_snapshots, load.used_snapshots, load.evictable_snapshots),
        ),
        host=Tier(
            _pages(load.total_host_pages, load.used_host_pages, load.used_host_pages),
            _pages(load.total_host_snapshots, load.used_host_snapshots, load.used_host_snapshots),
        )
        if has_host
        else None,
        steps_prefill=int(total("steps_prefill")),
        steps_decode=int(total("steps_decode")),
        device_s=total("device_s"),
        retractions=int(total("retractions")),
        preemptions=int(total("preemptions")),
    )


def _pages(total: int, used: int, cached: int) -> Pages:
    return Pages(total, used - cached, cached, total - used)


def _calls(live: Iterable[Trail], now_s: float) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    trails = list(live)
    running = (trail for trail in trails if trail.phase == "running")
    waiting = (trail for trail in trails if trail.phase != "running")
    return (
        tuple(_call(trail, now_s) for trail in islice(running, MAX_CALLS)),
        tuple(_call(trail, now_s) for trail in islice(waiting, MAX_CALLS)),
    )


def _call(trail: Trail, now_s: float) -> Call:
    return Call(
        request_id=trail.request_id,
        route=trail.route,
        is_streamed=trail.is_streamed,
        phase=trail.phase,
        age_s=now_s - trail.arrived_s,
        prompt_tokens=trail.prompt_tokens,
        cached_tokens=trail.cached_device_tokens + trail.cached_host_tokens,
        completion_tokens=trail.completion_tokens,
        num_choices=trail.num_choices,
    )
