"""A call's time falls into its stages, without a gap, from its arrival to its end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stages.intervals import intervals
from tests.records import NOWHERE, record_of


def took(**fields) -> dict[str, float]:
    return {interval.stage: interval.took_s for interval in intervals(record_of(**fields))}


def test_each_stage_has_its_time():
    assert took() == {"ingress": 1, "prompt": 2, "queue": 4, "prefill": 8, "decode": 16, "deliver": 0.5}


def test_a_constraint_has_its_own():
    times = took(is_constrained=True, prompt_ready_s=102.0)
    assert (times["prompt"], times["grammar"], times["queue"]) == (1, 1, 4)
    assert list(times)[:4] == ["ingress", "prompt", "grammar", "queue"]


def test_an_engine_behind_this_server_is_one_stage_to_the_first_token():
    times = took(admitted_s=None)
    assert (times["engine"], "queue" in times, "prefill" in times) == (12, False, False)


def test_a_call_that_an_engine_behind_this_server_refused_ended_there():
    nothing = {"admitted_s": None, "first_token_s": None, "last_token_s": None}
    times = took(**nothing, ended_s=110.0, outcome="refused", status=503, cause="engine_refused")
    assert times == {"ingress": 1, "prompt": 2, "engine": 7}


def test_a_call_that_was_refused_at_once_was_in_ingress_alone():
    assert took(**NOWHERE, ended_s=100.25, outcome="refused", status=400) == {"ingress": 0.25}


def test_a_call_that_gave_up_waiting_ended_in_the_queue():
    times = took(admitted_s=None, first_token_s=None, last_token_s=None, ended_s=110.0, outcome="refused", status=503)
    assert times == {"ingress": 1, "prompt": 2, "queue": 7}


def test_an_answer_that_was_cut_short_ended_while_decoding():
    for outcome in ("disconnected", "abort", "error"):
        assert took(outcome=outcome)["decode"] == 16.5


def test_a_prompt_that_is_scored_and_not_answered_ends_with_its_prefill():
    assert list(took(first_token_s=None, last_token_s=None)) == ["ingress", "prompt", "queue", "prefill"]


instants = st.one_of(st.none(), st.floats(90.0, 140.0))


@given(
    st.fixed_dictionaries(dict.fromkeys(NOWHERE, instants)),
    st.sampled_from(["stop", "error", "refused", "disconnected"]),
    st.booleans(),
)
def test_stages_follow_each_other_from_arrival_to_end_whatever_is_known(marks, outcome, is_constrained):
    record = record_of(**marks, outcome=outcome, is_constrained=is_constrained)
    found = intervals(record)
    assert found[0].start_s == record.arrived_s
    assert found[-1].end_s == record.ended_s
    assert all(one.end_s == two.start_s for one, two in pairwise(found))
    assert all(interval.took_s >= 0 for interval in found)
    assert len({interval.stage for interval in found}) == len(found)
