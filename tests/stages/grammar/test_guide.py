"""A choice's rules: when its grammar begins, what may end it, and that its masks are never empty."""

import gc
import json
import weakref
from random import Random
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import EngineFailure
from stages.grammar.guide import MAX_BLANK_TOKENS, UNLIMITED, Guide, Phase, open_guide
from stages.grammar.pool import CompiledGrammar
from stages.messages import Constraint, Rules, Submit, TextGrammar, Tool, ToolGrammar
from tests.sim.simkit import submit as plain_submit
from tests.small_tokenizer import ids, tag
from tests.stages.grammar.small import EOS, OBSERVATION, THINKING, USER, allowed_ids, compiled, engines

ENDS = frozenset({EOS, USER, OBSERVATION})
SCHEMA = json.dumps(
    {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
)
JSON = TextGrammar("json_schema", SCHEMA)
NOW = Tool("now", {}, {"type": "object", "properties": {}, "additionalProperties": False}, is_strict=True)
CLOSE, CALL, END_CALL, OPEN = tag("</think>"), tag("<tool_call>"), tag("</tool_call>"), tag("<think>")


def tools(*, required: bool) -> ToolGrammar:
    return ToolGrammar((NOW,), required, ("now",))


def submit(
    constraint: Constraint | None = None,
    *,
    thinks: bool = False,
    stops: frozenset[int] = ENDS,
    prompt: tuple[int, ...] = (OPEN,),
    **rules: Any,
) -> Submit:
    grammar = compiled(constraint) if constraint is not None else None
    base = plain_submit("a", prompt)
    return evolve(base, stop_token_ids=stops, in_reasoning=thinks, rules=Rules(grammar=grammar, **rules))


def guide_of(order: Submit, *, parser: bool = True) -> Guide:
    grammar = order.rules.grammar if order.rules is not None else None
    matcher = grammar.start() if isinstance(grammar, CompiledGrammar) else None
    return open_guide(order, engines().tokens, THINKING if parser else None, matcher)


def guide(constraint: Constraint | None = None, *, parser: bool = True, **options: Any) -> Guide:
    return guide_of(submit(constraint, **options), parser=parser)


def may(state: Guide) -> set[int]:
    """What may come next; every token where there is no mask."""
    allowed = state.allowed()
    assert not allowed.is_complete
    if allowed.words is None:
        assert allowed.num_free > 0
        return set(range(len(engines().tokens.pieces)))
    assert allowed.num_free == 0
    assert allowed.words.any()
    return set(allowed_ids(allowed.words))


def test_without_thinking_a_grammar_holds_the_first_token() -> None:
    state = guide(JSON)
    assert may(state) <= {token for token, piece in enumerate(engines().tokens.pieces) if piece.startswith(b"{")}


def test_a_grammar_begins_after_the_thinking_and_ends_with_an_end_token() -> None:
    state = guide(JSON, thinks=True)
    state.accept(ids("I think {n} "))
    assert CLOSE in may(state)
    state.accept((CLOSE,))
    assert state.place.phase is Phase.HELD
    state.accept(ids('{"n": 7'))
    assert not may(state) & ENDS
    state.accept(ids("}"))
    assert may(state) == ENDS
    state.accept((USER,))
    assert state.allowed().is_complete


def test_a_grammar_that_does_not_wait_holds_the_first_token_of_the_thinking_too() -> None:
    state = guide(TextGrammar("json_schema", SCHEMA, after_reasoning=False), thinks=True)
    assert state.place.phase is Phase.HELD


def test_without_a_reasoning_parser_a_grammar_holds_the_first_token() -> None:
    assert guide(JSON, thinks=True, parser=False).place.phase is Phase.HELD


def test_thinking_before_a_text_grammar_can_only_end_by_its_own_tag() -> None:
    state = guide(JSON, thinks=True)
    ruled_out = set(range(len(engines().tokens.pieces))) - may(state)
    assert ruled_out == ENDS | {CALL, END_CALL, tag("<eop>")}
    with pytest.raises(EngineFailure):
        state.accept((CALL,))


def test_thinking_before_required_calls_ends_by_its_tag_or_by_a_call() -> None:
    for begin in ((CALL,), (CLOSE, CALL)):
        state = guide(tools(required=True), thinks=True)
        assert not may(state) & ENDS
        state.accept(ids("hm"))
        state.accept(begin)
        state.accept(ids("now"))
        assert may(state) == {END_CALL}
        state.accept((END_CALL,))
        assert may(state) == ENDS | {CALL}
    state = guide(tools(required=True), thinks=True)
    state.accept((CLOSE,))
    assert may(state) == {CALL}


def test_calls_that_need_not_come_leave_text_free_until_one_does() -> None:
    for thinks in (True, False):
        state = guide(tools(required=False), thinks=thinks)
        state.accept(ids("so "))
        assert (state.allowed().words, state.allowed().num_free) == (None, 1)
        state.accept((CLOSE, *ids("well"), CALL) if thinks else (CALL,))
        assert may(state) <= {token for token, piece in enumerate(engines().tokens.pieces) if piece[:1] == b"n"}


@pytest.mark.parametrize(("budget", "prompt"), [(0, (OPEN,)), (3, (OPEN,)), (3, (OPEN, 5, 6))])
def test_a_thinking_budget_forces_the_tag_after_so_many_tokens_of_the_block(budget: int, prompt: Any) -> None:
    state = guide(thinks=True, thinking_budget_tokens=budget, prompt=prompt)
    left = budget - (len(prompt) - 1)
    assert left == 0 or state.allowed().num_free == left
    state.accept(ids("abcdefgh")[:left])
    assert may(state) == {CLOSE}
    state.accept((CLOSE,))
    assert state.allowed().num_free == UNLIMITED


def test_a_thinking_budget_ends_with_the_block_however_it_ends() -> None:
    for begin in ((CLOSE,), (CALL,)):
        state = guide(thinks=True, thinking_budget_tokens=2)
        state.accept(begin)
        state.accept((*ids("and more"), OPEN, *ids("and more")))
        assert state.allowed().num_free == UNLIMITED


def test_a_thinking_budget_without_thinking_asks_for_nothing() -> None:
    assert guide(thinking_budget_tokens=0).allowed().num_free == UNLIMITED
    assert guide(thinks=True, parser=False, thinking_budget_tokens=0).allowed().num_free == UNLIMITED


def test_a_forced_tag_comes_before_every_other_rule() -> None:
    state = guide(JSON, thinks=True, thinking_budget_tokens=0, allowed_token_ids=frozenset({3}), min_new_tokens=9)
    assert may(state) == {CLOSE}


def test_end_tokens_are_ruled_out_until_so_many_tokens_exist() -> None:
    state = guide(min_new_tokens=2)
    for _ in range(2):
        assert set(range(len(engines().tokens.pieces))) - may(state) == ENDS
        state.accept((5,))
    assert state.allowed().num_free == UNLIMITED


def test_a_complete_grammar_ends_an_answer_that_is_too_short() -> None:
    state = guide(TextGrammar("choice", '["a"]'), min_new_tokens=5)
    state.accept(ids("a"))
    assert may(state) == ENDS


def test_only_listed_tokens_may_come_and_where_that_leaves_none_the_answer_ends() -> None:
    assert may(guide(allowed_token_ids=frozenset({3, 9, 10_000}))) == {3, 9}
    state = guide(JSON, allowed_token_ids=frozenset({tag("<think>")}))
    assert may(state) == ENDS


def test_without_end_tokens_a_complete_answer_is_told_and_a_dead_end_is_an_error() -> None:
    state = guide(TextGrammar("choice", '["a"]'), stops=frozenset())
    state.accept(ids("a"))
    assert state.allowed().is_complete
    with pytest.raises(EngineFailure, match="nothing can follow"):
        guide(JSON, stops=frozenset(), allowed_token_ids=frozenset({tag("<think>")})).allowed()


def test_without_end_tokens_a_grammar_that_can_go_on_goes_on() -> None:
    state = guide(TextGrammar("regex", "a+"), stops=frozenset())
    state.accept(ids("a"))
    assert may(state) <= {token for token, piece in enumerate(engines().tokens.pieces) if set(piece) == {ord("a")}}


def test_a_token_the_grammar_had_ruled_out_is_an_error() -> None:
    with pytest.raises(EngineFailure, match="ruled out"):
        guide(JSON).accept(ids("x"))


def test_json_is_not_white_space_for_ever() -> None:
    blanks = {token for token, piece in enumerate(engines().tokens.pieces) if piece and not piece.strip(b" \t\r\n")}
    for text in ('{"n":', "{"):
        state = guide(JSON)
        state.accept(ids(text))
        for _ in range(MAX_BLANK_TOKENS):
            assert may(state) & blanks
            state.accept(ids("\n")[:1])
        assert may(state)
        assert not may(state) & blanks
        state.rollback(1)
        assert may(state) & blanks


def test_other_grammars_may_be_white_space_as_long_as_they_like() -> None:
    state = guide(TextGrammar("regex", "a *b"))
    state.accept(ids("a"))
    for _ in range(3 * MAX_BLANK_TOKENS):
        state.accept(ids(" "))
    assert set(ids(" ")) <= may(state)


def test_a_guide_does_not_keep_its_submit() -> None:
    order = submit(JSON, thinks=True)
    state, gone = guide_of(order), weakref.ref(order)
    del order
    gc.collect()
    assert gone() is None
    assert may(state)


CONSTRAINTS: list[tuple[Constraint | None, dict[str, Any]]] = [
    (None, {"thinking_budget_tokens": 3, "min_new_tokens": 4}),
    (JSON, {"thinking_budget_tokens": 4}),
    (tools(required=True), {}),
    (tools(required=False), {"thinking_budget_tokens": 2}),
    (TextGrammar("regex", "(ab|c)+"), {"min_new_tokens": 6}),
]


@given(st.integers(0, 2**32), st.sampled_from(range(len(CONSTRAINTS))), st.booleans(), st.lists(st.integers(1, 6)))
def test_rollback_leaves_a_guide_as_if_the_tokens_had_never_come(
    seed: int, index: int, thinks: bool, rollbacks: list[int]
) -> None:
    random, (constraint, rules) = Random(seed), CONSTRAINTS[index]
    state, taken = guide(constraint, thinks=thinks, **rules), []
    for back in [*rollbacks, 0]:
        for _ in range(random.randrange(8)):
            allowed = state.allowed()
            if allowed.is_complete:
                break
            # Tags are likelier than they are, or the phases would hardly ever change.
            choices = may(state)
            likely = sorted(choices & {CLOSE, CALL})
            taken.append(random.choice(likely if likely and random.random() < 0.3 else sorted(choices)))
            state.accept(taken[-1:])
        if back and back <= len(taken):
            state.rollback(back)
            del taken[-back:]
    fresh = guide(constraint, thinks=thinks, **rules)
    fresh.accept(taken)
    assert fresh.place == state.place
    assert fresh.allowed().num_free == state.allowed().num_free
    assert fresh.allowed().is_complete == state.allowed().is_complete
    if not state.allowed().is_complete:
        assert may(fresh) == may(state)
