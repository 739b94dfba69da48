"""Serves the application on a socket until told to stop: hypercorn on trio, hardened.

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


def listen(settings: IngressSettings) -> socket.socket:
    """Return a socket listening on host and port (0 picks a free one); raises StartupError naming the flag."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartupError(f"--host {settings.host} cannot be resolved: {error.strerror}.") from None
    try:
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"--host {settings.host} --port {settings.port}"
        raise StartupError(f"{where}: cannot listen there: {error.strerror}.") from None
    listener.setblocking(False)
    return listener


async def serve_http(
    app: App,
    settings: IngressSettings,
    *,
    shutdown: trio.Event,
    listener: socket.socket | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `shutdown` and the drain after it; reports the port once connections are answered.

    A `listener` made earlier with `listen` is taken over and closed; without one the socket is made here.
    """
    install()
    config = http_config(settings)
    sock = listener or listen(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_last_call, app, settings, shutdown)
        with closing(sock):
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
    config.loglevel = "WARNING"  # its line with the address is ours to write
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
