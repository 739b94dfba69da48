"""The nursery tree of one engine with its whole API.

    run_server                     settings and checkpoint are read, the device is built; nothing listens yet
    `-- serve
        |-- stop signals           the first drains, the second stops at once
        `-- stages                 one that ends by itself ends the process
            |-- stats              contained: it may fail, serving goes on
            |-- detokenizer
            |-- executor -- engine thread -- device
            |-- scheduler
            |-- grammar -- threads and worker processes, with --structured-outputs
            |-- prompt -- tokenizer thread
            `-- ingress            its own nursery of connections, never the stages' parent

Stop order is the reverse: ingress refuses, the scheduler finishes what it accepted, the rest is cancelled.
"""

import gc
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing, suppress
from functools import partial

import trio
from attrs import define, evolve, field

from graphs.step import Device
from stages.channels import PROMPT_QUEUE, Channels
from stages.detokenizer.stage import run_detokenizer
from stages.engine.local import LocalEngine
from stages.executor.runner import Runner, ThreadRunner
from stages.executor.stage import run_executor
from stages.grammar.engines import check_available
from stages.grammar.stage import run_grammar
from stages.inbox import Inbox
from stages.ingress.dialects import find_dialects
from stages.ingress.info import Device as DeviceFacts
from stages.ingress.info import Info
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.ingress.server import bind, check_certificate, serve_http
from stages.messages import Drain, Load, Render
from stages.prompt.stage import run_prompt_stage
from stages.request import Services
from stages.scheduler.core import SchedulerCore
from stages.scheduler.stage import run_scheduler
from stages.settings import DetokenizerSettings, GrammarSettings, PromptSettings
from stages.stats.stage import Stats, open_stats, run_stats
from stages.traces.exporter import TraceExporter
from trnrt.config import Config
from trnrt.device import build_device
from trnrt.observing import calls_of, open_traces
from trnrt.production_log import check_production_log, production_log
from trnrt.resolve import resolve
from trnrt.running import (
    Running,
    address,
    ingress_settings,
    open_prompt_cache,
    package_version,
    run_until_signalled,
    tell_clients,
)
from trnrt.scheduling import engine_channels, scheduler_settings
from trnrt.served import ServedModel, read_served_model
from trnrt.stats_sources import serve_sources
from trnrt.supervise import contained, linked

log = logging.getLogger("trnrt")


@define(eq=False)
class Server(Running):
    """One running server: what its parts share, and where it stands."""

    config: Config
    model: ServedModel
    device: Device
    channels: Channels
    stats: Stats
    started_s: int
    # Bound before the checkpoint is loaded, so that an address in use is told at once; serve() takes it over.
    bound: socket.socket | None = None
    core: SchedulerCore | None = None
    drained: trio.Event = field(factory=trio.Event)

    def load(self) -> Load:
        """Return where the engine stands now."""
        assert self.core is not None
        return self.core.load()


def run_server(config: Config) -> int:
    """Serve until a signal and return the exit code; raises StartupError before anything listens."""
    model = read_served_model(config)
    config = resolve(config, model)
    check_certificate(ingress_settings(config))
    check_production_log(config)
    if model.settings.structured_outputs:
        check_available()
    traces = open_traces(config, package_version(), os.environ)
    with closing(bind(ingress_settings(config))) as bound:
        return _run(config, model, bound, traces)


def _run(config: Config, model: ServedModel, bound: socket.socket, traces: TraceExporter | None) -> int:
    device = build_device(config, model)
    log.info("settings: %s", " ".join(f"{name}={value}" for name, value in config.flags().items()))
    log.info("device: %s", " ".join(f"{name}={value}" for name, value in device.describe().items()))
    server = Server(
        config, model, device, engine_channels(scheduler_settings(config)), open_stats(), int(time.time()), bound
    )
    server.traces = traces
    try:
        return run_until_signalled(server, partial(serve, server), partial(drain, server), config.drain_timeout)
    finally:
        device.close()


async def drain(server: Server) -> None:
    """Refuse what is new, let what was accepted finish within --drain-timeout, then shut the HTTP server."""
    server.phase = "draining"
    server.channels.admission.close()
    # A scheduler that has failed meanwhile has nothing left to finish.
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        server.channels.scheduler_send.send_nowait(Drain())
    with trio.move_on_after(server.config.drain_timeout) as waiting:
        await server.drained.wait()
    if waiting.cancelled_caught and server.serving is not None:
        server.serving.cutoff.set()
    server.http_shutdown.set()


async def refuse_and_tell(server: Server) -> None:
    """Refuse what is new, answer every request under way that the engine failed, and wait until they have heard it."""
    server.channels.admission.close()
    await tell_clients(server)


async def serve(
    server: Server,
    *,
    runner: Callable[[Device], Runner] = ThreadRunner,
    task_status: "trio.TaskStatus[Server]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Start every stage and then the HTTP server; returns after a drain, raises when a stage fails."""
    settings = ingress_settings(server.config)
    prompts_send, prompts_receive = trio.open_memory_channel[Render](PROMPT_QUEUE)
    prompts = Inbox(prompts_receive)
    with server.bound or bind(settings) as bound:
        async with _logged(server), trio.open_nursery() as stages_nursery:
            await _start_stages(server, stages_nursery, runner(server.device), prompts)
            grammars = server.channels.grammar_send if server.model.settings.structured_outputs else None
            services = Services(LocalEngine(server.channels), prompts_send, server.model.settings, grammars)
            server.serving = Serving(
                services, settings, calls=calls_of(server.config, server.stats.send.send, server.traces)
            )
            server.stats.sources = serve_sources(server, server.serving, prompts)
            app = create_app(find_dialects(), server.serving, _info(server), server.stats)
            async with trio.open_nursery() as front:
                http = partial(serve_http, shutdown=server.http_shutdown, bound=bound)
                if server.phase == "starting":  # a signal may have come first
                    server.phase = "ready"
                ingress = linked(http, "ingress", server.http_shutdown.is_set, partial(refuse_and_tell, server))
                server.port = await front.start(ingress, app, settings)
                # What lives now lives for ever: the collector need not look at it again.
                gc.freeze()
                # A look at everything takes 40 ms while a long chat is in hand, so it stays as rare as it can be. Young
                # objects are looked at by ten thousand, in half a millisecond: looks at every 700 found little to free
                # and were some 4 % of what serving costs (in turns, 128 streams).
                gc.set_threshold(10_000, 10, 7)
                log.info("listening on %s", address(settings, server.port))
                task_status.started(server)
            stages_nursery.cancel_scope.cancel()


def _logged(server: Server) -> AbstractAsyncContextManager[None]:
    """Return the block in which calls are logged; its load is there once the scheduler is."""
    return production_log(
        server.config,
        "serve",
        server.model.settings.served_model_name,
        server.stats,
        lambda: None if server.core is None else server.core.load(),
    )


async def _start_stages(server: Server, nursery: trio.Nursery, runner: Runner, prompts: Inbox[Render]) -> None:
    channels, model = server.channels, server.model
    tokenizer = str(model.tokenizer_folder)
    parsers = model.settings

    def stage(run: Callable[..., Awaitable[None]], name: str) -> Callable[..., Awaitable[None]]:
        return linked(run, name, lambda: server.phase == "draining", partial(refuse_and_tell, server))

    await nursery.start(contained(run_stats, "stats"), server.stats)
    await nursery.start(
        stage(run_detokenizer, "detokenizer"),
        DetokenizerSettings(tokenizer, parsers.reasoning_parser, parsers.tool_call_parser),
        channels.tokens_receive,
        channels.scheduler_send.send_nowait,
        server.stats.send.send,
    )
    await nursery.start(stage(run_executor, "executor"), runner, channels)
    server.core = await nursery.start(stage(_run_scheduler, "scheduler"), server)
    if parsers.structured_outputs:
        await nursery.start(
            stage(run_grammar, "grammar"),
            GrammarSettings(tokenizer, parsers.vocab_size, parsers.eos_token_ids, parsers.reasoning_parser),
            channels.grammar_receive,
            channels.scheduler_send.send_nowait,
        )
    server.prompt_cache = open_prompt_cache(server.config)
    await nursery.start(
        stage(run_prompt_stage, "prompt"),
        PromptSettings(tokenizer, model.template),
        prompts,
        server.prompt_cache,
        server.stats.send.send,
    )


async def _run_scheduler(server: Server, *, task_status: "trio.TaskStatus[SchedulerCore]") -> None:
    # A turn begins where an end token stands: <|user|> and <|observation|> end an answer too.
    settings = scheduler_settings(server.config, server.model.settings.eos_token_ids)
    capacity = server.device.capacity
    # How many prompts a prefill step holds is the device's to say.
    settings = evolve(settings, max_prefill_rows=capacity.buckets.prefill_batch[-1])
    await run_scheduler(settings, capacity, server.channels, server.stats.send, task_status=task_status)
    server.drained.set()


def _info(server: Server) -> Info:
    model, facts = server.model, server.device.describe()
    return Info(
        model=model.settings,
        tokenizer_path=str(server.config.tokenizer_path),
        version=package_version(),
        started_s=server.started_s,
        readiness=lambda: server.phase,
        load=server.load,
        server_args=lambda: {**server.config.flags(), "graphs": server.device.describe()},
        max_running_requests=server.config.max_running_requests,
        device=DeviceFacts(
            accelerator=str(facts.get("device", "cpu")),
            weight_bytes=int(str(facts.get("weight_bytes", 0))),
            cache_bytes=int(str(facts.get("state_bytes", 0))),
        ),
        gen_throughput=lambda: server.stats.snapshot(trio.current_time()).completion_tokens_per_s,
        cache_hit_rate=lambda: server.stats.snapshot(trio.current_time()).cache_hit_rate,
        prompt_cache=None if server.prompt_cache is None else server.prompt_cache.info,
    )
