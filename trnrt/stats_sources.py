"""Where the statistics of each role come from: which stages it has, and who knows how they stand."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stages.channels import MAX_FLIGHTS, PROMPT_QUEUE, STATS_QUEUE
from stages.inbox import Inbox
from stages.ingress.respond import Serving
from stages.logs.handler import num_lost_lines
from stages.messages import Render
from stages.stats.sources import Sources, Watched, watched_inbox
from trnrt.running import STARTED_S, package_version

if TYPE_CHECKING:
    from trnrt.render import RenderServer
    from trnrt.serve import Server


def serve_sources(server: "Server", serving: Serving, prompts: Inbox[Render]) -> Sources:
    """Return where the figures of an engine with its whole API come from."""
    channels, config, device = server.channels, server.config, server.device.describe()
    admission, calls = channels.admission, serving.calls
    grammar = [watched_inbox("grammar", [channels.grammar_receive])] if server.model.settings.structured_outputs else []
    return Sources(
        role="serve",
        version=package_version(),
        model=server.model.settings.served_model_name,
        status=lambda: server.phase,
        max_running=config.max_running_requests,
        context_tokens=server.model.settings.context_length_tokens,
        stages=[
            Watched("ingress", lambda: len(calls.live), high_water=lambda: calls.high_water),
            watched_inbox("prompt", [prompts], PROMPT_QUEUE),
            *grammar,
            Watched(
                "queue",
                lambda: len(admission.waiting),
                capacity=admission.max_waiting,
                high_water=lambda: admission.high_water,
            ),
            watched_inbox("scheduler", [channels.scheduler_receive]),
            Watched(
                "executor",
                lambda: len(server.core.flights) if server.core is not None else 0,
                [channels.plans_receive.meter],
                MAX_FLIGHTS,
                works=lambda: server.stats.counters.totals["device_s"],
            ),
            watched_inbox("detokenizer", [channels.tokens_receive]),
            watched_inbox("stats", [server.stats.receive], STATS_QUEUE),
        ],
        live=lambda: calls.live,
        prompt_cache=None if server.prompt_cache is None else server.prompt_cache.facts,
        lost=_lost(server),
        http_requests=serving.http.requests,
        http_active=serving.http.active,
        http_responses=serving.http.responses,
        startup_s={"total": time.monotonic() - STARTED_S},
        load=server.load,
        memory_bytes={
            "weight": int(str(device.get("weight_bytes", 0))),
            "kv_cache": int(str(device.get("state_bytes", 0))),
        },
    )


def render_sources(server: "RenderServer", serving: Serving) -> Sources:
    """Return where the figures of a renderer come from, whose engine is another's."""
    calls, config = serving.calls, server.config
    engine = server.engine
    stages = [
        Watched("ingress", lambda: len(calls.live), high_water=lambda: calls.high_water),
        watched_inbox("prompt", server.prompt_inboxes, config.queue_capacity),
    ]
    if engine is not None:
        stages.append(Watched("engine", lambda: engine.num_running, capacity=config.max_concurrent_requests))
    stages.append(watched_inbox("detokenizer", [server.tokens[1]]))
    stages.append(watched_inbox("stats", [server.stats.receive], STATS_QUEUE))
    return Sources(
        role="render",
        version=package_version(),
        model=server.model.settings.served_model_name,
        status=lambda: server.phase,
        worker=None if server.seat is None else server.seat.index,
        context_tokens=server.model.settings.context_length_tokens,
        stages=stages,
        live=lambda: calls.live,
        prompt_cache=None if server.prompt_cache is None else server.prompt_cache.facts,
        lost=_lost(server),
        http_requests=serving.http.requests,
        http_active=serving.http.active,
        http_responses=serving.http.responses,
        startup_s={"total": time.monotonic() - STARTED_S},
    )


def _lost(server: "RenderServer | Server") -> dict[str, Callable[[], int]]:
    """Return who else counts what was lost, besides those that have said so already."""
    traces = server.traces
    lost = {**server.stats.sources.lost, "log_lines": num_lost_lines}
    return lost if traces is None else {**lost, "traces": lambda: traces.num_lost}
