import pytest

from trnrt.simulation.generator import LONGEST_MEDIANS, SHAPES, generate
from trnrt.simulation.traces import USER

KINDS = sorted(SHAPES)


@pytest.mark.parametrize("kind", KINDS)
def test_the_trace_has_as_many_requests_as_asked_for(kind: str):
    for num_requests in (1, 7, 100):
        assert generate(kind, num_requests, seed=0).num_requests == num_requests


@pytest.mark.parametrize("kind", KINDS)
def test_more_requests_leave_the_first_conversations_as_they_were(kind: str):
    few, many = (generate(kind, num_requests, seed=4).conversations for num_requests in (30, 60))

    for short, long in zip(few, many, strict=False):
        assert short.start_s == long.start_s
        for one, other in zip(short.turns, long.turns, strict=False):
            assert (one.fresh, one.output_tokens, one.pause_s) == (other.fresh, other.output_tokens, other.pause_s)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_other_tokens(kind: str):
    first, second = (generate(kind, 5, seed).conversations[0].turns[0].fresh for seed in (0, 1))

    assert first != second


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_start_in_order_and_lengths_stay_within_bounds(kind: str):
    trace, shape = generate(kind, 200, seed=2), SHAPES[kind]

    starts = [one.start_s for one in trace.conversations]
    assert starts == sorted(starts)
    for turn in (turn for one in trace.conversations for turn in one.turns):
        assert 1 <= turn.output_tokens <= LONGEST_MEDIANS * shape.output_tokens
        assert 0 <= turn.reasoning_tokens < turn.output_tokens
        assert turn.pause_s >= 0


def test_agents_share_long_system_prompts_and_nothing_after_them():
    shape = SHAPES["agent"]
    prompts = [one.turns[0].fresh for one in generate("agent", 300, seed=0).conversations]

    assert len(prompts) > 2 * shape.num_prefixes
    prefixes = {prompt[: shape.prefix_tokens] for prompt in prompts}
    assert len(prefixes) == shape.num_prefixes
    assert all(prompt[shape.prefix_tokens] == USER for prompt in prompts)
    assert len({prompt[: shape.prefix_tokens + 3] for prompt in prompts}) == len(prompts)


def test_a_burst_comes_at_one_instant_with_one_prefix():
    conversations, shape = generate("burst", 130, seed=0).conversations, SHAPES["burst"]

    assert [one.start_s for one in conversations] == [0.0] * 64 + [30.0] * 64 + [60.0] * 2
    assert len({one.turns[0].fresh[: shape.prefix_tokens] for one in conversations}) == 1
    assert all(len(one.turns) == 1 for one in conversations)


def test_a_denser_trace_starts_sooner_and_pauses_as_long():
    trace = generate("chat", 20, seed=0)
    denser = trace.denser(2.0)

    assert [one.start_s for one in denser.conversations] == [one.start_s / 2 for one in trace.conversations]
    assert [one.turns for one in denser.conversations] == [one.turns for one in trace.conversations]
