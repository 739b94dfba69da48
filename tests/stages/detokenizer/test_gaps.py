"""Gaps between tokens: one entry a token, counted by when the last one was, at no object a token."""

from types import SimpleNamespace
from typing import Any

from stages.detokenizer.gaps import Gaps
from stages.messages import TokenGaps
from stages.trail import Trail


def choice(last_token_s: float | None = None, trail: Trail | None = None) -> Any:
    return SimpleNamespace(last_token_s=last_token_s, trail=trail)


def told(now_s: float, *rows: tuple[Any, int]) -> TokenGaps | None:
    gaps = Gaps(now_s)
    for one, num_tokens in rows:
        gaps.took(one, num_tokens)
    return gaps.told()


def test_rows_that_had_their_last_token_together_are_one_entry() -> None:
    rows = [(choice(1.0), 1) for _ in range(5)] + [(choice(0.5), 1), (choice(0.5), 1)]
    assert told(2.0, *rows) == TokenGaps(7, ((1.0, 5), (1.5, 2)))
    assert all(one.last_token_s == 2.0 for one, _ in rows)


def test_a_first_token_has_no_gap_and_counts() -> None:
    trail = Trail()
    assert told(2.0, (choice(trail=trail), 1)) == TokenGaps(1, ())
    assert (trail.first_token_s, trail.last_token_s, trail.completion_tokens) == (2.0, 2.0, 1)


def test_several_tokens_of_a_step_share_the_time_since_the_last() -> None:
    assert told(2.0, (choice(1.0), 4)) == TokenGaps(4, ((0.25, 4),))
    assert told(2.0, (choice(), 4)) == TokenGaps(4, ((0.0, 3),))


def test_a_start_and_an_end_without_a_token_are_nothing() -> None:
    one = choice(1.0, Trail())
    assert told(2.0, (one, 0)) is None
    assert (one.last_token_s, one.trail.last_token_s) == (1.0, None)


def test_the_first_token_of_a_call_is_that_of_its_first_choice() -> None:
    trail = Trail()
    told(2.0, (choice(trail=trail), 1))
    told(3.0, (choice(trail=trail), 1))
    assert (trail.first_token_s, trail.last_token_s, trail.completion_tokens) == (2.0, 3.0, 2)
