"""Serves the application on a socket until told to stop: hypercorn on trio, hardened.

The address is taken by `bind` before anything slow is loaded, so that one in use is told at once; connections are
accepted only once they can be answered.

At shutdown the listening socket closes at once, so new connections are refused; what runs may finish within
drain_timeout_s. Then the cutoff is set: streams that still run get their error frame and terminator, other calls a 503.
Whoever has not read that within CUTOFF_GRACE_S is cut off.
"""

import logging
import os
import socket
import ssl
import stat
import sys
from contextlib import closing, suppress

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
    """Return a socket bound to host and port (0 picks a free one) or to a path, not listening; raises StartupError."""
    if settings.unix_socket is not None:
        return _bind_path(settings, settings.unix_socket)
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


def _bind_path(settings: IngressSettings, path: str) -> socket.socket:
    """Bind a Unix socket, in place of one that a server which is gone has left behind."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
            os.unlink(path)
    except OSError:
        pass  # nothing is there, or the bind says what is wrong
    try:
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise _cannot_listen(settings, error) from None
    sock.setblocking(False)
    return sock


def _answers(path: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        return probe.connect_ex(path) == 0


def listen(settings: IngressSettings, sock: socket.socket) -> None:
    """Let connections queue on a bound socket; raises StartupError when another process came first."""
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise _cannot_listen(settings, error) from None


def _cannot_listen(settings: IngressSettings, error: OSError) -> StartupError:
    where = f"--host {settings.host} --port {settings.port}"
    if settings.unix_socket is not None:
        where = f"--uds {settings.unix_socket}"
    return StartupError(f"{where}: cannot listen there: {error.strerror or error}.")


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
                sockets=Sockets([sock], [], []) if config.ssl_enabled else Sockets([], [sock], []),
                shutdown_trigger=shutdown.wait,
                task_status=_PortStatus(task_status, sock),
            )
        if settings.unix_socket is not None:
            with suppress(OSError):
                os.unlink(settings.unix_socket)
        nursery.cancel_scope.cancel()


def check_certificate(settings: IngressSettings) -> None:
    """Raise StartupError, naming the flag, when the server could not speak TLS as it is told to."""
    if settings.ssl_certfile is None and settings.ssl_keyfile is None:
        return
    if settings.ssl_certfile is None or settings.ssl_keyfile is None:
        raise StartupError("--ssl-certfile and --ssl-keyfile go together; one of them is missing.")
    for flag, path in (("--ssl-certfile", settings.ssl_certfile), ("--ssl-keyfile", settings.ssl_keyfile)):
        if not os.path.isfile(path):
            raise StartupError(f"{flag}: there is no file {path}.")
    try:
        http_config(settings).create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"--ssl-certfile, --ssl-keyfile: cannot be used: {error}.") from None


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
    config.alpn_protocols = ["http/1.1"]
    # As long as the head of a request may take to come.
    config.ssl_handshake_timeout = settings.keep_alive_timeout_s
    config.certfile, config.keyfile = settings.ssl_certfile, settings.ssl_keyfile
    # Never None: the library would then ask at the terminal.
    config.keyfile_password = settings.ssl_keyfile_password or ""
    return config


async def _last_call(app: App, settings: IngressSettings, shutdown: trio.Event) -> None:
    await shutdown.wait()
    app.serving.stopping.set()
    await trio.sleep(settings.drain_timeout_s)
    app.serving.cutoff.set()


class _PortStatus(trio.TaskStatus[list[str]]):
    """Tells the port where hypercorn tells its addresses."""

    def __init__(self, status: trio.TaskStatus[int], sock: socket.socket) -> None:
        self._status = status
        self._sock = sock

    def started(self, value: list[str] | None = None) -> None:
        """Pass on that connections are answered."""
        is_path = self._sock.family == socket.AF_UNIX
        self._status.started(0 if is_path else self._sock.getsockname()[1])
