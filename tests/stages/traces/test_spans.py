"""What the spans of a call say, by the names OpenTelemetry has for it."""

import pytest

from stages.traces.spans import spans_of
from tests.records import ARRIVED_UNIX_S, NOWHERE, TRACE, record_of


def test_a_call_is_a_span_in_its_callers_trace_and_its_stages_are_spans_under_it_end_to_end():
    whole, *parts = spans_of(record_of())
    assert (whole.name, whole.kind) == ("chat m", "server")
    assert (whole.span_id, whole.parent_id) == (TRACE.span_id, TRACE.parent_id)
    assert (whole.start_ns, whole.end_ns) == (int(ARRIVED_UNIX_S) * 10**9, int(ARRIVED_UNIX_S) * 10**9 + 31_500_000_000)
    assert [part.name for part in parts] == ["ingress", "prompt", "queue", "prefill", "decode", "deliver"]
    assert all((part.parent_id, part.kind) == (whole.span_id, "internal") for part in parts)
    assert [(part.end_ns - part.start_ns) / 1e9 for part in parts] == [1, 2, 4, 8, 16, 0.5]
    assert [parts[0].start_ns, *(part.end_ns for part in parts)] == [
        whole.start_ns, *(part.start_ns for part in parts[1:]), whole.end_ns,
    ]  # fmt: skip
    assert len({span.span_id for span in (whole, *parts)}) == 7


def test_counts_have_the_names_of_generative_ai():
    whole, *parts = spans_of(record_of())
    assert whole.attributes == {
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": ("r-1",),
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "trnrt",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 15.0,
        "gen_ai.usage.input_tokens": 50,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "trnrt.request_id": "r-1",
        "trnrt.dialect": "openai_chat",
        "trnrt.outcome": "stop",
        "trnrt.cached_host_tokens": 10,
        "trnrt.retractions": 1,
    }
    assert {part.name: part.attributes for part in parts if part.attributes} == {
        "prompt": {"gen_ai.usage.input_tokens": 50},
        "prefill": {"trnrt.computed_tokens": 20},
        "decode": {"gen_ai.usage.output_tokens": 7},
    }


def test_names_that_openTelemetry_has_are_spelled_as_it_spells_them():
    pytest.importorskip("opentelemetry.semconv")
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv.attributes import error_attributes, http_attributes

    modules = (gen_ai_attributes, http_attributes, error_attributes)
    known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    known.add("http.response.header.x-request-id")  # of a template
    spans = spans_of(record_of(outcome="error", status=500, cause="engine_failed"))
    names = {name for span in spans for name in span.attributes if not name.startswith("trnrt.")}
    assert names <= known


@pytest.mark.parametrize(
    ("outcome", "status", "cause", "failure"),
    [
        ("stop", 200, None, None),
        ("refused", 400, "invalid", None),
        ("refused", 503, "queue_full", "queue_full"),
        ("error", 200, "engine_failed", "engine_failed"),
        ("disconnected", None, None, None),
        ("abort", 200, "aborted", None),
    ],
)
def test_a_span_has_failed_where_the_server_has(outcome, status, cause, failure):
    whole = spans_of(record_of(outcome=outcome, status=status, cause=cause))[0]
    assert whole.failure == failure
    assert whole.attributes.get("error.type") == cause
    assert whole.attributes.get("http.response.status_code") == status
    assert ("gen_ai.response.finish_reasons" in whole.attributes) == (outcome == "stop")


def test_a_call_that_was_refused_at_once_has_its_one_stage():
    whole, *parts = spans_of(record_of(**NOWHERE, outcome="refused", status=400, ended_s=100.5))
    assert [part.name for part in parts] == ["ingress"]
    assert "gen_ai.response.time_to_first_chunk" not in whole.attributes


def test_what_an_engine_behind_this_server_did_is_a_call_of_ours():
    spans = {span.name: span.kind for span in spans_of(record_of(admitted_s=None))}
    assert spans["engine"] == "client"


def test_a_route_that_is_no_chat_completes_text():
    assert spans_of(record_of(dialect="sglang_generate"))[0].name == "text_completion m"
