"""How an answer leaves: a status with headers, then bytes, then the end; over ASGI, or straight to the connection."""

from collections.abc import Awaitable, Callable, Mapping
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

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers now."""
        ...

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; a client that is gone cancels the caller instead of raising."""
        ...

    async def end(self) -> None:
        """End the body."""
        ...


class AsgiWire:
    """A Wire over one ASGI request; chunked bodies take the direct way where the connection offers one."""

    def __init__(self, send: Send, scope: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.started = False
        self.written_s = trio.current_time()
        self._send = send
        self._headers = headers
        self._direct: DirectWriter | None = scope["extensions"].get(DIRECT_WRITER)
        self._chunked = scope["method"] != "HEAD"

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers, the answer's own after those every answer carries."""
        self.started = True
        if "content-length" in headers:
            self._chunked = False
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in {**self._headers, **headers}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; empty pieces are dropped, since an empty chunk would end it."""
        if not data:
            return
        self.written_s = trio.current_time()
        if self._direct is not None and self._chunked:
            await self._direct.write(data)
        else:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
