"""How an answer leaves: a status with headers, then bytes, then the end; over ASGI, or straight to the connection."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import trio

from stages.ingress.hardening import DIRECT_WRITER, DirectWriter

JSON_HEADERS = {"content-type": "application/json"}
SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

Send = Callable[[Any], Awaitable[None]]


class Wire(Protocol):
    """Where one answer goes; `started` says whether the status is out, written_s when something last went out."""

    started: bool
    written_s: float

    async def start(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send status and headers now, and a piece of the body with them."""
        ...

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; a client that is gone cancels the caller instead of raising."""
        ...

    @property
    def can_write_now(self) -> bool:
        """Whether write_now may be called."""
        ...

    def write_now(self, data: bytes) -> bytes:
        """Send a piece of the body, which must not be empty, as far as it goes at once; return the rest of it."""
        ...

    async def write_rest(self, rest: bytes) -> None:
        """Send what write_now has left, before anything else is."""
        ...

    async def end(self, body: bytes = b"") -> None:
        """Send the last piece of the body, and with it its end."""
        ...


class AsgiWire:
    """A Wire over one ASGI request; chunked bodies take the direct way where the connection offers one."""

    def __init__(self, send: Send, scope: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.started = False
        # None until it is out.
        self.status: int | None = None
        self.written_s = trio.current_time()
        self._send = send
        self._headers = headers
        self._direct: DirectWriter | None = scope["extensions"].get(DIRECT_WRITER)
        self._chunked = scope["method"] != "HEAD"

    async def start(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send status and headers, the answer's own after those every answer carries, and a piece of the body."""
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in {**self._headers, **headers}.items()]
        await self.start_pairs(status, pairs, body)

    async def start_pairs(self, status: int, pairs: Sequence[tuple[bytes, bytes]], body: bytes = b"") -> None:
        """Send status and these headers, names in lower case and any of them repeated, and a piece of the body."""
        self.started = True
        self.status = status
        if any(name == b"content-length" for name, _ in pairs):
            self._chunked = False
        head = {"type": "http.response.start", "status": status, "headers": pairs}
        if self._direct is None:
            await self._send(head)
            await self.write(body)
            return
        self._direct.hold()
        try:
            await self._send(head)
            await self.write(body)
        finally:
            await self._direct.release()

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; empty pieces are dropped, since an empty chunk would end it."""
        if not data:
            return
        self.written_s = trio.current_time()
        if self._direct is not None and self._chunked:
            await self._direct.write(data)
        else:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its side, seen though what it sent before was not read; False if unknown."""
        return self._direct is not None and self._direct.has_left

    @property
    def can_write_now(self) -> bool:
        """Whether the connection takes a chunk directly, and nobody is in the middle of writing one."""
        return self._direct is not None and self._chunked and self._direct.is_free

    def write_now(self, data: bytes) -> bytes:
        """Send a piece of the body as far as it goes at once; return the rest, as it goes over the connection."""
        assert self._direct is not None
        self.written_s = trio.current_time()
        return self._direct.write_now(data)

    async def write_rest(self, rest: bytes) -> None:
        """Send what write_now has left."""
        assert self._direct is not None
        await self._direct.write_rest(rest)

    async def end(self, body: bytes = b"") -> None:
        """Send the last piece of the body and its end, in one write where there is a direct way."""
        if self._direct is not None:
            self._direct.hold()
        try:
            await self.write(body)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if self._direct is not None:  # released long since, unless the end of the body was not reached
                await self._direct.release()
