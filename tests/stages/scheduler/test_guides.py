"""Questions and answers about masks, by hand: one at a time, each for the tokens it was asked with."""

import numpy as np
import pytest

from graphs.step import Words
from stages.messages import FillMasks, Mask, Submit
from stages.scheduler.choice import Choice
from stages.scheduler.guides import ENOUGH_FREE_TOKENS, Guides
from stages.scheduler.lifecycle import Signal
from stages.scheduler.progress import Progress
from tests.sim.fake_grammar import rules
from tests.sim.simkit import submit

PATIENCE_S = 0.5
WORDS: Words = np.full(32, 5, np.int32)


@pytest.fixture
def guides() -> Guides:
    return Guides(Progress(4), PATIENCE_S)


def running(guides: Guides, order: Submit | None = None, slot: int = 1) -> Choice:
    """Return a choice that has a slot and decodes."""
    choice = Choice(order or submit("a", (1, 2, 3), rules=rules(), max_new_tokens=99), 0)
    choice.on(Signal.ADMIT)
    choice.slot, choice.progress = slot, guides.progress
    guides.progress.num_tokens[slot] = choice.num_tokens
    guides.begin(choice)
    return choice


def say(guides: Guides, choice: Choice, *token_ids: int) -> None:
    for token_id in token_ids:
        choice.generated.append(token_id)
        guides.progress.num_tokens[choice.slot] += 1
        guides.sampled(choice)


def asked(guides: Guides, now_s: float = 0.0) -> list[tuple[int, ...]]:
    questions = guides.take(now_s)
    return [token_ids for _, token_ids in questions.rows] if isinstance(questions, FillMasks) else []


def held(guides: Guides, choice: Choice) -> bool:
    return bool(guides.progress.held(np.array([choice.slot]))[0])


def test_a_choice_asks_before_its_first_token_and_is_held_until_the_answer(guides: Guides):
    choice = running(guides)
    assert held(guides, choice)
    assert asked(guides) == [()]
    assert asked(guides) == []
    guides.filled(choice, Mask(choice.submit, WORDS))
    assert not held(guides, choice)
    assert choice.guide is not None
    assert (choice.guide.mask_for, choice.guide.allowed is WORDS) == (3, True)
    assert asked(guides) == []


def test_a_mask_serves_one_token_and_the_next_is_asked_with_it(guides: Guides):
    choice = running(guides)
    asked(guides)
    guides.filled(choice, Mask(choice.submit, WORDS))
    say(guides, choice, 7)
    assert held(guides, choice)
    assert asked(guides) == [(7,)]


def test_tokens_that_come_while_an_answer_is_on_its_way_go_with_the_next_question(guides: Guides):
    choice = running(guides)
    asked(guides)
    guides.filled(choice, Mask(choice.submit, None, num_free=3))
    say(guides, choice, 7)
    assert asked(guides) == [(7,)]
    say(guides, choice, 8, 9)
    assert asked(guides) == []
    # What comes is for the token after 7 and of no use any more; the promise before it still counts.
    guides.filled(choice, Mask(choice.submit, WORDS))
    assert held(guides, choice)
    assert asked(guides) == [(8, 9)]
    guides.filled(choice, Mask(choice.submit, WORDS))
    assert not held(guides, choice)


def test_anything_may_come_where_a_mask_has_neither_words_nor_a_number(guides: Guides):
    choice = running(guides)
    asked(guides)
    guides.filled(choice, Mask(choice.submit))
    assert not held(guides, choice)
    say(guides, choice, 7)
    assert held(guides, choice)


def test_free_tokens_run_as_far_as_promised_and_no_answer_takes_a_promise_back(guides: Guides):
    choice = running(guides)
    asked(guides)
    guides.filled(choice, Mask(choice.submit, None, num_free=3))
    progress = guides.progress
    for num_flights in range(4):
        progress.num_flights[1] = num_flights
        assert held(guides, choice) == (num_flights == 3)
    progress.num_flights[1] = 0
    say(guides, choice, 7)
    asked(guides)
    guides.filled(choice, Mask(choice.submit, None, num_free=1))
    progress.num_flights[1] = 1
    assert not held(guides, choice)


def test_with_many_free_tokens_ahead_nothing_is_asked_until_they_come_to_an_end(guides: Guides):
    choice = running(guides)
    asked(guides)
    guides.filled(choice, Mask(choice.submit, None, num_free=ENOUGH_FREE_TOKENS + 3))
    said = []
    for token_id in range(6):
        say(guides, choice, token_id)
        said.append(asked(guides))
    assert said == [[], [], [(0, 1, 2)], [], [], []]


def test_what_is_known_of_a_choice_comes_back_with_its_slot(guides: Guides):
    choice = running(guides)
    asked(guides)
    choice.on(Signal.SAMPLE)
    guides.filled(choice, Mask(choice.submit, WORDS))
    say(guides, choice, 7)
    asked(guides)
    choice.on(Signal.RETRACT)
    guides.progress.clear(1)
    choice.slot = 0
    # The answer finds it without a slot, and slot 0 stays nobody's.
    guides.filled(choice, Mask(choice.submit, WORDS))
    assert not guides.progress.mask_for.any()
    choice.on(Signal.ADMIT)
    choice.slot = 2
    guides.progress.num_tokens[2] = choice.num_tokens
    guides.begin(choice)
    assert not held(guides, choice)
    assert asked(guides) == []


def test_a_choice_that_has_ended_asks_nothing(guides: Guides):
    choice = running(guides)
    choice.on(Signal.END)
    assert guides.take(0.0) is None


def test_a_mask_is_expected_for_the_patience_from_the_question_on_and_no_longer(guides: Guides):
    choice = running(guides)
    asked(guides, now_s=2.0)
    assert guides.next_expiry_s == 2.0 + PATIENCE_S
    guides.expire(2.0)
    assert guides.expected == {choice}
    guides.expire(2.0 + PATIENCE_S)
    assert not guides.expected
    assert guides.next_expiry_s == float("inf")
    # A late answer counts all the same.
    guides.filled(choice, Mask(choice.submit, WORDS))
    assert not held(guides, choice)


@pytest.mark.parametrize("leaves", [False, True])
def test_nothing_is_expected_of_a_choice_that_was_answered_or_has_left(guides: Guides, leaves: bool):
    choice = running(guides)
    asked(guides)
    if leaves:
        guides.left(choice)
    else:
        guides.filled(choice, Mask(choice.submit, WORDS))
    assert not guides.expected
    guides.expire(0.0)
    assert guides.next_expiry_s == float("inf")


def test_a_second_question_does_not_prolong_what_is_left_of_the_patience(guides: Guides):
    running(guides)
    asked(guides, now_s=0.0)
    running(guides, submit("b", (4,), rules=rules()), slot=2)
    asked(guides, now_s=0.25)
    assert guides.next_expiry_s == PATIENCE_S
