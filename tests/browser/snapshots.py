"""Snapshots of servers in all states, of the server's own classes and encoder, so that the page has to follow them."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from stages.ingress.stats_routes import encoded
from stages.stats.statistics import (
    SCHEMA,
    Call,
    Day,
    Engine,
    Failure,
    Latency,
    Pages,
    Speculation,
    Stage,
    Statistics,
    Tier,
    Window,
    Windows,
)

NOW_S = 1_764_541_800.0
CAPACITIES = {"prompt": 4096, "queue": 256, "executor": 2, "stats": 4096}
STAGES = ("ingress", "prompt", "grammar", "queue", "scheduler", "executor", "detokenizer", "stats")
# How much of the device's working time another stage works beside it.
SHARES = {"executor": 1.0, "detokenizer": 0.18, "scheduler": 0.15, "prompt": 0.12, "grammar": 0.02, "ingress": None}
MAX_RUNNING, NUM_PAGES, MAX_LISTED = 32, 4096, 100


def snapshot(
    *,
    running: int = 0,
    queued: int = 0,
    after_s: float = 0.0,
    tokens: int = 0,
    rate: float = 0.0,
    wait_s: float = 0.01,
    busy: float = 0.0,
    refused: Mapping[str, int] | None = None,
    wrong: int = 0,
    failures: Sequence[tuple[str, int, str]] = (),
    name: str | None = None,
    inboxes: Mapping[str, int] | None = None,
    age_s: float = 5.0,
    cached: int = 1500,
    held: int | None = None,
    is_paused: bool = False,
    speculation: Speculation | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return a snapshot with so many choices that run and wait; `changes` are fields of its own."""
    depths = {"ingress": running + queued, "queue": queued, "executor": 2 if running else 0, **(inboxes or {})}
    ended = {"refused": wrong + sum((refused or {}).values()), "error": len(failures)}
    windows = {span: _fields(span, rate, wait_s, refused or {}, ended, tokens) for span in (60, 300, 900, 4321)}
    statistics = Statistics(
        version_of_schema=SCHEMA,
        unix_s=NOW_S + after_s,
        uptime_s=4321.0 + after_s,
        role="serve",
        version="0.1.0",
        model="glm-5.3-flash",
        status="ready",
        worker=None,
        completion_tokens_per_s=rate,
        prompt_tokens_per_s=rate * 7,
        stages=tuple(_stage(stage, depths.get(stage, 0), busy, after_s) for stage in STAGES),
        engine=_engine(running, queued, held, cached, is_paused),
        speculation=speculation,
        prompt_cache=None,
        windows=Windows(*(Window(**fields) for fields in windows.values())),
        days=tuple(Day(**windows[4321], date=f"2025-11-{day}") for day in (30, 29, 28)),
        num_calls=running + queued,
        running=tuple(_call(name, i, "running", 14.2 - 0.13 * i) for i in range(min(running, MAX_LISTED))),
        waiting=tuple(_call(name, i, "waiting", age_s * (1 - i / queued)) for i in range(min(queued, MAX_LISTED))),
        failures=tuple(
            Failure(NOW_S + after_s - 7.0 * i, who, "/v1/chat/completions", status, "error", cause)
            for i, (who, status, cause) in enumerate(failures)
        ),
        lost={"records": 0},
    )
    return {**orjson.loads(encoded(statistics)), **changes}


def idle(**what: Any) -> dict[str, Any]:
    return snapshot(**what)


def busy(**what: Any) -> dict[str, Any]:
    return snapshot(**{"running": 18, "rate": 900.0, "busy": 0.9, **what})


def full(**what: Any) -> dict[str, Any]:
    return busy(**{"running": MAX_RUNNING, "queued": 96, "wait_s": 6.4, **what})


def failing(name: str = "req-1", **what: Any) -> dict[str, Any]:
    """Return a server that refuses and fails; whatever has a name has this one."""
    failures = [(name, 500, name), (name, 503, "queue_full"), (name, 503, "queue_timeout")]
    return full(
        **{"queued": 256, "refused": {name: 37, "queue_timeout": 4}, "failures": failures, "name": name, **what}
    )


def speculating() -> dict[str, Any]:
    return busy(speculation=Speculation(4000, 3100, 0.775, 1.775))


def _latency(seconds: float, count: int = 400) -> Latency:
    return Latency(count, seconds * 1.2, seconds, seconds * 2.1, seconds * 3.0, seconds * 5.3, seconds * 9)


def _fields(
    span_s: float, rate: float, wait_s: float, refused: Mapping[str, int], ended: Mapping[str, int], tokens: int
) -> dict[str, Any]:
    stopped, prompt = int(rate / 260 * span_s), int(rate * 7 * span_s)
    outcomes = {outcome: count for outcome, count in {"stop": stopped, **ended}.items() if count}
    calls = sum(outcomes.values())
    has_any = rate > 0
    return {
        "span_s": float(span_s),
        "calls": calls,
        "calls_per_s": calls / span_s,
        "outcomes": outcomes,
        "unavailable": refused,
        "prompt_tokens": prompt,
        "prompt_tokens_per_s": prompt / span_s,
        "completion_tokens": int(rate * span_s) + tokens,
        "completion_tokens_per_s": rate,
        "cached_device_tokens": int(prompt * 0.61),
        "cached_host_tokens": int(prompt * 0.16),
        "cache_hit_rate": 0.77 if has_any else None,
        "time_to_first_token": _latency(wait_s + 0.21) if has_any else Latency(),
        "inter_token": _latency(0.011) if has_any else Latency(),
        "end_to_end": _latency(wait_s + 3.2) if has_any else Latency(),
        "queue_wait": _latency(wait_s) if has_any else Latency(),
    }


def _stage(name: str, depth: int, busy: float, after_s: float) -> Stage:
    share = SHARES.get(name, 0.01)
    working = None if share is None or name == "queue" else busy * share
    return Stage(
        name=name,
        depth=depth,
        high_water=max(depth, 2),
        capacity=CAPACITIES.get(name),
        received=None if name in ("ingress", "queue") else int(50 * (1000 + after_s)),
        waiting_s=None if working is None else 4321 * (1 - working),
        working_s=None if working is None else 4321 * working,
        busy=working,
    )


def _engine(running: int, queued: int, held: int | None, cached: int, is_paused: bool) -> Engine:
    held = NUM_PAGES * running // (2 * MAX_RUNNING) if held is None else held
    return Engine(
        running=running,
        waiting=queued,
        waiting_tokens=queued * 700,
        retracted=0,
        is_paused=is_paused,
        max_running=MAX_RUNNING,
        used_slots=running + running // 2,
        total_slots=64,
        page_size_tokens=64,
        device=Tier(Pages(NUM_PAGES, held, cached, NUM_PAGES - held - cached), Pages(96, 4, 61, 31)),
        host=Tier(Pages(16384, 0, 9000, 7384), Pages(512, 0, 320, 192)),
        steps_prefill=900,
        steps_decode=90_000,
        device_s=3000.0,
        retractions=0,
        preemptions=0,
    )


def _call(name: str | None, number: int, phase: str, age_s: float) -> Call:
    is_running = phase == "running"
    return Call(
        request_id=name
        if name is not None and number == 0
        else f"{0x9E3779B97F4A7C15F39CC0605CEDC835 * (number + 1) % 2**128:032x}",
        route="/v1/chat/completions",
        is_streamed=True,
        phase=phase,
        age_s=age_s,
        prompt_tokens=2048 + 37 * number,
        cached_tokens=1920 if is_running else 0,
        completion_tokens=310 - 3 * number if is_running else 0,
        num_choices=1,
    )
