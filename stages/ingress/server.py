"""Serves the application on a socket until told to stop: hypercorn on trio, hardened.

The address is taken by `bind` before anything slow is loaded, so that one in use is told at once; connections are
accepted only once they can be answered.

At shutdown the listening socket closes at once, so new connections are refused; what runs may finish within
drain_timeout_s. Then the cutoff is set: streams that still run get their error frame and terminator, other calls a 503.
Whoever has not read that within CUTOFF_GRACE_S is cut off.
"""

import logging
import socket
import sys
from contextlib import closing

import trio
from hypercorn.config import Sockets
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app

from stages.errors import StartupError
from stages.ingress.app import App
from stages.ingress.hardening import HardenedConfig, install
from stages.settings import IngressSettings

BACKLOG = 2048
CUTOFF_GRACE_S = 1.0


def bind(settings: IngressSettings) -> socket.socket:
    """Return a socket bound to host and port (0 picks a free one), not listening; raises StartupError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise StartupError(f"--host {settings.host} cannot be resolved: {reason}.") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(settings, error) from None
    sock.setblocking(False)
    return sock


def listen(settings: IngressSettings, sock: socket.socket) -> None:
    """Let connections queue on a bound socket; raises StartupError when another process came first."""
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise _cannot_listen(settings, error) from None


def _cannot_listen(settings: IngressSettings, error: OSError) -> StartupError:
    return StartupError(f"--host {settings.host} --port {settings.port}: cannot listen there: {error.strerror}.")


async def serve_http(
    app: App,
    settings: IngressSettings,
    *,
    shutdown: trio.Event,
    bound: socket.socket | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `shutdown` and the drain after it; reports the port once connections are answered.

    A socket bound earlier is taken over and closed; without one it is made here.
    """
    install()
    config = http_config(settings)
    sock = bound or bind(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_last_call, app, settings, shutdown)
        with closing(sock):
            listen(settings, sock)
            await worker_serve(
                wrap_app(app, config.wsgi_max_body_size, "asgi"),
                config,
                sockets=Sockets([], [sock], []),
                shutdown_trigger=shutdown.wait,
                task_status=_PortStatus(task_status, sock),
            )
        nursery.cancel_scope.cancel()


def http_config(settings: IngressSettings) -> HardenedConfig:
    """Return hypercorn's configuration for `settings`."""
    config = HardenedConfig()
    config.backlog = BACKLOG
    config.accesslog = None
    config.errorlog = logging.getLogger("trnrt.ingress.hypercorn")
    config.errorlog.setLevel(logging.WARNING)  # its line with the address is ours to write
    config.include_server_header = False
    config.keep_alive_timeout = settings.keep_alive_timeout_s
    config.keep_alive_max_requests = sys.maxsize
    config.read_timeout = None  # it would cut event streams, whose clients are silent by nature
    config.graceful_timeout = settings.drain_timeout_s + CUTOFF_GRACE_S
    config.write_timeout_s = settings.write_timeout_s
    return config


async def _last_call(app: App, settings: IngressSettings, shutdown: trio.Event) -> None:
    await shutdown.wait()
    await trio.sleep(settings.drain_timeout_s)
    app.serving.cutoff.set()


class _PortStatus(trio.TaskStatus[list[str]]):
    """Tells the port where hypercorn tells its addresses."""

    def __init__(self, status: trio.TaskStatus[int], sock: socket.socket) -> None:
        self._status = status
        self._sock = sock

    def started(self, value: list[str] | None = None) -> None:
        """Pass on that connections are answered."""
        self._status.started(self._sock.getsockname()[1])
