"""An OpenTelemetry collector on 127.0.0.1 that reads OTLP/HTTP's protobuf and keeps the spans."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from attrs import define, field
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@define(eq=False)
class Collector:
    """What arrived: spans as protobuf has them, each with its process's attributes; and the requests' heads."""

    url: str = ""
    status: int = 200
    spans: list[tuple[Any, dict[str, Any]]] = field(factory=list)
    heads: list[tuple[str, str]] = field(factory=list)

    def named(self, name: str) -> Any:
        """Return the only span of that name."""
        (span,) = [span for span, _ in self.spans if span.name == name]
        return span

    @property
    def names(self) -> list[str]:
        """Return the spans' names in the order they came."""
        return [span.name for span, _ in self.spans]


def attributes_of(span: Any) -> dict[str, Any]:
    """Return protobuf's attributes as plain values."""
    return {pair.key: _plain(pair.value) for pair in span.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect for the block."""
    collector = Collector()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            collector.heads.append((self.path, self.headers["content-type"]))
            if collector.status == 200:
                request = ExportTraceServiceRequest.FromString(data)
                for resource in request.resource_spans:
                    process = attributes_of(resource.resource)
                    collector.spans += [(span, process) for scope in resource.scope_spans for span in scope.spans]
            self.send_response(collector.status)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
