"""Spans as OpenTelemetry's SDK sends them: protobuf over HTTP. The one module that needs the extra trnrt[otel].

Headers, certificates, compression and timeouts are the SDK's own environment variables (OTEL_EXPORTER_OTLP_...), as are
further attributes of the process (OTEL_RESOURCE_ATTRIBUTES).
"""

import logging
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from stages.messages import RequestRecord
from stages.trace_context import TraceContext
from stages.traces.exporter import TraceExporter
from stages.traces.spans import Span, spans_of

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def open_exporter(endpoint: str, attributes: Mapping[str, str], version: str) -> TraceExporter:
    """Return an exporter to a collector's traces endpoint, not started; attributes are the process's."""
    # It says so at every try; our exporter says it once.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(endpoint=endpoint)
    resource = Resource.create(dict(attributes))
    scope = InstrumentationScope("trnrt", version)

    def send(records: Sequence[RequestRecord]) -> bool:
        spans = [
            _readable(span, record.trace, resource, scope)
            for record in records
            if record.trace is not None
            for span in spans_of(record)
        ]
        return exporter.export(spans) is SpanExportResult.SUCCESS

    return TraceExporter(send, exporter.shutdown, endpoint)


def _readable(span: Span, trace: TraceContext, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    def context(span_id: str, is_remote: bool) -> SpanContext:
        state = TraceState.from_header([trace.state]) if trace.state else None
        return SpanContext(int(trace.trace_id, 16), int(span_id, 16), is_remote, _SAMPLED, state)

    return ReadableSpan(
        name=span.name,
        context=context(span.span_id, is_remote=False),
        parent=None if span.parent_id is None else context(span.parent_id, is_remote=span.kind == "server"),
        resource=resource,
        attributes=dict(span.attributes),
        kind=_KINDS[span.kind],
        status=Status(StatusCode.UNSET) if span.failure is None else Status(StatusCode.ERROR, span.failure),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=scope,
    )
