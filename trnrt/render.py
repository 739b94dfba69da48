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
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial

import trio
from attrs import define, evolve, field

from stages.detokenizer.stage import run_detokenizer
from stages.engine.http_client import Connect
from stages.engine.nothing import NoEngine
from stages.engine.origin import parse_origin
from stages.engine.remote import RemoteEngine, run_remote_engine
from stages.engine.rendering import Renderer
from stages.errors import RemoteFailure
from stages.ingress.calls import Calls
from stages.ingress.info import Info
from stages.ingress.render_app import RenderFacts, create_render_app
from stages.ingress.respond import Serving
from stages.ingress.server import bind, check_certificate, serve_http
from stages.messages import Cancel, Load, Render, Tokens
from stages.prompt.stage import run_prompt_stage
from stages.request import Services
from stages.settings import DetokenizerSettings, PromptSettings, RemoteSettings
from stages.stats.stage import Stats, open_stats, run_stats
from trnrt.model_folder import ModelFolder, read_model_folder
from trnrt.render_config import RenderConfig
from trnrt.running import Running, address, ingress_settings, package_version, run_until_signalled, tell_clients
from trnrt.supervise import contained, linked

# How long the engine may take to say how it is; its own probe of its device may take 20 s.
HEALTH_TIMEOUT_S = 30.0

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
    # What opens a connection to the engine; None is the network.
    connect: Connect | None = None
    prompts: "tuple[trio.MemorySendChannel[Render], trio.MemoryReceiveChannel[Render]]" = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.prompts = trio.open_memory_channel[Render](self.config.queue_capacity)

    @property
    def renderer(self) -> Renderer:
        """Return what makes the bodies that the engine gets."""
        return Renderer(self.model.settings)


def run_render(config: RenderConfig) -> int:
    """Render until a signal and return the exit code; raises StartupError before anything listens."""
    model = model_of(config)
    check_certificate(ingress_settings(config))
    with closing(bind(ingress_settings(config))) as bound:
        log.info("settings: %s", " ".join(f"{name}={value}" for name, value in config.flags().items()))
        server = RenderServer(config, model, open_stats(), int(time.time()), bound)
        run = partial(serve_render, server)
        return run_until_signalled(server, run, partial(drain_render, server), config.drain_timeout)


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
        reserved_tokens=config.num_reserved_tokens,
        truncates=config.allow_auto_truncate,
    )
    return evolve(model, settings=settings)


async def drain_render(server: RenderServer) -> None:
    """Refuse what is new, let what was accepted finish within --drain-timeout, then shut the HTTP server."""
    server.phase = "draining"
    with trio.move_on_after(server.config.drain_timeout) as waiting:
        if server.engine is not None:
            await server.engine.drain()
    if waiting.cancelled_caught and server.serving is not None:
        server.serving.cutoff.set()
    server.http_shutdown.set()


async def serve_render(
    server: RenderServer, *, task_status: "trio.TaskStatus[RenderServer]" = trio.TASK_STATUS_IGNORED
) -> None:
    """Start every stage and then the HTTP server; returns after a drain, raises when a stage fails."""
    settings = ingress_settings(server.config)
    with server.bound or bind(settings) as bound:
        async with trio.open_nursery() as stages:
            await _start_stages(server, stages)
            server.serving = Serving(services(server), settings, calls=Calls(server.stats.send.send))
            app = create_render_app(server.serving, _facts(server))
            async with trio.open_nursery() as front:
                http = partial(serve_http, shutdown=server.http_shutdown, bound=bound)
                if server.phase == "starting":  # a signal may have come first
                    server.phase = "ready"
                ingress = linked(http, "ingress", server.http_shutdown.is_set, partial(tell_clients, server))
                server.port = await front.start(ingress, app, settings)
                gc.freeze()
                gc.set_threshold(10_000, 10, 7)  # as in serve.py
                log.info("listening on %s (%s)", address(settings, server.port), server.config.mode)
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
    tokens_send, tokens_receive = trio.open_memory_channel[Tokens](math.inf)

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
    for _ in range(server.config.tokenizer_workers):
        prompts = server.prompts[1].clone()
        await nursery.start(
            stage(run_prompt_stage, "prompt"), PromptSettings(tokenizer, server.model.template), prompts
        )


def remote_settings(server: RenderServer) -> RemoteSettings:
    """Return what the client of the engine needs of the settings."""
    config = server.config
    assert config.engine_url is not None
    return RemoteSettings(
        origin=parse_origin(config.engine_url),
        api_key=config.engine_api_key,
        max_running_choices=config.max_concurrent_requests,
        max_opening=config.engine_concurrency,
        connect_timeout_s=config.engine_connect_timeout,
        first_event_timeout_s=config.engine_timeout,
        idle_timeout_s=config.engine_idle_timeout,
        own_end_ids=server.renderer.own_end_ids,
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
    return RenderFacts(
        info,
        server.renderer.fields,
        engine_health=None if engine is None else partial(engine_health, engine),
        has_engine=engine is not None,
        allows_unknown=config.allow_unknown_fields,
        tells_usage=config.stream_response_default_include_usage,
    )


async def engine_health(engine: RemoteEngine) -> int:
    """Return the status of the engine's own /health, 503 when it has none to give."""
    try:
        with trio.fail_after(HEALTH_TIMEOUT_S):
            async with await engine.client.send("GET", "/health") as response:
                return response.status
    except (RemoteFailure, trio.TooSlowError):
        return 503


def _load(server: RenderServer) -> Load:
    running = 0 if server.engine is None else server.engine.num_running
    return Load(running, 0, 0, 0, 0, 0, 0, 1)
