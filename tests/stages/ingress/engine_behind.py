"""An engine of raw bytes on a real socket behind a server that passes calls on to it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
from attrs import define, field

from stages.engine.http_client import HttpClient, connector
from stages.engine.origin import Origin
from stages.ingress.app import App
from stages.ingress.forwarding import ForwardingRules
from stages.ingress.proxy import Proxy
from tests.fakes import counting
from tests.stages.ingress.http import Client, Running, running

LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


@define(eq=False)
class Asked:
    """One request as the engine saw it, and its connection."""

    target: str
    method: str
    headers: list[tuple[str, str]]
    client: Client
    # All that came with the head.
    raw: bytes = b""
    # When the proxy has closed the connection.
    closed: trio.Event = field(factory=trio.Event)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    async def send(self, data: bytes) -> None:
        await self.client.send(data)

    async def body(self) -> bytes:
        """Read the whole body, by length or by chunks."""
        if lengths := self.values("content-length"):
            while len(self.client.buffer) < int(lengths[0]):
                data = await self.client.more()
                assert data
                self.client.buffer += data
            return self.client.buffer
        if self.values("transfer-encoding"):
            body, complete = await self.client._chunks()
            assert complete
            return body
        return b""

    async def gone(self) -> None:
        with suppress(*LOST):
            while await self.client.more():
                pass
        self.closed.set()


Answer = Callable[[Asked], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def fine(asked: Asked) -> None:
    await asked.body()
    await asked.send(OK)


@define(eq=False)
class Behind:
    """The engine: what it was asked; and the server in front."""

    port: int
    asked: list[Asked] = field(factory=list)
    num_connections: int = 0


@asynccontextmanager
async def raw_engine(answer: Answer) -> AsyncIterator[Behind]:
    """Answer every connection's one request by `answer`, for the block."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        behind = Behind(listeners[0].socket.getsockname()[1])

        async def serve(stream: trio.SocketStream) -> None:
            behind.num_connections += 1
            with suppress(*LOST, AssertionError):
                async with stream:
                    client = Client(stream)
                    raw = await client.until(b"\r\n\r\n")
                    head = raw.decode("latin-1").strip()
                    first, *lines = head.split("\r\n")
                    method, target, _ = first.split(" ")
                    pairs = [(name.lower(), text) for name, _, text in (line.partition(": ") for line in lines)]
                    asked = Asked(target, method, pairs, client, raw + client.buffer)
                    behind.asked.append(asked)
                    await answer(asked)

        nursery.start_soon(partial(trio.serve_listeners, serve, listeners))
        yield behind
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def proxied(
    answer: Answer, rules: ForwardingRules | None = None, port: int | None = None, **settings: Any
) -> AsyncIterator[tuple[Running, Behind]]:
    """Serve with that engine behind for the block, or with whatever has a port."""
    async with raw_engine(answer) as behind:
        origin = Origin("http", "127.0.0.1", behind.port if port is None else port)

        def extend(app: App) -> None:
            chosen = rules or ForwardingRules(own_keys=app.access.keys)
            app.proxy = Proxy(HttpClient(origin, connector(origin)), chosen)

        async with running(counting(2, 0.0), extend, **settings) as server:
            yield server, behind
