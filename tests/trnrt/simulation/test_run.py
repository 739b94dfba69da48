"""One run in virtual time, with exact instants."""

import pytest
from attrs import evolve

from stages.errors import ConfigError
from stages.settings import PrioritySettings, SchedulerSettings
from tests.trnrt.simulation.models import linear
from trnrt.simulation.device_models import DeviceModel
from trnrt.simulation.generator import generate
from trnrt.simulation.metrics import measure
from trnrt.simulation.run import Answers, Run, simulate
from trnrt.simulation.traces import Conversation, Trace, Turn

SETTINGS = SchedulerSettings(chunked_prefill_size_tokens=64, max_running_requests=4, overlap=True)


def tokens(count: int, salt: int = 0) -> tuple[int, ...]:
    return tuple(100 + salt * 1000 + index for index in range(count))


def trace(*conversations: Conversation) -> Trace:
    return Trace("test", conversations)


def run(one: Trace, model: DeviceModel | None = None, settings: SchedulerSettings = SETTINGS, **more: Answers) -> Run:
    return simulate(one, settings, model or linear(), **more)


def test_the_first_token_comes_after_the_prompts_chunks_and_each_next_one_a_step_later():
    (served,) = run(trace(Conversation("a", 2.0, (Turn(tokens(100), 3),)))).served

    assert served.asked_s == 2.0
    assert served.token_times_s == [3.0, 3.5, 4.0]
    assert served.ended_s == 4.0
    assert served.finish.kind == "length"


def test_the_next_turn_is_asked_after_the_answer_and_its_pause_and_carries_both_prompt_and_answer():
    first, second = run(trace(Conversation("a", 0.0, (Turn(tokens(10), 3), Turn(tokens(5), 2, pause_s=2.25))))).served

    assert first.ended_s == 1.5
    assert second.asked_s == 3.75
    assert second.prompt_tokens == 10 + 3 + 5
    assert second.token_times_s == [4.25, 4.75]


def test_a_client_that_strips_reasoning_sends_the_rest_of_the_answer_only():
    turns = (Turn(tokens(10), 5, reasoning_tokens=3), Turn(tokens(5), 1))

    _, second = run(trace(Conversation("a", 0.0, turns)), answers=Answers(strip_reasoning=True)).served

    assert second.prompt_tokens == 10 + 2 + 5


def test_rows_and_prompt_tokens_cost_what_the_model_says_by_their_bucket():
    model = linear(step_s=0.125, row_s=0.25, prompt_token_s=0.0078125)

    (served,) = run(trace(Conversation("a", 0.0, (Turn(tokens(40), 2),))), model).served

    assert served.token_times_s == [0.125 + 64 * 0.0078125, 0.625 + 0.375]


def test_who_finds_no_place_waits_and_its_time_to_first_token_counts_it():
    one = trace(
        Conversation("a", 0.0, (Turn(tokens(10), 4),)),
        Conversation("b", 0.25, (Turn(tokens(10, salt=1), 1),)),
    )

    seen = run(one, settings=evolve(SETTINGS, max_running_requests=1))

    first, second = seen.served
    assert first.token_times_s[-1] == 2.0
    assert second.token_times_s == [2.5]
    metrics = measure(seen)
    assert (metrics.waiting_max, metrics.running_max) == (1, 1)
    assert metrics.waiting_mean == 1.75 / 2.5
    assert metrics.busy_share == 1.0


def test_a_full_queue_refuses_and_ends_that_conversation():
    settings = evolve(SETTINGS, max_running_requests=1, max_queued_requests=1)
    conversations = [Conversation(str(index), 0.25 * index, (Turn(tokens(10, index), 8),) * 2) for index in range(3)]

    metrics = measure(run(trace(*conversations), settings=settings))

    assert (metrics.requests, metrics.finished, metrics.refused) == (5, 4, 1)


def test_a_prompt_that_never_fits_is_refused():
    seen = run(trace(Conversation("a", 0.0, (Turn(tokens(1000), 2),))), linear(context_length_tokens=512))

    assert seen.served[0].finish.status == 400
    assert measure(seen).ttft_s == (None, None, None)


def test_a_prompt_and_an_answer_beyond_the_context_are_refused_together_as_ingress_does():
    one = trace(Conversation("a", 0.0, (Turn(tokens(500), 12), Turn((), 1))))

    first, second = run(one, linear(context_length_tokens=512)).served

    assert (first.finish.kind, second.finish.status) == ("length", 400)


def test_a_full_queue_counts_tokens_and_makes_room_for_the_better_as_serves_does():
    settings = evolve(SETTINGS, max_running_requests=1, max_queued_tokens=15, priority=PrioritySettings())
    conversations = [
        Conversation("runs", 0.0, (Turn(tokens(10), 8),), 0),
        Conversation("bumped", 0.25, (Turn(tokens(10, 1), 2),), 1),
        Conversation("refused", 0.5, (Turn(tokens(10, 2), 2),), 1),
        Conversation("better", 0.75, (Turn(tokens(10, 3), 2),), 2),
    ]

    ends = {served.name: served.finish.kind for served in run(trace(*conversations), settings=settings).served}

    assert ends == {"runs/0": "length", "bumped/0": "abort", "refused/0": "error", "better/0": "length"}


@pytest.mark.parametrize("slow", [{"step_s": 1e9}, {}])
def test_a_trace_that_takes_for_ever_is_an_error_that_names_the_flags(slow: dict[str, float]):
    starts_s = (0.0,) if slow else (0.0, 1e12)
    one = trace(*(Conversation(str(at_s), at_s, (Turn(tokens(10), 2),)) for at_s in starts_s))

    with pytest.raises(ConfigError, match="--trace, --device-model"):
        run(one, linear(**slow))


def test_the_same_arguments_give_the_same_run_and_every_request_ends_once():
    one = generate("agent", 40, seed=3)
    model = linear(memory_bytes=400_000, step_s=0.01, chunk_tokens=512)
    settings = evolve(SETTINGS, chunked_prefill_size_tokens=512)

    first, second = (run(one, model, settings) for _ in range(2))

    assert measure(first) == measure(second)
    assert [one.token_times_s for one in first.served] == [one.token_times_s for one in second.served]
    assert first.moments == second.moments
    assert len({served.name for served in first.served}) == len(first.served) == 40
    assert all(served.finish.kind == "length" for served in first.served)
    assert first.moments[-1].running == first.moments[-1].waiting == 0


def test_answers_do_not_depend_on_the_setting():
    one = generate("chat", 20, seed=1)

    prompts = [
        {served.name: served.prompt_tokens for served in run(one, settings=evolve(SETTINGS, overlap=overlap)).served}
        for overlap in (True, False)
    ]

    assert prompts[0] == prompts[1]
