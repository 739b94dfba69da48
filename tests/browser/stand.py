"""Serves the dashboard's page from a thread, with a stream of snapshots that the test writes, cuts and refuses."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from typing import Any

import orjson
from attrs import define, field

from stages.ingress.dashboard import page

STREAM = "/v1/stats/stream"


@define(eq=False)
class Stand:
    """What the server answers, and what it was asked."""

    root: str = ""
    key: str | None = None
    # The stream's status in place of 200.
    status: int = 200
    port: int = 0
    # Path and authorization of every call, in order.
    asked: list[tuple[str, str | None]] = field(factory=list)
    _readers: list["SimpleQueue[bytes | None]"] = field(factory=list)
    _newest: bytes | None = None
    _lock: threading.Lock = field(factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.root}/dashboard"

    @property
    def num_readers(self) -> int:
        with self._lock:
            return len(self._readers)

    @property
    def num_connects(self) -> int:
        return sum(path == f"{self.root}{STREAM}" for path, _ in self.asked)

    def send(self, snapshot: Any) -> None:
        """Give a snapshot to whoever listens, and to whoever comes before the next one."""
        self.write(b"data: " + orjson.dumps(snapshot) + b"\n\n")

    def write(self, data: bytes) -> None:
        """Give bytes to whoever listens or comes."""
        with self._lock:
            self._newest = data
            for reader in self._readers:
                reader.put(data)

    def cut(self) -> None:
        """End every stream."""
        with self._lock:
            for reader in self._readers:
                reader.put(None)

    @contextmanager
    def reading(self) -> "Iterator[SimpleQueue[bytes | None]]":
        reader: SimpleQueue[bytes | None] = SimpleQueue()
        with self._lock:
            self._readers.append(reader)
            if self._newest is not None:
                reader.put(self._newest)
        try:
            yield reader
        finally:
            with self._lock:
                self._readers.remove(reader)


@contextmanager
def standing(**what: Any) -> Iterator[Stand]:
    """Serve a stand on a free port for the block."""
    stand = Stand(**what)

    class Answers(_Answers):
        of = stand

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    stand.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stand
    finally:
        stand.cut()
        server.shutdown()
        thread.join()
        server.server_close()


class _Answers(BaseHTTPRequestHandler):
    of: Stand
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        stand = self.of
        stand.asked.append((self.path, self.headers.get("authorization")))
        if self.path == f"{stand.root}/dashboard":
            self._whole(200, page().body, dict(page().headers))
        elif self.path != f"{stand.root}{STREAM}":
            self._whole(404, b"")
        elif stand.key is not None and self.headers.get("authorization") != f"Bearer {stand.key}":
            self._whole(401, b'{"error":"Unauthorized"}')
        elif stand.status != 200:
            self._whole(stand.status, b"")
        else:
            self._stream()

    def _whole(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        with self.of.reading() as reader:
            while not self._is_gone():
                try:
                    data = reader.get(timeout=0.05)
                except Empty:
                    continue
                if data is None:
                    return
                self.wfile.write(data)

    def _is_gone(self) -> bool:
        """Say whether the client has closed: nothing more is expected of it."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True
