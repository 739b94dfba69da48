"""An HTTP/1.1 client of one origin on trio streams: connections are kept, answers are streamed, nothing is buffered.

What others wrote, body and headers, goes by an Exchange instead: over a connection of its own, in pieces, never twice.

A connection carries one exchange at a time and goes back to the idle ones only when its response was read to the end
and both sides may go on; whatever ends otherwise is closed at once, which is how an engine hears that its client left.
A kept connection that the other side closed meanwhile is not noticed before it is used: an exchange that gets not one
byte over a kept connection is tried once more over a new one.
"""

import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import h11
import trio
from attrs import define, field

from stages.engine.http_body import Body, body_of
from stages.engine.origin import Origin
from stages.errors import RemoteFailure

READ_BYTES = 65536
MAX_HEAD_BYTES = 65536
# Of a body that is not streamed: a reason, an order's result.
MAX_TEXT_BYTES = 65536
LOST = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, ssl.SSLError)
_CUT_HEAD = "engine request failed: the connection ended inside the answer's head"

Headers = tuple[tuple[str, str], ...]
# As they came from somebody else.
RawHeaders = tuple[tuple[bytes, bytes], ...]
Connect = Callable[[], Awaitable[trio.abc.Stream]]


class _NothingCame(Exception):
    """The connection ended before the first byte of an answer."""


@define(eq=False)
class Response:
    """A response whose head is here; leaving its block closes the connection unless the body was read to the end."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    client: "HttpClient"
    stream: trio.abc.Stream
    body: Body
    # Of the body, what came with the head.
    first: bytes
    may_reuse: bool
    is_closed: bool = False

    def header(self, name: bytes) -> bytes | None:
        """Return a header by its name in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def socket(self) -> "trio.socket.SocketType | None":
        """Return the socket that the rest of the body comes from as it is; None where it does not."""
        is_plain = not (self.first or self.body.is_done or self.body.failure)
        return self.stream.socket if is_plain and isinstance(self.stream, trio.SocketStream) else None

    def took(self, piece: bytes) -> bytes:
        """Return the part of the body in what its socket had; raises RemoteFailure (503) for an end too early."""
        if piece:
            return self.body.feed(piece)
        self.may_reuse = False
        self.body.end()
        return b""

    async def read(self) -> bytes:
        """Return the next piece of the body, empty at its end; raises RemoteFailure (503) when the connection fails."""
        while not self.body.is_done:
            if self.body.failure is not None:
                raise self.body.failure
            if self.first:
                piece, self.first = self.first, b""
            else:
                try:
                    piece = await _received(self.stream)
                except LOST as error:
                    raise RemoteFailure(f"engine stream failed: {_words(error)}", 503) from error
                if not piece:
                    self.may_reuse = False
                    self.body.end()
                    return b""
            if part := self.body.feed(piece):
                return part
        return b""

    async def text(self, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
        """Return the body, or the beginning of a long one."""
        parts: list[bytes] = []
        size = 0
        while size < max_bytes and (part := await self.read()):
            parts.append(part)
            size += len(part)
        return b"".join(parts)[:max_bytes]

    async def __aenter__(self) -> "Response":
        """Return the response."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Keep the connection or close it."""
        await self.close()

    async def close(self) -> None:
        """Keep the connection or close it, once, whoever is cancelled."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.body.is_done and self.may_reuse and not self.first:
            self.client.keep(self.stream)
            return
        await trio.aclose_forcefully(self.stream)


@define(eq=False)
class HttpClient:
    """Exchanges with one origin over at most max_idle kept connections and as many others as there are exchanges."""

    origin: Origin
    connect: Connect
    connect_timeout_s: float = 10.0
    headers: Headers = ()
    max_idle: int = 64
    _idle: list[trio.abc.Stream] = field(factory=list)
    is_closed: bool = False

    async def send(self, method: str, path: str, body: bytes = b"", headers: Headers = ()) -> Response:
        """Return the response to a request as soon as its head is here; the caller closes it.

        `headers` are this request's, beside those of all.

        Raises RemoteFailure: 503 when the engine cannot be reached or the exchange fails, 504 when connecting takes
        too long.
        """
        while self._idle:
            stream = self._idle.pop()
            if _has_ended(stream):
                await trio.aclose_forcefully(stream)
                continue
            try:
                return await self._exchange(stream, method, path, body, headers)
            except _NothingCame:
                break
        try:
            return await self._exchange(await self._connected(), method, path, body, headers)
        except _NothingCame as error:
            text = f"engine request failed: {self.origin} closed the connection without an answer"
            raise RemoteFailure(text, 503) from error

    async def begin(self, method: str, target: str, headers: RawHeaders, *, has_body: bool) -> "Exchange":
        """Send the head of a request over a new connection; the caller sends the body, and closes.

        Headers are sent as they are, with Host and without a Connection of their own; a body without a Content-Length
        goes in chunks. Raises RemoteFailure as `send` does, and 400 for what is no head of HTTP/1.1.
        """
        framed = any(name.lower() == b"content-length" for name, _ in headers)
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        ours = [(b"Host", self.origin.host_header.encode()), *headers, (b"Connection", b"close")]
        if has_body and not framed:
            ours.append((b"Transfer-Encoding", b"chunked"))
        try:
            head = parser.send(h11.Request(method=method, target=target, headers=ours))
        except h11.LocalProtocolError as error:
            raise RemoteFailure(f"the request cannot be passed on: {error}", 400) from None
        exchange = Exchange(self, await self._connected(), parser, method)
        try:
            await exchange.send_all(head)
        except BaseException:
            await exchange.close()
            raise
        return exchange

    def keep(self, stream: trio.abc.Stream) -> None:
        """Take back a connection that may carry another exchange."""
        if self.is_closed or len(self._idle) >= self.max_idle:
            _close_now(stream)
        else:
            self._idle.append(stream)

    def close(self) -> None:
        """Close the idle connections, and those that are given back from now on."""
        self.is_closed = True
        while self._idle:
            _close_now(self._idle.pop())

    async def _connected(self) -> trio.abc.Stream:
        try:
            with trio.fail_after(self.connect_timeout_s):
                return await self.connect()
        except trio.TooSlowError:
            text = f"engine request failed: no connection to {self.origin} within {self.connect_timeout_s:g} s"
            raise RemoteFailure(text, 504) from None
        except LOST as error:
            text = f"engine request failed: cannot connect to {self.origin}: {_words(error)}"
            raise RemoteFailure(text, 503) from error

    async def _exchange(
        self, stream: trio.abc.Stream, method: str, path: str, body: bytes, headers: Headers
    ) -> Response:
        try:
            return await self._answered(stream, method, path, body, headers)
        except LOST as error:
            await trio.aclose_forcefully(stream)
            # A server may close a kept connection as the request is on its way.
            raise _NothingCame(_words(error)) from error
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    async def _answered(
        self, stream: trio.abc.Stream, method: str, path: str, body: bytes, headers: Headers
    ) -> Response:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        all_headers = [
            ("Host", self.origin.host_header),
            ("Accept-Encoding", "identity"),
            ("Content-Length", str(len(body))),
            *((("Content-Type", "application/json"),) if body else ()),
            *self.headers,
            *headers,
        ]
        head = parser.send(h11.Request(method=method, target=path, headers=all_headers))
        # The parser is not asked to frame the body, only told that it went.
        parts = (head, parser.send(h11.Data(data=body)) if body else b"", parser.send(h11.EndOfMessage()))
        await stream.send_all(b"".join(part for part in parts if part))
        return await self.response_of(stream, parser, method)

    async def response_of(self, stream: trio.abc.Stream, parser: Any, method: str) -> Response:
        """Return the response to what the parser has sent; raises RemoteFailure, or what a broken stream raises."""
        response = await self._head(stream, parser)
        first, _ = parser.trailing_data
        named = tuple((bytes(name), bytes(value)) for name, value in response.headers)
        closes = b"close" in dict(named).get(b"connection", b"").lower() or response.http_version < b"1.1"
        framing = body_of(response.status_code, named, method)
        return Response(response.status_code, named, self, stream, framing, bytes(first), may_reuse=not closes)

    async def _head(self, stream: trio.abc.Stream, parser: Any) -> Any:
        """Return the response's head, past what is only informational."""
        any_came = False
        while True:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError as error:
                raise RemoteFailure(f"engine request failed: no HTTP/1.1 answer: {error}", 503) from error
            if isinstance(event, h11.Response):
                return event
            if event is h11.NEED_DATA:
                try:
                    piece = await stream.receive_some(READ_BYTES)
                except LOST as error:
                    if any_came:
                        raise RemoteFailure(f"{_CUT_HEAD}: {_words(error)}", 503) from error
                    raise
                if not piece:
                    if any_came:
                        raise RemoteFailure(_CUT_HEAD, 503)
                    raise _NothingCame
                any_came = True
                parser.receive_data(piece)
            elif not isinstance(event, h11.InformationalResponse):
                raise RemoteFailure("engine request failed: no HTTP/1.1 answer", 503)


@define(eq=False)
class Exchange:
    """A request under way over a connection of its own: its body is sent while its response may already come."""

    client: HttpClient
    stream: trio.abc.Stream
    parser: Any
    method: str

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body; raises RemoteFailure (503) once the engine reads no more."""
        await self.send_all(self.parser.send(h11.Data(data=piece)))

    async def end(self) -> None:
        """Say that the body is whole; raises RemoteFailure (503) once the engine reads no more."""
        await self.send_all(self.parser.send(h11.EndOfMessage()) or b"")

    async def response(self) -> Response:
        """Return the response as soon as its head is here, however much of the body went; raises RemoteFailure."""
        try:
            response = await self.client.response_of(self.stream, self.parser, self.method)
        except _NothingCame as error:
            text = f"engine request failed: {self.client.origin} closed the connection without an answer"
            raise RemoteFailure(text, 503) from error
        except LOST as error:
            raise RemoteFailure(f"engine request failed: {_words(error)}", 503) from error
        response.may_reuse = False
        return response

    async def send_all(self, data: bytes) -> None:
        """Send bytes as they are; raises RemoteFailure (503) once the engine reads no more."""
        try:
            await self.stream.send_all(data)
        except LOST as error:
            raise RemoteFailure(f"engine request failed: {_words(error)}", 503) from error

    async def close(self) -> None:
        """Close the connection, which tells the engine that nobody listens any more."""
        await trio.aclose_forcefully(self.stream)


def connector(origin: Origin, ssl_context: ssl.SSLContext | None = None) -> Connect:
    """Return what opens a connection to the origin, by TLS with the system's certificates unless a context is given."""
    if not origin.is_tls:

        async def plain() -> trio.abc.Stream:
            return await trio.open_tcp_stream(origin.host, origin.port)

        return plain
    context = ssl_context if ssl_context is not None else ssl.create_default_context()

    async def encrypted() -> trio.abc.Stream:
        stream = await trio.open_ssl_over_tcp_stream(
            origin.host, origin.port, ssl_context=context, https_compatible=True
        )
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    return encrypted


async def _received(stream: trio.abc.Stream) -> bytes:
    """Return what comes next, empty at the end.

    A stream with a token now and then has mostly nothing yet: to wait first spares a read in vain for every token.
    """
    if isinstance(stream, trio.SocketStream):
        await trio.lowlevel.wait_readable(stream.socket)
        with suppress(BlockingIOError):
            return os.read(stream.socket.fileno(), READ_BYTES)
    return bytes(await stream.receive_some(READ_BYTES))


def _has_ended(stream: trio.abc.Stream) -> bool:
    """Whether the other side has closed a kept connection, or sent what nobody asked for."""
    # An idle connection has nothing to read unless it has ended.
    return isinstance(stream, trio.SocketStream) and stream.socket.is_readable()


def _close_now(stream: trio.abc.Stream) -> None:
    """Close a connection without awaiting anything."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if isinstance(stream, trio.SocketStream):
        stream.socket.close()
    elif isinstance(stream, trio.StapledStream):  # in memory, in tests
        stream.send_stream.close()
        stream.receive_stream.close()


def _words(error: BaseException) -> str:
    """Return what an operating system's error says; one of several attempts, or trio's around it, says least itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    cause = error.__cause__ or error.__context__
    if isinstance(cause, BaseException) and not isinstance(error, ssl.SSLError) and not getattr(error, "strerror", ""):
        return _words(cause)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
