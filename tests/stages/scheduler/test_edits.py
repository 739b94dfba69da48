"""What a step is given for rows that are masked, penalised, biased or scored, and what that costs the others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.step import StepInput
from stages.messages import Penalties, Submit
from stages.scheduler.adjusting import Adjusting, adjusting_of
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.bench import Bench
from tests.sim.fake_grammar import allowed_after, rules
from tests.sim.history_device import HistoryDevice, answer_of, scores_of, wanted_of
from tests.sim.simkit import capacity, submit

PROMPT = (5, 6, 7, 5, 8)
PENALTIES = Penalties(frequency=0.5, presence=0.25, repetition=1.25)


def bench(**changes: object) -> Bench:
    values: dict[str, object] = {"chunked_prefill_size_tokens": 16, "max_running_requests": 4, **changes}
    return Bench(SchedulerSettings(**values), HistoryDevice(capacity(num_slots=20)))  # type: ignore[arg-type]


def decodes(steps: list[StepInput]) -> list[StepInput]:
    return [step for step in steps if step.key.family == "decode"]


# --- masks ----------------------------------------------------------------------------------------------------------


def test_a_row_without_rules_may_say_anything_beside_one_that_is_masked():
    guided, plain = submit("a", PROMPT, rules=rules(1)), submit("b", (9, 9, 9))
    run = bench()
    steps = run.run(guided, plain)
    assert [step.key.edits for step in steps] == ["masked"] * 4
    for number, step in enumerate(steps):
        assert step.edits is not None
        assert step.edits.adjust is None
        assert step.edits.allowed is not None
        np.testing.assert_array_equal(step.edits.allowed[0], allowed_after(guided, run.answers["a"][:number]))
        assert (step.edits.allowed[1:] == -1).all()
    assert run.answers["b"] == answer_of(plain, 4, 997)


def test_only_the_chunk_that_samples_is_masked_and_only_while_it_must():
    steps = bench().run(submit("a", tuple(range(40)), max_new_tokens=9, rules=rules(1, num_free=3)))
    assert [step.key.edits for step in steps] == [""] * 5 + ["masked"] * 5 + [""]


def test_a_choice_that_wants_no_token_is_not_guided():
    run = bench()
    (step,) = run.run(submit("a", PROMPT, max_new_tokens=0, rules=rules(1), prompt_logprobs_from=0))
    assert (step.key.edits, step.key.is_scored, run.guides.num_asked["a"]) == ("", True, 0)


def test_an_answer_that_is_complete_leaves_its_state_for_the_next_turn():
    run = bench(cache=CacheSettings(max_snapshots=8))
    order = submit("a", tuple(range(20)), max_new_tokens=30, rules=rules(1, completes_after=13))
    run.run(order)
    assert (run.ends["a"].kind, len(run.answers["a"])) == ("stop", 13)
    run.run(submit("b", order.prompt_ids + run.answers["a"] + (7, 7, 7)))
    # All of the answer but its last token was read; a state is kept at a multiple of four.
    assert run.usages["b"].cached_tokens == 32


# --- penalties and biases -------------------------------------------------------------------------------------------


def test_an_adjust_has_the_smallest_size_that_holds_the_row_with_the_most_tokens():
    few = submit("a", PROMPT, penalties=PENALTIES, max_new_tokens=12)
    many = submit("b", tuple(range(40)), penalties=PENALTIES)
    assert {step.key.adjust_tokens for step in bench().run(few)} == {4, 32}
    assert {step.key.adjust_tokens for step in bench().run(many)} == {0, 997}
    steps = [step.key for step in bench().run(few, many)]
    assert {key.adjust_tokens for key in steps if key.family == "decode" and key.batch == 2} == {997}


def test_a_row_without_penalties_stands_beside_one_with_them_as_if_nothing_were_asked():
    steps = decodes(bench().run(submit("a", PROMPT, penalties=PENALTIES), submit("b", PROMPT)))
    for step in steps:
        assert step.edits is not None
        adjust = step.edits.adjust
        assert adjust is not None
        assert (adjust.token_ids[1] == 997).all()
        assert not any(column[1].any() for column in (adjust.counts, adjust.seen, adjust.bias))
        assert (adjust.repetition[1], adjust.frequency[1], adjust.presence[1]) == (1, 0, 0)
        assert (adjust.repetition[0], adjust.frequency[0], adjust.presence[0]) == (1.25, 0.5, 0.25)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_bias_alone_is_planned_ahead_and_penalties_are_not(overlap: bool):
    for asks, is_ahead in ({"logit_bias": ((3, 1.0),)}, overlap), ({"penalties": PENALTIES}, False):
        run = bench(overlap=overlap)
        run.send(submit("a", PROMPT, max_new_tokens=6, **asks))  # type: ignore[arg-type]
        run.step()
        assert run.plan()
        assert run.plan() == is_ahead
        list(run.steps())
        assert len(run.answers["a"]) == 6


tokens = st.integers(0, 30)


@given(
    st.lists(tokens, min_size=1, max_size=120).map(tuple),
    st.lists(tokens, max_size=200),
    st.sampled_from([Penalties(), Penalties(frequency=0.5), Penalties(repetition=1.5), PENALTIES]),
    st.dictionaries(st.integers(0, 300), st.floats(-9, 9, width=32), max_size=90),
)
def test_what_is_counted_is_what_came(
    prompt: tuple[int, ...], generated: list[int], penalties: Penalties, bias: dict[int, float]
):
    adjusting = adjusting_of(submit("a", prompt, penalties=penalties, logit_bias=tuple(bias.items())))
    if adjusting is None:
        assert penalties == Penalties()
        assert not bias
        return
    if adjusting.counts_tokens:
        for token_id in generated:
            adjusting.add(token_id)
    places = dict(zip(adjusting.token_ids[: adjusting.size].tolist(), range(adjusting.size), strict=True))
    assert len(places) == adjusting.size
    came = generated if penalties != Penalties() else []
    seen = {*came, *(prompt if penalties.repetition != 1 else ())}
    assert places.keys() == seen | bias.keys()
    for token_id, place in places.items():
        assert adjusting.counts[place] == came.count(token_id)
        assert adjusting.seen[place] == (token_id in seen)
        assert adjusting.bias[place] == bias.get(token_id, 0.0)


@pytest.mark.parametrize("bias", [1e308, -1e308, 3.5e38])
def test_no_bias_is_infinite_however_large_it_was_asked_for(bias: float):
    adjusting = adjusting_of(submit("a", PROMPT, logit_bias=((3, bias), (3, bias))))
    assert adjusting is not None
    assert adjusting.bias[0] == np.float32(1e30 if bias > 0 else -1e30)


def test_logits_are_never_divided_by_a_penalty_that_rounds_to_zero():
    steps = bench().run(submit("a", PROMPT, penalties=Penalties(repetition=1e-300)))
    adjusts = [step.edits.adjust for step in steps if step.edits is not None and step.edits.adjust is not None]
    assert adjusts
    assert all((adjust.repetition > 1e-7).all() for adjust in adjusts)


def test_a_bias_named_twice_is_added_up():
    adjusting = adjusting_of(submit("a", PROMPT, logit_bias=((3, 1.0), (3, 0.5))))
    assert adjusting is not None
    assert (adjusting.size, adjusting.bias[0]) == (1, 1.5)


def test_a_token_costs_the_same_however_long_the_prompt_is(monkeypatch: pytest.MonkeyPatch):
    reads: list[int] = []
    read = Adjusting.read

    def counting(self: Adjusting, prompt_ids: tuple[int, ...]) -> None:
        reads.append(len(prompt_ids))
        read(self, prompt_ids)

    monkeypatch.setattr(Adjusting, "read", counting)
    small = Bench(SchedulerSettings(schedule_conservativeness=0.0), HistoryDevice(capacity(num_pages=12)))
    orders = [submit(f"r{index}", (index,) * 20, max_new_tokens=30, penalties=PENALTIES) for index in range(3)]
    small.run(*orders)
    assert sum(usage.num_retractions for usage in small.usages.values()) > 0
    assert reads == [20, 20, 20]
    assert [small.answers[order.key.request_id] for order in orders] == [answer_of(order, 30, 997) for order in orders]


# --- scores and wanted ids ------------------------------------------------------------------------------------------


def scored(name: str = "a", length: int = 40, first: int = 0, **changes: object) -> Submit:
    values: dict[str, object] = {"num_top_logprobs": 2, "prompt_logprobs_from": first, **changes}
    return submit(name, tuple(range(length)), **values)  # type: ignore[arg-type]


def assert_scored(run: Bench, order: Submit) -> None:
    found = run.prompts[order.key.request_id]
    expected = scores_of(order, 997, run.device.capacity.max_top_logprobs)
    for name in ("logprobs", "top_ids", "top_logprobs", "wanted"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert (found.logprobs.dtype, found.top_ids.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("first", [0, 1, 15, 16, 17, 38, 39, 40])
@pytest.mark.parametrize("max_new_tokens", [0, 1, 3])
def test_every_token_after_the_first_wanted_one_is_scored_once(first: int, max_new_tokens: int):
    run = bench()
    order = scored(first=first, max_new_tokens=max_new_tokens, logprob_token_ids=(1, 2, 3))
    steps = run.run(order)
    assert_scored(run, order)
    targets = [target for step in steps if step.scoring is not None for target in step.scoring.targets[0].tolist()]
    assert [target for target in targets if target >= 0] == list(range(first + 1, 40))
    assert run.answers["a"] == answer_of(order, max_new_tokens, 997)
    assert run.ends["a"].kind == "length"


def test_a_step_is_scored_only_where_a_row_of_it_is():
    keys = [step.key for step in bench().run(scored(first=20, max_new_tokens=2))]
    assert [key.is_scored for key in keys] == [False, True, True, False]


def test_a_scored_prompt_and_one_that_is_not_share_a_step():
    run = bench()
    order = scored("a", 12)
    steps = run.run(order, submit("b", (9,) * 12))
    assert (steps[0].num_valid > 0).sum() == 2
    assert steps[0].scoring is not None
    assert (steps[0].scoring.targets[1] == -1).all()
    assert_scored(run, order)
    assert "b" not in run.prompts


def test_what_is_scored_is_not_taken_from_the_cache_and_what_comes_before_it_is():
    run = bench(cache=CacheSettings(max_snapshots=8, stride_tokens=8))
    run.run(scored("a", 40, 39))
    for name, first, most in (("b", 39, 39), ("c", 20, 20), ("d", 3, 3), ("e", 0, 0)):
        order = scored(name, 40, first)
        run.run(order)
        assert_scored(run, order)
        assert most - 8 < run.usages[name].cached_tokens <= most


def test_a_scored_prompt_does_not_wait_for_another_that_computes_what_it_may_not_use():
    run = bench(cache=CacheSettings(max_snapshots=8, stride_tokens=8), max_prefill_rows=4)
    run.send(submit("a", tuple(range(60))))
    run.step()
    # It would follow the first one's prompt, were it not to be scored.
    order = scored("b", 60)
    run.send(order)
    given = run.step()
    assert given is not None
    assert (given.num_valid > 0).sum() == 2
    list(run.steps())
    assert_scored(run, order)


def test_a_prompt_that_is_scored_from_far_on_waits_for_another_that_computes_what_it_may_use():
    run = bench(cache=CacheSettings(max_snapshots=8, stride_tokens=8), max_prefill_rows=4)
    run.send(submit("a", tuple(range(60))))
    run.step()
    order = scored("b", 60, 50)
    run.send(order)
    list(run.steps())
    assert_scored(run, order)
    assert run.usages["b"].cached_tokens >= 40


def test_a_prompt_retracted_while_it_is_scored_is_scored_on_from_where_it_was():
    run = bench(cache=CacheSettings(max_snapshots=8, stride_tokens=8), max_prefill_rows=1)
    order = scored("a", 60)
    run.send(order)
    run.step()
    run.step()
    (choice,) = run.core.roster.every()
    run.core.roster.retract(choice)
    steps = list(run.steps())
    assert_scored(run, order)
    targets = [target for step in steps if step.scoring is not None for target in step.scoring.targets[0].tolist()]
    assert [target for target in targets if target >= 0] == list(range(33, 60))


def test_a_prompt_that_wants_no_token_and_no_scores_ends_without_a_step():
    run = bench()
    assert run.run(submit("a", PROMPT, max_new_tokens=0)) == []
    run.hear()
    assert run.ends["a"].kind == "length"


def test_a_prompt_alone_is_scored_without_a_token():
    run = bench()
    order = scored("a", 40, max_new_tokens=0)
    run.run(order)
    assert_scored(run, order)
    assert (run.answers["a"], run.usages["a"].completion_tokens) == ((), 0)
    assert run.core.is_idle


@pytest.mark.parametrize("overlap", [False, True])
def test_ids_that_are_named_have_their_logprobs_with_each_token(overlap: bool):
    orders = [
        submit("a", PROMPT, logprob_token_ids=(1, 2, 3)),
        submit("b", PROMPT),
        submit("c", PROMPT[:3], logprob_token_ids=(4,)),
    ]
    run = bench(overlap=overlap)
    steps = run.run(*orders)
    for step in steps:
        assert step.wanted_ids is not None
    for order in orders:
        assert run.wanted[order.key.request_id] == wanted_of(order, answer_of(order, 4, 997))
    assert all(step.wanted_ids is None for step in run.run(submit("d", PROMPT)))
