"""W3C's headers in and out: whose trace it is, whether it is recorded, and what makes no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.calls import CallContext, current_call, working_for
from stages.trace_context import MAX_STATE_CHARACTERS, TraceContext, is_in_share, trace_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"


def test_a_call_joins_its_callers_trace_with_a_span_of_its_own():
    trace = trace_of([GIVEN], ["a=1"], 0.0)
    assert trace is not None
    assert (trace.trace_id, trace.parent_id, trace.is_sampled, trace.state) == (TRACE, SPAN, True, "a=1")
    assert trace.span_id != SPAN
    assert trace.headers() == {"traceparent": f"00-{TRACE}-{trace.span_id}-01", "tracestate": "a=1"}


def test_a_trace_its_caller_does_not_record_passes_through_as_it_came():
    trace = trace_of([f"00-{TRACE}-{SPAN}-00"], [], 1.0)
    assert trace == TraceContext(TRACE, SPAN, is_sampled=False)
    assert trace is not None
    assert trace.headers() == {"traceparent": f"00-{TRACE}-{SPAN}-00"}


@pytest.mark.parametrize("flags", ["00", "01"])
def test_without_tracing_a_trace_passes_through_and_none_begins(flags):
    trace = trace_of([f"00-{TRACE}-{SPAN}-{flags}"], ["a=1", "b=2"], None)
    assert trace is not None
    assert trace.headers() == {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": "a=1,b=2"}
    assert trace_of([], ["a=1"], None) is None


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [GIVEN, GIVEN],
        [""],
        [f"00-{TRACE}-{SPAN}"],
        [f"00-{TRACE}-{SPAN}-01-more"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE.upper()}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-01\n"[:-1] + "\x00"],
    ],
)
def test_headers_that_make_no_sense_begin_a_trace_of_our_own(wrong):
    trace = trace_of(wrong, ["a=1"], 1.0)
    assert trace is not None
    assert (trace.parent_id, trace.is_sampled, trace.state) == (None, True, "")
    assert trace.trace_id != TRACE
    assert trace_of(wrong, [], None) is None


def test_a_later_version_is_read_as_far_as_it_is_known():
    trace = trace_of([f"cc-{TRACE}-{SPAN}-09-what-comes-later"], [], 0.0)
    assert trace is not None
    assert (trace.parent_id, trace.is_sampled) == (SPAN, True)
    assert trace.traceparent.startswith("00-")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["a=1 , b=2", "", "c@d=3"], "a=1,b=2,c@d=3"),
        (["a=1\r\nx: y"], ""),
        (["A=1"], ""),
        (["a"], ""),
        (["a=" + "x" * MAX_STATE_CHARACTERS], ""),
    ],
)
def test_a_tracestate_is_passed_on_whole_or_not_at_all(given, kept):
    trace = trace_of([GIVEN], given, None)
    assert trace is not None
    assert trace.state == kept


@given(st.integers(0, 2**128 - 1))
def test_all_servers_with_a_share_record_the_same_traces_and_more_of_them_with_a_larger_one(number):
    trace_id = f"{number:032x}"
    assert not is_in_share(trace_id, 0.0)
    assert is_in_share(trace_id, 1.0)
    assert is_in_share(trace_id, 0.25) <= is_in_share(trace_id, 0.5)


def test_a_share_is_about_that_share():
    began = [trace_of([], [], 0.25) for _ in range(2000)]
    assert 350 < sum(trace.is_sampled for trace in began if trace is not None) < 650


def test_the_call_a_task_works_for_is_known_within_its_block_alone():
    call = CallContext("a")
    with working_for(call):
        assert current_call() is call
    assert current_call() is None
