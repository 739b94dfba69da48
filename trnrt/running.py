"""How a server of any role runs until it is told to stop, and how its clients hear of it."""

import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version

import trio
from attrs import define, field

from stages.errors import StartupError, TrnrtError
from stages.ingress.info import Readiness
from stages.ingress.respond import Serving
from stages.prompt.cache.switch import PromptCache
from stages.settings import IngressSettings
from stages.traces.exporter import TraceExporter
from trnrt.config import MIB, HttpConfig
from trnrt.observing import exporting
from trnrt.starting import end_if_signalled
from trnrt.supervise import first_cause

# How long the last frames may take to reach their clients once the engine has finished.
LAST_FRAMES_S = 3.0
LAST_FRAMES_POLL_S = 0.02
# How long clients may take to hear of a second signal.
CUT_SHORT_S = 0.2

# About when the process started, on the clock of time.monotonic.
STARTED_S = time.monotonic()

log = logging.getLogger("trnrt")


@define(eq=False)
class Running:
    """Where a server stands, and what ends its HTTP."""

    phase: Readiness = field(default="starting", kw_only=True)
    port: int | None = field(default=None, kw_only=True)
    serving: Serving | None = field(default=None, kw_only=True)
    http_shutdown: trio.Event = field(factory=trio.Event, kw_only=True)
    # Where the traces of calls go, None for nowhere.
    traces: TraceExporter | None = field(default=None, kw_only=True)
    # What the prompt stages share, None without --prompt-cache-mb.
    prompt_cache: PromptCache | None = field(default=None, kw_only=True)


@define(eq=False)
class _Outcome:
    exit_code: int = 0


def run_until_signalled(
    server: Running, serve: Callable[[], Awaitable[None]], drain: Callable[[], Awaitable[None]], drain_timeout_s: float
) -> int:
    """Run `serve` until it returns, after a signal by `drain`, and return the exit code; raises StartupError."""
    # A short turn keeps the event loop's latency low while other threads run Python: the engine's between its device
    # calls, those that write lines and make spans.
    sys.setswitchinterval(0.0005)
    try:
        with exporting(server.traces):
            return trio.run(until_signalled, server, serve, drain, drain_timeout_s, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        cause = first_cause(group)
        if isinstance(cause, StartupError):
            raise cause from None
        log.error("the server failed: %s", cause, exc_info=None if isinstance(cause, TrnrtError) else group)
        return 1


async def until_signalled(
    server: Running, serve: Callable[[], Awaitable[None]], drain: Callable[[], Awaitable[None]], drain_timeout_s: float
) -> int:
    """Run `serve` until it returns and return the exit code; the first signal drains, the second stops at once."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        end_if_signalled()
        async with trio.open_nursery() as nursery:
            outcome = _Outcome()
            nursery.start_soon(_watch_signals, signals, server, drain, drain_timeout_s, nursery, outcome)
            await serve()
            nursery.cancel_scope.cancel()
        return outcome.exit_code


async def _watch_signals(
    signals: AsyncIterator[int],
    server: Running,
    drain: Callable[[], Awaitable[None]],
    drain_timeout_s: float,
    nursery: trio.Nursery,
    outcome: _Outcome,
) -> None:
    """Drain at the first signal; at the second tell whoever still waits, and cancel everything."""
    async for number in signals:
        if server.phase == "draining":
            log.warning("%s again: stopping at once", signal.Signals(number).name)
            outcome.exit_code = 130
            if server.serving is not None:
                server.serving.cutoff.set()
                await trio.sleep(CUT_SHORT_S)
            nursery.cancel_scope.cancel()
            return
        log.info("%s: draining for at most %g s", signal.Signals(number).name, drain_timeout_s)
        nursery.start_soon(drain)


async def tell_clients(server: Running) -> None:
    """Answer every request under way that the engine failed, and wait until they have heard it."""
    if server.serving is None:
        return
    server.serving.failed.set()
    server.serving.cutoff.set()
    with trio.move_on_after(LAST_FRAMES_S):
        while server.serving.answering:  # noqa: ASYNC110  # answers end in a hundred places, and this once
            await trio.sleep(LAST_FRAMES_POLL_S)


def open_prompt_cache(config: HttpConfig) -> PromptCache | None:
    """Return the cache that a process's prompt stages share, None where there is to be none."""
    if not config.prompt_cache_mb:
        return None
    return PromptCache(config.prompt_cache_mb * MIB, config.prompt_cache_audit)


def ingress_settings(config: HttpConfig) -> IngressSettings:
    """Return what ingress needs of the settings; the drain is the engine's, HTTP only delivers its last frames."""
    return IngressSettings(
        host=config.host,
        port=config.port,
        max_request_bytes=config.max_request_bytes,
        keep_alive_timeout_s=config.keep_alive_timeout,
        write_timeout_s=config.write_timeout,
        body_timeout_s=config.body_timeout,
        drain_timeout_s=LAST_FRAMES_S,
        sse_ping_s=config.sse_ping,
        request_timeout_s=config.request_timeout,
        api_key=config.api_key,
        admin_api_key=config.admin_api_key,
        allowed_origins=tuple(origin.strip() for origin in config.allowed_origins.split(",") if origin.strip()),
        root_path=config.root_path.rstrip("/"),
        unix_socket=config.uds,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_keyfile_password=config.ssl_keyfile_password,
        enable_metrics=config.enable_metrics,
        trace_sample_ratio=None if config.otlp_endpoint is None else config.otlp_sample_ratio,
    )


def address(settings: IngressSettings, port: int) -> str:
    """Return where a server listens, as a URL or a socket's path."""
    if settings.unix_socket is not None:
        return f"unix:{settings.unix_socket}"
    scheme = "http" if settings.ssl_certfile is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{port}"


def package_version() -> str:
    """Return the installed package's version, or "unknown" in a bare checkout."""
    try:
        return version("trnrt")
    except PackageNotFoundError:
        return "unknown"
