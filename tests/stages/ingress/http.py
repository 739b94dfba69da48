"""A real server on 127.0.0.1 for one test, and a raw client that sees every byte."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import trio
import trio.testing
from attrs import define, frozen

from stages.ingress.app import App
from stages.ingress.dialect import Dialect
from stages.ingress.info import Info, Readiness
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.ingress.server import serve_http
from stages.messages import Load
from stages.settings import IngressSettings, ModelSettings
from tests.fakes import FAKE_MODEL, LAX_TEXT_DIALECT, TEXT_DIALECT, FakeEngine, Script, fake_services

# 2 of 8 pages in use.
LOAD = Load(3, 4, 50, 2, 8, 3, 32, 64)


@define(eq=False)
class Running:
    """A server that runs: its port, its engine, and the handles a test turns."""

    port: int
    app: App
    engine: FakeEngine
    shutdown: trio.Event
    stopped: trio.Event
    readiness: Readiness = "ready"
    load: Load = LOAD


@asynccontextmanager
async def running(
    script: Script,
    extend: Callable[[App], None] | None = None,
    dialects: Sequence[Dialect] = (TEXT_DIALECT, LAX_TEXT_DIALECT),
    model: ModelSettings = FAKE_MODEL,
    tokenizer: str | None = None,
    within_s: float = 60,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Serve the dialects for the block on a free port; the server is told to stop after it."""
    defaults: dict[str, Any] = {"port": 0, "drain_timeout_s": 0.2}
    ingress = IngressSettings(**{**defaults, **settings})
    async with fake_services(script, model=model, tokenizer=tokenizer) as fakes, trio.open_nursery() as nursery:
        state: list[Running] = []
        serving = Serving(fakes.services, ingress)
        app = create_app(dialects, serving, fake_info(lambda: state[0].readiness, lambda: state[0].load))
        if extend is not None:
            extend(app)
        shutdown, stopped = trio.Event(), trio.Event()

        async def serve(task_status: trio.TaskStatus[int]) -> None:
            await serve_http(app, ingress, shutdown=shutdown, task_status=task_status)
            stopped.set()

        port = await nursery.start(serve)
        server = Running(port, app, fakes.engine, shutdown, stopped)
        state.append(server)
        await trio.testing.wait_all_tasks_blocked()
        try:
            with trio.fail_after(within_s):
                yield server
        finally:
            shutdown.set()


def fake_info(readiness: Callable[[], Readiness], load: Callable[[], Load] = lambda: LOAD) -> Info:
    """Facts of a server that stands where `load` says."""
    return Info(
        model=FAKE_MODEL,
        tokenizer_path="/models/fake",
        version="0.1.0",
        started_s=1_700_000_000,
        readiness=readiness,
        load=load,
        server_args=lambda: {"port": 30000, "schedule_policy": "fcfs"},
        max_running_requests=32,
        gen_throughput=lambda: 12.345,
        cache_hit_rate=lambda: 0.123456,
    )


@frozen
class Reply:
    """One parsed HTTP answer; `complete` says that its body had a proper end."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


class Client:
    """One raw connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def post(self, path: str, body: object, headers: Sequence[str] = (), version: str = "1.1") -> None:
        """Send a POST with a JSON body."""
        await self.send(post_bytes(path, body, headers, version))

    async def get(self, path: str, method: str = "GET", headers: Sequence[str] = ()) -> Reply:
        """Send a request without a body and read its answer."""
        await self.send("\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *headers, "", ""]).encode())
        return await self.reply(has_body=method != "HEAD")

    async def more(self) -> bytes:
        """Read what comes next, b"" at the end."""
        return await self.stream.receive_some()

    async def until(self, needle: bytes) -> bytes:
        """Read up to and with needle; fails at the end of input."""
        while needle not in self.buffer:
            data = await self.more()
            assert data, f"the connection ended before {needle!r}: {self.buffer!r}"
            self.buffer += data
        head, _, self.buffer = self.buffer.partition(needle)
        return head + needle

    async def to_end(self) -> bytes:
        """Read until the server closes; a reset counts as an end."""
        while True:
            try:
                data = await self.more()
            except trio.BrokenResourceError:
                data = b""
            if not data:
                return self.buffer
            self.buffer += data

    async def reply(self, has_body: bool = True) -> Reply:
        """Read one answer, by length, by chunks or to the end of the connection."""
        status, headers = parse_head(await self.until(b"\r\n\r\n"))
        body, complete = b"", True
        if not has_body:
            pass
        elif "content-length" in headers:
            num_bytes = int(headers["content-length"])
            while len(self.buffer) < num_bytes and (data := await self.more()):
                self.buffer += data
            body, self.buffer = self.buffer[:num_bytes], self.buffer[num_bytes:]
            complete = len(body) == num_bytes
        elif headers.get("transfer-encoding") == "chunked":
            body, complete = await self._chunks()
        else:
            body, self.buffer = await self.to_end(), b""
        return Reply(status, headers, body, complete)

    async def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        while True:
            try:
                num_bytes = int(await self.until(b"\r\n"), 16)
                while len(self.buffer) < num_bytes + 2:
                    data = await self.more()
                    if not data:
                        return body, False
                    self.buffer += data
            except (AssertionError, trio.BrokenResourceError):
                return body, False
            assert self.buffer[num_bytes : num_bytes + 2] == b"\r\n"
            body, self.buffer = body + self.buffer[:num_bytes], self.buffer[num_bytes + 2 :]
            if num_bytes == 0:
                return body, True


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """Give a connection for the block."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield Client(stream)


async def ask(port: int, path: str, body: object, headers: Sequence[str] = ()) -> Reply:
    """Post on a connection of its own and read the whole answer."""
    async with connected(port) as client:
        await client.post(path, body, headers)
        return await client.reply()


async def alive(port: int) -> bool:
    """Say whether a fresh connection gets an answer."""
    with trio.move_on_after(20):
        async with connected(port) as client:
            return (await client.get("/health")).status == 200
    return False


async def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait until condition holds; raises TooSlowError after within_s."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


def post_bytes(path: str, body: object, headers: Sequence[str] = (), version: str = "1.1") -> bytes:
    """Return a whole POST request."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [f"POST {path} HTTP/{version}", "host: x", f"content-length: {len(data)}", *headers]
    if not any(line.lower().startswith("content-type") for line in headers):
        lines.append("content-type: application/json")
    return "\r\n".join([*lines, "", ""]).encode() + data


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return status and headers, names in lower case."""
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}
