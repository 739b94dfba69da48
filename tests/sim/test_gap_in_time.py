"""How long a stream is silent while a prompt of a hundred chunks is computed beside it."""

from collections import Counter

import pytest
import trio

from graphs.step import StepInput
from tests.sim.history_device import HistoryDevice
from tests.sim.scenes import DECODE_S, play, settings, words
from tests.sim.simkit import Heard, capacity, submit

TOKEN_S = 0.03125


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def by_tokens_s(step: StepInput) -> float:
    return DECODE_S if step.key.family == "decode" else TOKEN_S * step.key.batch * step.key.tokens


def beside_long_prompts(overlap: bool, max_token_gap_s: float | None, num_long: int = 1) -> dict[str, Heard]:
    """Play a stream of 600 tokens, and prompts of 1,600 that come after its first five."""
    device = HistoryDevice(
        capacity(num_pages=1100, max_row_pages=512, num_slots=9), by_tokens_s, clock=trio.current_time
    )
    events = [
        (0.0, submit("stream", words(4, 1), max_new_tokens=600)),
        *((1.05, submit(f"long{index}", words(1600, 2 + index), max_new_tokens=2)) for index in range(num_long)),
    ]
    wanted = settings(cache=None, overlap=overlap, max_token_gap_s=max_token_gap_s)
    return play(wanted, device, events)


# The gap is a decode step and a prefill step of 16, 8 or 4 tokens: half, a quarter or an eighth of a second.
@pytest.mark.parametrize(
    ("max_token_gap_s", "gap_s", "num_chunks", "first_s"),
    [(None, 0.625, 100, 63.5), (0.625, 0.625, 100, 63.5), (0.5, 0.375, 200, 76.0), (0.25, 0.25, 400, 101.0)],
)
def test_a_stream_is_never_silent_for_longer_than_wanted_and_the_prompt_takes_as_many_steps_more(
    max_token_gap_s: float | None, gap_s: float, num_chunks: int, first_s: float, overlap: bool
):
    heard = beside_long_prompts(overlap, max_token_gap_s)
    assert Counter(heard["stream"].gaps_s) == {DECODE_S: 599 - num_chunks, gap_s: num_chunks}
    # The decode step that was planned ahead goes first.
    assert heard["long0"].times_s[0] == first_s + (DECODE_S if overlap else 0.0)


def test_where_even_the_smallest_step_is_too_long_it_runs_all_the_same(overlap: bool):
    heard = beside_long_prompts(overlap, 0.01)
    assert max(heard["stream"].gaps_s) == 0.25
    assert heard["long0"].ended.finish.kind == "length"


def test_several_long_prompts_share_no_step_that_would_be_too_long(overlap: bool):
    heard = beside_long_prompts(overlap, 0.5, num_long=3)
    assert max(heard["stream"].gaps_s) == 0.375
    unbounded = beside_long_prompts(overlap, None, num_long=3)
    # Three rows of 16 are computed as four.
    assert max(unbounded["stream"].gaps_s) == 2.125
    assert all(one.ended.finish.kind == "length" for one in heard.values())


def test_prompts_alone_are_computed_in_whole_chunks_whatever_gap_is_wanted(overlap: bool):
    device = HistoryDevice(capacity(num_slots=9), by_tokens_s, clock=trio.current_time)
    wanted = settings(cache=None, overlap=overlap, max_token_gap_s=0.01)
    heard = play(wanted, device, [(0.0, submit("alone", words(64, 1), max_new_tokens=2))])
    assert heard["alone"].times_s[0] == 64 * TOKEN_S
