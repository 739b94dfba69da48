"""Makes the pinned pair hypercorn 0.18 / h11 0.16 safe to serve with; `install()` once, before the first connection.

What is wrong without it, each found by test (tests/stages/ingress/test_hardening.py has one test a cause):

- *Connections never close.* hypercorn closes or recycles a connection inside the application's last `send`. On the way
  it reports http.disconnect, quart-trio answers by cancelling the very task that is closing, and the cancellation lands
  in the middle: no idle timer is started, no socket closed. Cure: a close is shielded, and idling waits for nothing.
- *One connection takes the process down.* An exception of the protocol code (a WebSocket handshake followed by junk, a
  parser's complaint) leaves the connection's task and ends the server. Cure: it ends there, with one line in the log;
  and since nothing here speaks WebSocket, the upgrade is ignored, which makes such a request an ordinary GET.
- *A client that stops reading cannot be dropped.* Writes are shielded and have no end. Cure: they end after
  write_timeout_s, the connection is dropped and its handler cancelled.
- *A refusal is lost.* Closing while the client still sends makes the kernel reset the connection, and the answer (413,
  400) with it. Cure: half-close, then read and discard for at most linger_s.
- *A reader waits for ever.* With pipelined bytes behind a request the reader sleeps until a recycling that never comes
  when the connection is closed instead. Cure: closing cancels the reader.
- *An offered upgrade hides a disconnect.* h11 reads nothing behind a request with an Upgrade header (h2c, as Java's and
  curl's clients offer it) until it is answered. Cure: the offer is forgotten as soon as it is ignored.
- *A closed connection lives on.* A response that ends after its client has left starts the idle timer once more, which
  then holds the connection's task for the whole keep-alive timeout. Cure: nothing idles once the reader has ended.
- *HTTP/2 has holes of its own.* A client that grants no window holds its request for ever: the wait is not a write, and
  nothing ends it. Cure: HTTP/1 only; TLS does not offer HTTP/2, the offer h2c is ignored, and its preface is a 505.
- *Two ends of one body.* Of a request with a length and a transfer coding a proxy in front may have believed the other
  one, and what follows would be another client's. Cure: it is refused and the connection closed.
- *A stalled TLS handshake holds up a shutdown* for the whole drain. Cure: it ends with the server.
- *Over TLS an end looks like a cut.* Streams are closed without TLS's close_notify, so the end of a body that has no
  length (HTTP/1.0) is an error to careful clients. Cure: it is sent, and waits no longer than any write.
- *A kept connection costs a task a request,* to end it when it idles. Cure: one for all of them (`idling.py`).
- *An event stream costs 48 us a chunk.* Locks, shields and two framing layers for each. Cure: plain sockets are written
  directly when nobody else is writing, and `DirectWriter` lets a handler frame its chunks itself, or write one
  without waiting at all.

TCP_NODELAY needs no cure: trio sets it on every SocketStream; a test keeps it so.

It leans on names hypercorn does not promise, so `install` refuses other versions.
"""

import logging
import os
import select
from contextlib import suppress
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import h11
import hypercorn.protocol
import hypercorn.protocol.h11
import hypercorn.trio.run
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import EndBody, Request
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.tcp_server import TCPServer

from stages.errors import StartupError
from stages.ingress.idling import Idling

PINNED = {"hypercorn": "0.18.0", "h11": "0.16.0"}
DIRECT_WRITER = "trnrt.direct_writer"
WRITES_BEFORE_YIELD = 16

log = logging.getLogger("trnrt.ingress")


class HardenedConfig(Config):
    """hypercorn's settings and ours: how long a write may stall, how long unread input is drained at a close."""

    write_timeout_s: float = 30.0
    linger_s: float = 2.0


def install() -> None:
    """Put the hardened classes in hypercorn's place; raises StartupError for versions they were not written for."""
    for name, pinned in PINNED.items():
        found = version(name)
        if found != pinned:
            raise StartupError(f"{name} {found} is installed, but the HTTP server is hardened for {name} {pinned}.")
    hypercorn.trio.run.TCPServer = HardenedTCPServer  # type: ignore[attr-defined, assignment]
    hypercorn.protocol.H11Protocol = HardenedH11Protocol  # type: ignore[attr-defined]
    hypercorn.protocol.h11.HTTPStream = DirectHTTPStream  # type: ignore[attr-defined]


class HardenedTCPServer(TCPServer):
    """One connection: contained, closed when it should be, and never stuck on a write."""

    config: HardenedConfig

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._plain = isinstance(self.stream, trio.SocketStream)
        if not self._plain:
            # Of the kind that says goodbye; nothing was read from the one it takes the place of.
            self.stream = trio.SSLStream(self.stream.transport_stream, self.stream.context, server_side=True)
        self.idle_task: Idling = Idling(  # type: ignore[assignment]
            self.config.keep_alive_timeout, self.context.terminated.wait, self._initiate_server_close
        )
        self._reading = trio.CancelScope()
        self._half_closed = False
        self._read_all = False
        self._writes_in_a_row = 0
        # What is to go out together with what follows; None while nothing is held back.
        self._held: bytearray | None = None

    async def run(self) -> None:
        """Serve the connection until it ends; whatever goes wrong in it stays in it."""
        try:
            if self._plain or await self._shake_hands():
                await super().run()
        except* Exception as group:
            log.warning("connection dropped: %r", _first(group))

    async def _shake_hands(self) -> bool:
        """Say whether TLS was agreed on, in time and before the server stops."""
        is_agreed = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_stopping, nursery.cancel_scope)
            with trio.move_on_after(self.config.ssl_handshake_timeout), suppress(trio.BrokenResourceError):
                await self.stream.do_handshake()
                is_agreed = True
            nursery.cancel_scope.cancel()
        return is_agreed

    async def _cancel_when_stopping(self, scope: trio.CancelScope) -> None:
        await self.context.terminated.wait()
        scope.cancel()

    async def protocol_send(self, event: Event) -> None:
        """Write bytes, or close or idle the connection; a close is not cut short by a cancellation."""
        if isinstance(event, RawData):
            await self.send_bytes(event.data)
        elif isinstance(event, Updated):
            if not self._read_all:
                await super().protocol_send(event)
        else:
            with trio.CancelScope(shield=True):
                await super().protocol_send(event)

    async def send_bytes(self, data: bytes | bytearray) -> None:
        """Write all of `data`; a peer that is gone, or reads nothing for write_timeout_s, is dropped instead."""
        if self._held is not None:
            self._held += data
            return
        if not data:
            return
        num_sent = 0
        if self._plain and not self.send_lock.locked():
            try:
                num_sent = os.write(self.stream.socket.fileno(), data)
            except BlockingIOError:
                num_sent = 0
            except OSError:
                await self._drop()
                return
            if num_sent == len(data):
                await self._yield_sometimes()
                return
        await self._send_slowly(memoryview(data)[num_sent:])

    def hold(self) -> None:
        """Keep back what is sent until `release`, which must follow without a checkpoint: nobody else may write."""
        self._held = bytearray()

    async def release(self) -> None:
        """Write what was held back, in one go."""
        held, self._held = self._held, None
        if held:
            await self.send_bytes(held)

    @property
    def is_free(self) -> bool:
        """Whether nobody is in the middle of a write to a plain socket."""
        return self._plain and not self.send_lock.locked()

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its side, seen though what it sent before was not read."""
        return has_closed((self.stream if self._plain else self.stream.transport_stream).socket)

    def send_now(self, data: bytes) -> bytes:
        """Write what the socket takes at once and return the rest; one that is broken takes nothing."""
        try:
            num_sent = os.write(self.stream.socket.fileno(), data)
        except OSError:  # whoever sends the rest finds out what is wrong
            return data
        return data[num_sent:]

    async def _send_slowly(self, rest: memoryview) -> None:
        delivered = False
        with trio.move_on_after(self.config.write_timeout_s, shield=True):
            async with self.send_lock:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self.stream.send_all(rest)
                    delivered = True
        if not delivered:
            await self._drop()

    async def _yield_sometimes(self) -> None:
        # A handler that never waits would starve the loop: a direct write is no checkpoint.
        self._writes_in_a_row += 1
        if self._writes_in_a_row % WRITES_BEFORE_YIELD == 0:
            await trio.lowlevel.checkpoint()

    async def _drop(self) -> None:
        """Close at once; the reader, ended by it, tells the handler by its cancellation."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self.stream)
        self._reading.cancel()
        await trio.lowlevel.checkpoint()

    async def _read_data(self) -> None:
        with self._reading:
            await super()._read_data()
        if self._reading.cancelled_caught:
            if self._half_closed:
                await self._discard_input()
            await self.protocol.handle(Closed())
        self._read_all = True
        self.idle_task.end()

    async def _discard_input(self) -> None:
        with trio.move_on_after(self.config.linger_s), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await self.stream.receive_some():
                pass

    async def _close(self) -> None:
        with trio.move_on_after(self.config.write_timeout_s, shield=True):
            with suppress(trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError, AttributeError):
                await self.stream.send_eof()
            if self._input_is_owed() and not self._half_closed:
                self._half_closed = True  # the reader drains what still comes, then `run` closes for good
            else:
                await self.stream.aclose()
        self._reading.cancel()

    async def _initiate_server_close(self) -> None:
        await self.protocol.handle(Closed())
        with trio.move_on_after(self.config.write_timeout_s):  # TLS's goodbye is a write
            await self.stream.aclose()

    def _input_is_owed(self) -> bool:
        protocol = getattr(getattr(self, "protocol", None), "protocol", None)
        connection = protocol.connection if isinstance(protocol, H11Protocol) else None
        return isinstance(connection, h11.Connection) and connection.their_state in (h11.SEND_BODY, h11.ERROR)


class HardenedH11Protocol(H11Protocol):
    """HTTP/1, which nothing turns into WebSockets, HTTP/2 or anything else."""

    async def stream_send(self, event: StreamEvent) -> None:
        """Send the event; what was held back goes out with the end of the body, before anything is cancelled by it."""
        await super().stream_send(event)
        if isinstance(event, EndBody):
            server = self.send.__self__  # type: ignore[attr-defined]
            await server.release()

    async def _check_protocol(self, event: h11.Request) -> None:
        """Leave the protocol as it is."""

    async def _create_stream(self, request: h11.Request) -> None:
        if not request.http_version.startswith(b"1."):
            await self._send_error_response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            await self.send(Closed())
            return
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
            await self._send_error_response(HTTPStatus.BAD_REQUEST)
            await self.send(Closed())
            return
        # h11 stops reading behind a request that offers an upgrade, and so would never see its client leave.
        self.connection._cstate.pending_switch_proposals.clear()  # type: ignore[union-attr]
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        plain = h11.Request(
            method=request.method, target=request.target, headers=headers, http_version=request.http_version
        )
        await super()._create_stream(plain)


class DirectWriter:
    """Writes chunks of a started HTTP/1.1 chunked response straight to its connection."""

    def __init__(self, server: HardenedTCPServer) -> None:
        self._server = server

    def hold(self) -> None:
        """Keep back what is sent, by whoever answers this request, until `release` or the end of the body."""
        self._server.hold()

    async def release(self) -> None:
        """Write what was held back, in one go."""
        await self._server.release()

    async def write(self, data: bytes) -> None:
        """Frame `data`, which must not be empty, as one chunk and write it."""
        await self._server.send_bytes(b"%x\r\n%b\r\n" % (len(data), data))

    @property
    def is_free(self) -> bool:
        """Whether write_now may be called: nobody is in the middle of a write, and it is a plain socket."""
        return self._server.is_free

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its side, seen though what it sent before was not read."""
        return self._server.has_left

    def write_now(self, data: bytes) -> bytes:
        """Write `data`, framed, as far as the connection takes it at once; return the rest, for write_rest."""
        return self._server.send_now(b"%x\r\n%b\r\n" % (len(data), data))

    async def write_rest(self, rest: bytes) -> None:
        """Write what write_now has left."""
        await self._server.send_bytes(rest)


class DirectHTTPStream(HTTPStream):
    """An HTTP/1 request whose scope carries a DirectWriter under extensions[DIRECT_WRITER]."""

    async def handle(self, event: StreamEvent) -> None:
        """Pass the event on, and add the writer before the application's task first runs."""
        await super().handle(event)
        if isinstance(event, Request) and event.http_version == "1.1" and not self.closed:
            server = self.send.__self__.send.__self__  # type: ignore[attr-defined]
            if isinstance(server, HardenedTCPServer):
                extensions: dict[str, object] = self.scope["extensions"]  # type: ignore[assignment]
                extensions[DIRECT_WRITER] = DirectWriter(server)


def has_closed(socket: trio.socket.SocketType) -> bool:
    """Say whether the other side has closed its half, or this one all, whatever there still is to read."""
    poll = select.poll()
    try:
        poll.register(socket.fileno(), getattr(select, "POLLRDHUP", 0))
    except (OSError, ValueError):
        return True
    return bool(poll.poll(0))


def _first(error: BaseException) -> BaseException:
    """Return the first plain exception of nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
