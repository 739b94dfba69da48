"""The nursery tree of the renderer: the API in front of an engine's `/generate`, or of no engine.

    run_render                     settings and model folder are read, the address is taken; nothing listens yet
    `-- serve_render
        |-- stop signals           the first drains, the second stops at once
        `-- stages                 one that ends by itself ends the process
            |-- stats              contained: it may fail, serving goes on
            |-- detokenizer
            |-- engine             a client of `/generate`, where there is an --engine-url
            |-- prompt             --tokenizer-workers of them, each with a thread and a tokenizer
            `-- ingress

Stop order is the reverse: ingress refuses, the engine finishes what it accepted, the rest is cancelled. Nothing here
imports torch, and nothing that is imported does.
"""

import gc
import logging
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial

import trio
from attrs import define, evolve, field

from stages.detokenizer.stage import run_detokenizer
from stages.engine.facts import health_of, read_engine_facts
from stages.engine.http_client import Connect
from stages.engine.nothing import NoEngine
from stages.engine.origin import parse_origin
from stages.engine.remote import RemoteEngine, client_of, run_remote_engine
from stages.engine.rendering import Renderer
from stages.errors import EngineFailure
from stages.inbox import Inbox
from stages.ingress.info import Info
from stages.ingress.proxy import Proxy
from stages.ingress.render_app import RenderFacts, create_render_app
from stages.ingress.respond import Serving
from stages.ingress.routes import add_stats_routes
from stages.ingress.server import bind, check_certificate, serve_http
from stages.messages import Cancel, Load, Render, Tokens
from stages.prompt.stage import run_prompt_stage
from stages.request import Services
from stages.settings import Bounds, DetokenizerSettings, PromptSettings, RemoteSettings
from stages.stats.stage import Stats, open_stats, run_stats
from trnrt.engine_match import OwnFacts, compare, facts_or_none, watch_engine
from trnrt.launch_engine import LaunchedEngine, command_of, launched, until_well
from trnrt.model_folder import ModelFolder, read_model_folder
from trnrt.observing import calls_of, check_traces, open_traces
from trnrt.production_log import check_production_log, production_log
from trnrt.render_config import RenderConfig, forwarding_rules
from trnrt.running import (
    Running,
    address,
    ingress_settings,
    open_prompt_cache,
    package_version,
    run_until_signalled,
    tell_clients,
)
from trnrt.stats_sources import render_sources
from trnrt.supervise import contained, linked
from trnrt.workers import Seat, Workers, run_workers, seat_of, spawner, unless

# What an engine gives is the engine's to say; these are the sizes of the contract's numbers.
BOUNDS = Bounds(max_choices=255, max_top_logprobs=255, max_temperature=math.inf)

log = logging.getLogger("trnrt")


@define(eq=False)
class RenderServer(Running):
    """One running renderer: what its parts share, and where it stands."""

    config: RenderConfig
    model: ModelFolder
    stats: Stats
    started_s: int
    bound: socket.socket | None = None
    engine: RemoteEngine | None = None
    proxy: Proxy | None = None
    # The engine that was started here, if one was; this process's place if it is one of several.
    launch: LaunchedEngine | None = None
    seat: Seat | None = None
    # What opens a connection to the engine; None is the network.
    connect: Connect | None = None
    prompts: "tuple[trio.MemorySendChannel[Render], trio.MemoryReceiveChannel[Render]]" = field(init=False)
    # What its stages read, one a prompt stage.
    prompt_inboxes: list[Inbox[Render]] = field(factory=list)
    tokens: "tuple[trio.MemorySendChannel[Tokens], Inbox[Tokens]]" = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.prompts = trio.open_memory_channel[Render](self.config.queue_capacity)
        tokens_send, tokens_receive = trio.open_memory_channel[Tokens](math.inf)
        self.tokens = tokens_send, Inbox(tokens_receive)

    @property
    def renderer(self) -> Renderer:
        """Return what makes the bodies that the engine gets."""
        return Renderer(self.model.settings)


def run_render(config: RenderConfig, args: Sequence[str] = ()) -> int:
    """Render until a signal and return the exit code; raises StartupError before anything listens.

    The arguments are what workers are started with.
    """
    check_certificate(ingress_settings(config))
    check_production_log(config)
    check_traces(config)
    if (seat := seat_of(os.environ)) is not None:
        return _serve_until_signalled(config, seat.bound, None, seat)
    with ExitStack() as stack:
        bound = stack.enter_context(closing(bind(ingress_settings(config))))
        log.info("settings: %s", " ".join(f"{name}={value}" for name, value in config.flags().items()))
        launch = None
        if config.launch_engine is not None:
            launch = stack.enter_context(launched(command_of(config.launch_engine), config.engine_stop_timeout))
        if config.workers > 1:
            return _run_workers(config, args, bound, launch)
        return _serve_until_signalled(config, bound, launch, None)


def _serve_until_signalled(
    config: RenderConfig, bound: socket.socket, launch: LaunchedEngine | None, seat: Seat | None
) -> int:
    traces = open_traces(config, package_version(), os.environ)
    model = model_of(config)
    server = RenderServer(config, model, open_stats(), int(time.time()), bound, launch=launch, seat=seat, traces=traces)
    run = partial(serve_render, server)
    return run_until_signalled(server, run, partial(drain_render, server), config.drain_timeout)


def _run_workers(config: RenderConfig, args: Sequence[str], bound: socket.socket, launch: LaunchedEngine | None) -> int:
    settings = ingress_settings(config)
    port = 0 if settings.unix_socket is not None else bound.getsockname()[1]

    def tell_ready() -> None:
        log.info("listening on %s (%s, %d workers)", address(settings, port), config.mode, config.workers)

    async def run() -> int:
        workers = Workers(config.workers, spawner(("render", *args), bound, os.environ), config.drain_timeout)
        if launch is None:
            return await run_workers(workers, on_ready=tell_ready)
        health = partial(health_of, client_of(engine_settings(config)))

        async def beside() -> None:
            # Workers read their files meanwhile, and wait for the engine too.
            await launch.until_healthy(health, config.engine_start_timeout)
            await launch.watch()

        return await run_workers(workers, on_ready=tell_ready, beside=beside)

    try:
        return trio.run(run, strict_exception_groups=True)
    except EngineFailure as error:
        log.error("the server failed: %s", error)
        return 1


def model_of(config: RenderConfig) -> ModelFolder:
    """Return the model that `config` names; raises StartupError naming a file, key or flag."""
    assert config.model_path is not None, "load_render_config demands one"
    model = read_model_folder(
        config.model_path,
        tokenizer_path=config.tokenizer_path,
        revision=config.revision,
        served_model_name=config.served_model_name,
        chat_template=config.chat_template,
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        sampling_defaults=config.sampling_defaults,
        resolved_sampling_params=config.resolved_sampling_params,
        default_chat_template_kwargs=config.default_chat_template_kwargs,
        trusts_special_tokens=config.trust_special_tokens,
        tool_call_parser=config.tool_call_parser,
        reasoning_parser=config.reasoning_parser,
    )
    # What the engine can do is the engine's to say.
    settings = evolve(
        model.settings,
        structured_outputs=True,
        penalties=True,
        completion_sampling=model.settings.default_sampling,
        completion_penalties=model.settings.default_penalties,
        bounds=BOUNDS,
        reserved_tokens=config.num_reserved_tokens,
        truncates=config.allow_auto_truncate,
    )
    return evolve(model, settings=settings)


async def drain_render(server: RenderServer) -> None:
    """Refuse what is new, let what was accepted finish within --drain-timeout, then shut the HTTP server."""
    if server.phase == "draining":
        return
    server.phase = "draining"
    with trio.move_on_after(server.config.drain_timeout) as waiting:
        if server.engine is not None:
            await server.engine.drain()
        if server.proxy is not None:
            await server.proxy.idle()
    if waiting.cancelled_caught and server.serving is not None:
        server.serving.cutoff.set()
    server.http_shutdown.set()


async def serve_render(
    server: RenderServer, *, task_status: "trio.TaskStatus[RenderServer]" = trio.TASK_STATUS_IGNORED
) -> None:
    """Start every stage and then the HTTP server; returns after a drain, raises when a stage fails."""
    config = server.config
    settings = ingress_settings(config)
    with server.bound or bind(settings) as bound:
        logged = production_log(config, "render", server.model.settings.served_model_name, server.stats, lambda: None)
        async with logged, trio.open_nursery() as stages:
            await _start_stages(server, stages)
            server.serving = Serving(
                services(server), settings, calls=calls_of(server.config, server.stats.send.send, server.traces)
            )
            server.stats.sources = render_sources(server, server.serving)
            app = create_render_app(server.serving, _facts(server))
            add_stats_routes(app, server.stats)
            async with trio.open_nursery() as front:
                http = partial(serve_http, shutdown=server.http_shutdown, bound=bound)
                if server.phase == "starting":  # a signal may have come first
                    server.phase = "ready"
                ingress = linked(http, "ingress", server.http_shutdown.is_set, partial(tell_clients, server))
                server.port = await front.start(ingress, app, settings)
                gc.freeze()
                gc.set_threshold(10_000, 10, 7)  # as in serve.py
                if server.seat is None:
                    log.info("listening on %s (%s)", address(settings, server.port), server.config.mode)
                else:
                    server.seat.tell_ready()
                task_status.started(server)
            stages.cancel_scope.cancel()


def services(server: RenderServer) -> Services:
    """Return what request tasks need of the stages."""
    return Services(
        server.engine or NoEngine(),
        server.prompts[0],
        server.model.settings,
        passes_constraints=True,
        waits_for_prompts=True,
    )


async def _start_stages(server: RenderServer, nursery: trio.Nursery) -> None:
    settings = server.model.settings
    tokenizer = str(server.model.tokenizer_folder)
    tokens_send, tokens_receive = server.tokens

    def stage(run: Callable[..., Awaitable[None]], name: str) -> Callable[..., Awaitable[None]]:
        return linked(run, name, lambda: server.phase == "draining", partial(tell_clients, server))

    def obey(order: Cancel) -> None:
        if server.engine is not None:
            server.engine.obey(order)

    await nursery.start(contained(run_stats, "stats"), server.stats)
    await nursery.start(
        stage(run_detokenizer, "detokenizer"),
        DetokenizerSettings(tokenizer, settings.reasoning_parser, settings.tool_call_parser, reads_ids=False),
        tokens_receive,
        obey,
        server.stats.send.send,
    )
    if server.config.engine_url is not None:
        run = partial(run_remote_engine, connect=server.connect, tool_constraint=server.renderer.tool_constraint)
        server.engine = await nursery.start(stage(run, "engine"), remote_settings(server), tokens_send)
        health = partial(health_of, server.engine.client)
        if server.seat is not None and server.config.launch_engine is not None:
            await unless(server.http_shutdown.wait, partial(until_well, health))
        if server.launch is not None:
            well = partial(server.launch.until_healthy, health, server.config.engine_start_timeout)
            await unless(server.http_shutdown.wait, well)
            await nursery.start(stage(server.launch.watch, "launched engine"))
        if server.seat is None or server.seat.index == 0:
            await _start_comparing(server, server.engine, nursery)
    if server.seat is not None:
        nursery.start_soon(_drain_without_parent, server, server.seat)
    server.prompt_cache = open_prompt_cache(server.config)
    for _ in range(server.config.tokenizer_workers):
        prompts = Inbox(server.prompts[1].clone())
        server.prompt_inboxes.append(prompts)
        await nursery.start(
            stage(run_prompt_stage, "prompt"),
            PromptSettings(tokenizer, server.model.template),
            prompts,
            server.prompt_cache,
            server.stats.send.send,
        )


async def _drain_without_parent(server: RenderServer, seat: Seat) -> None:
    """Drain when the process that started this one has gone, of whatever."""
    await seat.parent_gone()
    if server.phase != "draining":
        log.warning("the parent process has gone: draining")
        await drain_render(server)


async def _start_comparing(server: RenderServer, engine: RemoteEngine, nursery: trio.Nursery) -> None:
    """Compare the engine with the model here, before anything listens where that is strict, and from then on."""
    config, model = server.config, server.model.settings
    read = partial(read_engine_facts, engine.client)
    own = OwnFacts(
        names=(model.served_model_name, str(config.model_path)),
        model_path=str(server.model.folder),
        context_length=model.context_length_tokens,
        vocab_size=model.vocab_size,
        sampling_defaults=config.sampling_defaults,
        num_reserved_tokens=config.num_reserved_tokens,
        tokenizer_path=config.tokenizer_path,
        revision=config.revision,
    )
    told = await facts_or_none(read) if config.strict_engine_match else None
    if told is not None:
        compare(own, told, is_strict=True)
    watch = partial(watch_engine, read, own, is_strict=config.strict_engine_match, told=told)
    nursery.start_soon(linked(watch, "engine comparison", lambda: False, partial(tell_clients, server)))


def remote_settings(server: RenderServer) -> RemoteSettings:
    """Return what the client of the engine needs of the settings and the model."""
    return evolve(engine_settings(server.config), own_end_ids=server.renderer.own_end_ids)


def engine_settings(config: RenderConfig) -> RemoteSettings:
    """Return what the client of the engine needs of the settings."""
    assert config.engine_url is not None
    return RemoteSettings(
        origin=parse_origin(config.engine_url),
        api_key=config.engine_api_key,
        max_running_choices=config.max_concurrent_requests,
        max_opening=config.engine_concurrency,
        connect_timeout_s=config.engine_connect_timeout,
        first_event_timeout_s=config.engine_timeout,
        idle_timeout_s=config.engine_idle_timeout,
    )


def _facts(server: RenderServer) -> RenderFacts:
    config = server.config
    info = Info(
        model=server.model.settings,
        tokenizer_path=str(server.model.tokenizer_folder),
        version=package_version(),
        started_s=server.started_s,
        readiness=lambda: server.phase,
        load=lambda: _load(server),
        server_args=config.flags,
        max_running_requests=config.max_concurrent_requests,
    )
    engine = server.engine
    if engine is not None and config.proxy_unhandled_routes:
        keys = tuple(key for key in (config.api_key, config.admin_api_key) if key is not None)
        server.proxy = Proxy(engine.client, forwarding_rules(config, keys))
    return RenderFacts(
        info,
        server.renderer.fields,
        server.renderer.submits,
        engine_health=None if engine is None else partial(health_of, engine.client),
        proxy=server.proxy,
        has_engine=engine is not None,
        allows_unknown=config.allow_unknown_fields,
        tells_usage=config.stream_response_default_include_usage,
        hidden_states=config.enable_return_hidden_states,
    )


def _load(server: RenderServer) -> Load:
    running = 0 if server.engine is None else server.engine.num_running
    return Load(running, 0, 0, 0, 0, 0, 0, 1)
