"""An engine that answers `/generate` by a script, over real sockets or streams in memory; the HTTP is by hand."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
import trio
import trio.testing
from attrs import define, field

LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


@define(eq=False)
class Exchange:
    """One request and what its answer is written with."""

    path: str
    headers: Mapping[str, str]
    body: Any
    raw: bytes
    stream: trio.abc.Stream
    chunked: bool = True
    is_open: bool = False
    has_ended: bool = False

    async def head(self, status: int = 200, **headers: str) -> None:
        self.is_open = True
        given = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers}
        if "content_length" in headers or ("connection" in headers and headers["connection"] == "close"):
            self.chunked = False
            del given["transfer-encoding"]
        lines = [f"HTTP/1.1 {status} Reason", *(f"{name.replace('_', '-')}: {text}" for name, text in given.items())]
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())

    async def send(self, data: bytes) -> None:
        if not self.is_open:
            await self.head()
        await self.stream.send_all(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)

    async def frame(self, value: object) -> None:
        await self.send(b"data: " + orjson.dumps(value) + b"\n\n")

    async def tokens(self, ids: Sequence[int], total: int, finish: object = None, **meta: Any) -> None:
        info = {"prompt_tokens": len(self.body["input_ids"]), "completion_tokens": total, "finish_reason": finish}
        await self.frame({"text": "", "output_ids": list(ids), "meta_info": {**info, **meta}})

    async def done(self) -> None:
        await self.send(b"data: [DONE]\n\n")
        await self.end()

    async def end(self) -> None:
        self.has_ended = True
        if self.chunked:
            await self.stream.send_all(b"0\r\n\r\n")

    async def refuse(self, status: int, value: object, **headers: str) -> None:
        body = value if isinstance(value, bytes) else orjson.dumps(value)
        await self.head(status, content_type="application/json", content_length=str(len(body)), **headers)
        await self.stream.send_all(body)
        self.has_ended = True

    async def gone(self) -> None:
        """Wait until the client has closed."""
        with suppress(*LOST):
            while await self.stream.receive_some(1000):
                pass


Script = Callable[[Exchange], Awaitable[None]]
STOP = {"type": "stop", "matched": None}


def counting(num_tokens: int, *, cumulative: bool = False, delay_s: float = 0.0) -> Script:
    """Answer with ids 10, 11, ... one a frame, ended by length."""

    async def script(exchange: Exchange) -> None:
        for count in range(1, num_tokens + 1):
            await trio.sleep(delay_s)
            ids = range(10, 10 + count) if cumulative else [9 + count]
            await exchange.tokens(ids, count, {"type": "length"} if count == num_tokens else None)
        await exchange.done()

    return script


async def never(exchange: Exchange) -> None:
    """Say nothing until the client leaves."""
    await exchange.gone()


@define(eq=False)
class FakeGenerate:
    """An engine: what it was asked, and what it answers."""

    script: Script
    exchanges: list[Exchange] = field(factory=list)
    aborts: list[str] = field(factory=list)
    left: list[str] = field(factory=list)
    num_connections: int = 0
    nursery: trio.Nursery | None = None
    # Whether connecting works, or hangs.
    is_up: bool = True
    hangs: bool = False
    order: Script | None = None

    @property
    def rids(self) -> list[str]:
        return [exchange.body["rid"] for exchange in self.exchanges]

    async def connect(self) -> trio.abc.Stream:
        if self.hangs:
            await trio.sleep_forever()
        if not self.is_up:
            raise OSError("Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        assert self.nursery is not None
        self.nursery.start_soon(self.serve, theirs)
        return ours

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.num_connections += 1
        pending = b""
        with suppress(*LOST):
            async with stream:
                while True:
                    while b"\r\n\r\n" not in pending:
                        if not (piece := await stream.receive_some(65536)):
                            return
                        pending += piece
                    head, _, pending = pending.partition(b"\r\n\r\n")
                    first, *lines = head.decode().split("\r\n")
                    headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
                    size = int(headers.get("content-length", 0))
                    while len(pending) < size:
                        pending += await stream.receive_some(65536)
                    raw, pending = pending[:size], pending[size:]
                    if not self.is_up:
                        return
                    exchange = Exchange(first.split(" ")[1], headers, orjson.loads(raw or b"null"), raw, stream)
                    await self._answer(exchange)
                    if not exchange.has_ended:
                        return

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.path == "/abort_request":
            self.aborts.append(exchange.body["rid"])
            await exchange.refuse(200, b"")
        elif exchange.path == "/generate":
            self.exchanges.append(exchange)
            try:
                await self.script(exchange)
            except LOST:
                self.left.append(exchange.body["rid"])
        elif self.order is not None:
            await self.order(exchange)
        else:
            await exchange.refuse(404, {"error": {"message": "Not Found"}})
