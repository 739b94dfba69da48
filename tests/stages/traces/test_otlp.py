"""What a collector reads: real protobuf over real HTTP."""

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from stages.traces.otlp import open_exporter
from tests.collector import attributes_of, collecting
from tests.records import ARRIVED_UNIX_S, TRACE, record_of


def test_a_collector_reads_the_spans_of_a_call_as_they_were():
    with collecting() as collector:
        exporter = open_exporter(f"{collector.url}/v1/traces", {"service.name": "trnrt", "service.version": "9"}, "9")
        exporter.start()
        exporter.offer(record_of(status=503, outcome="refused", cause="queue_full"))
        exporter.close()
        assert (exporter.num_sent, exporter.num_lost) == (1, 0)
    assert collector.heads == [("/v1/traces", "application/x-protobuf")]
    assert collector.names == ["chat m", "ingress", "prompt", "queue", "prefill", "decode", "deliver"]
    span, process = collector.spans[0]
    assert (process["service.name"], process["service.version"]) == ("trnrt", "9")
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == (
        TRACE.trace_id, TRACE.span_id, TRACE.parent_id,
    )  # fmt: skip
    assert span.kind == span.SPAN_KIND_SERVER
    assert span.start_time_unix_nano == int(ARRIVED_UNIX_S) * 10**9
    assert (span.status.code, span.status.message) == (span.status.STATUS_CODE_ERROR, "queue_full")
    attributes = attributes_of(span)
    assert attributes["gen_ai.usage.input_tokens"] == 50
    assert attributes["gen_ai.request.stream"] is True
    assert attributes["http.response.header.x-request-id"] == ["r-1"]
    stage = collector.named("queue")
    assert (stage.parent_span_id, stage.trace_id) == (span.span_id, span.trace_id)
    assert stage.end_time_unix_nano - stage.start_time_unix_nano == 4 * 10**9


def test_a_collector_that_refuses_costs_the_spans_and_nothing_else():
    with collecting() as collector:
        collector.status = 400
        exporter = open_exporter(f"{collector.url}/v1/traces", {}, "9")
        exporter.start()
        exporter.offer(record_of())
        exporter.close(within_s=10)
    assert (exporter.num_sent, exporter.num_lost) == (0, 1)
