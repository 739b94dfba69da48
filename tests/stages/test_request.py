"""One request from ask to answer: what its submits carry, and what is refused before there are any."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from attrs import evolve, frozen

from stages.errors import ContextOverflow, EngineFailure, InvalidRequest, PriorityRefused, QueueFull
from stages.messages import (
    Ask,
    Chat,
    CompileGrammar,
    Constraint,
    Ended,
    GrammarInbox,
    Limits,
    Penalties,
    Prompt,
    TextGrammar,
)
from stages.request import _submits, admitted, fit
from tests.fakes import FAKE_MODEL, counting, fake_services, silent

REFUSES = evolve(FAKE_MODEL, refuses_priority=True)


async def test_every_choice_carries_the_asks_stops_and_its_place_in_queue_and_cache(autojump_clock: Any) -> None:
    limits = Limits(stop=("x",), stop_regex=("y+",))
    ask = Ask("a", "hi", limits=limits, num_choices=2, priority=-3, namespace="n", session="s", routing_key="k")
    async with fake_services(silent) as fakes, admitted(ask, fakes.services):
        for submit in fakes.engine.submits:
            assert (submit.priority, submit.namespace, submit.session, submit.routing_key) == (-3, "n", "s", "k")
            assert (submit.stop, submit.stop_regex) == (("x",), ("y+",))
        assert len(fakes.engine.submits) == 2


@pytest.mark.parametrize(
    ("prompt", "stops"), [(Chat(({"role": "user", "content": "hi"},)), ("t", "x")), ("hi", ("x",))]
)
async def test_the_templates_stops_come_before_the_asks_where_there_is_a_template(
    prompt: Chat | str, stops: tuple[str, ...], autojump_clock: Any
) -> None:
    ask = Ask("a", prompt, limits=Limits(stop=("x",)))
    model = evolve(FAKE_MODEL, chat_stop=("t",))
    async with fake_services(silent, model=model) as fakes, admitted(ask, fakes.services):
        assert fakes.engine.submits[0].stop == stops


@pytest.mark.parametrize(("timeout_s", "waits_s"), [(None, math.inf), (4.0, 4.0)])
async def test_a_request_waits_for_its_admission_as_long_as_the_server_says(
    timeout_s: float | None, waits_s: float, autojump_clock: Any
) -> None:
    model = evolve(FAKE_MODEL, queue_timeout_s=timeout_s)
    async with fake_services(silent, model=model, render_s=1.0) as fakes:
        start_s = trio.current_time()
        async with admitted(Ask("a", "hi"), fakes.services):
            # The wait begins in the queue, not while the prompt is made.
            assert fakes.engine.submits[0].wait_until_s == start_s + 1.0 + waits_s


@pytest.mark.parametrize("priority", [0, -1, 5])
async def test_a_priority_is_refused_before_anything_is_done_where_the_server_says_so(
    priority: int, autojump_clock: Any
) -> None:
    async with fake_services(silent, model=REFUSES, render_s=1.0) as fakes:
        start_s = trio.current_time()
        with pytest.raises(PriorityRefused, match="Using priority is disabled for this server"):
            async with admitted(Ask("a", "hi", priority=priority), fakes.services):
                pass
        assert (trio.current_time(), fakes.engine.submits) == (start_s, [])


async def test_a_request_without_a_priority_is_served_where_priorities_are_refused(autojump_clock: Any) -> None:
    async with fake_services(silent, model=REFUSES) as fakes, admitted(Ask("a", "hi"), fakes.services):
        assert len(fakes.engine.submits) == 1


@pytest.mark.parametrize("prefix", ["slow", "slo", None])
async def test_an_abort_while_the_prompt_is_made_ends_every_choice_unsubmitted(
    prefix: str | None, autojump_clock: Any
) -> None:
    async with fake_services(silent, render_s=1.0) as fakes, trio.open_nursery() as nursery:
        ended: list[Any] = []

        async def run() -> None:
            async with admitted(Ask("slow", "hi", num_choices=2), fakes.services) as answer:
                ended.extend([await answer.events.receive() for _ in range(2)])

        nursery.start_soon(run)
        await trio.sleep(0.5)
        fakes.services.abort_all() if prefix is None else fakes.services.abort(prefix)
        await trio.sleep(1.0)
        assert [(type(event), event.choice) for event in ended] == [(Ended, 0), (Ended, 1)]
        assert {(event.finish.kind, event.finish.message) for event in ended} == {("abort", "Abort in waiting queue")}
        assert fakes.engine.submits == []


@pytest.mark.parametrize("prompt", ["hi", "unrenderable"])
async def test_nothing_is_kept_of_a_prompt_that_was_made_or_refused(prompt: str, autojump_clock: Any) -> None:
    async with fake_services(counting(1)) as fakes:
        try:
            async with admitted(Ask("a", prompt), fakes.services):
                assert fakes.services.rendering == {}
        except InvalidRequest:
            pass
        assert fakes.services.rendering == {}


async def test_an_abort_of_others_leaves_a_prompt_being_made_alone(autojump_clock: Any) -> None:
    async with fake_services(silent, render_s=1.0) as fakes, trio.open_nursery() as nursery:

        async def run() -> None:
            async with admitted(Ask("slow", "hi"), fakes.services):
                await trio.sleep_forever()

        nursery.start_soon(run)
        await trio.sleep(0.5)
        fakes.services.abort("slower")
        await trio.sleep(1.0)
        assert len(fakes.engine.submits) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("wanted", "fitted"), [(None, 4086), (4086, 4086), (4087, 4086), (10**9, 4086), (5, 5)])
def test_a_budget_that_may_shrink_is_cut_to_what_the_context_leaves(wanted: int | None, fitted: int) -> None:
    ask = Ask("r", "x", limits=Limits(max_new_tokens=wanted, may_shrink=True))
    assert fit(ask, 10, FAKE_MODEL) == fitted
    with pytest.raises(ContextOverflow):
        fit(ask, 4096, FAKE_MODEL)


@frozen
class Compiled:
    """A grammar as the grammar stage would hand it out."""

    constraint: Constraint


ABLE = evolve(FAKE_MODEL, structured_outputs=True, penalties=True)
RULED: dict[str, tuple[Ask, Any]] = {
    "nothing": (Ask("a", "hi"), None),
    "a budget": (Ask("a", "hi", thinking_budget_tokens=0), (None, 0, 0, None)),
    "ids": (Ask("a", "hi", allowed_token_ids=frozenset({3})), (None, None, 0, frozenset({3}))),
    "a least length": (Ask("a", "hi", limits=Limits(min_new_tokens=2)), (None, None, 2, None)),
}


@pytest.mark.parametrize(("ask", "rules"), RULED.values(), ids=list(RULED))
async def test_a_choice_has_rules_only_where_its_ask_rules_something(ask: Ask, rules: Any, autojump_clock: Any) -> None:
    async with fake_services(silent, model=ABLE) as fakes, admitted(ask, fakes.services):
        (submit,) = fakes.engine.submits
    found = submit.rules
    assert (found and attrs.astuple(found, recurse=False)) == rules
    assert submit.min_new_tokens == ask.limits.min_new_tokens


async def test_a_least_length_is_no_rule_where_there_are_no_masks(autojump_clock: Any) -> None:
    ask = Ask("a", "hi", limits=Limits(min_new_tokens=2))
    async with fake_services(silent) as fakes, admitted(ask, fakes.services):
        assert (fakes.engine.submits[0].rules, fakes.engine.submits[0].min_new_tokens) == (None, 2)


def test_every_choice_obeys_one_grammar_and_the_first_scores_the_prompt_for_all() -> None:
    ask = Ask(
        "a",
        "hi",
        num_choices=2,
        penalties=Penalties(0.5, 0.25, 1.5),
        logit_bias=((3, -1.0),),
        logprob_token_ids=(4, 5),
        prompt_logprobs_from=1,
    )
    mailbox, _ = trio.open_memory_channel[Any](1)
    grammar = Compiled(TextGrammar("regex", "a"))
    first, second = _submits(ask, Prompt((7, 8), in_reasoning=False), 5, ABLE, mailbox, grammar)
    assert first.rules is not None
    assert first.rules.grammar is grammar
    assert second.rules is first.rules
    assert (first.prompt_logprobs_from, second.prompt_logprobs_from) == (1, None)
    for submit in (first, second):
        assert (submit.penalties, submit.logit_bias) == (ask.penalties, ask.logit_bias)
        assert submit.logprob_token_ids == (4, 5)


@pytest.mark.parametrize(("start", "asked"), [(0, 0), (1, 1), (2, None)])
async def test_a_start_at_the_prompts_end_scores_nothing(start: int, asked: int | None, autojump_clock: Any) -> None:
    ask = Ask("a", "hi", prompt_logprobs_from=start)
    async with fake_services(silent) as fakes, admitted(ask, fakes.services):
        assert fakes.engine.submits[0].prompt_logprobs_from == asked


async def test_a_start_beyond_the_prompt_is_refused_in_sglangs_words(autojump_clock: Any) -> None:
    async with fake_services(silent) as fakes:
        with pytest.raises(InvalidRequest) as caught:
            async with admitted(Ask("a", "hi", prompt_logprobs_from=3), fakes.services):
                pass
        assert caught.value.message == (
            "logprob_start_len=3 is higher than the number of input tokens 2. Please use a smaller logprob_start_len."
        )
        assert (caught.value.param, fakes.engine.submits) == ("logprob_start_len", [])


async def compiling(inbox: "trio.MemoryReceiveChannel[GrammarInbox]", asked: list[Any]) -> None:
    """Answer with a grammar after a second; "refused" is refused, "dropped" is dropped, "full" finds no room."""
    async for message in inbox:
        assert isinstance(message, CompileGrammar)
        asked.append(message.constraint)
        await trio.sleep(1.0)
        text = getattr(message.constraint, "text", "")
        answers: dict[str, Any] = {"refused": InvalidRequest("no", "regex"), "full": QueueFull("full")}
        with message.reply:
            if text != "dropped":
                message.reply.send_nowait(answers.get(text, Compiled(message.constraint)))


@asynccontextmanager
async def grammar_services(asked: list[Any]) -> AsyncIterator[Any]:
    send, receive = trio.open_memory_channel[GrammarInbox](10)
    model = evolve(FAKE_MODEL, structured_outputs=True)
    async with fake_services(silent, model=model, render_s=1.0) as fakes, trio.open_nursery() as nursery:
        nursery.start_soon(compiling, receive, asked)
        yield fakes, evolve(fakes.services, grammars=send)
        nursery.cancel_scope.cancel()


async def test_a_constraint_is_compiled_once_for_all_choices_before_they_are_queued(autojump_clock: Any) -> None:
    asked: list[Any] = []
    async with grammar_services(asked) as (fakes, services):
        start_s = trio.current_time()
        ask = Ask("a", "hi", num_choices=2, constraint=TextGrammar("regex", "a"))
        async with admitted(ask, services):
            assert trio.current_time() - start_s == 2.0
            assert asked == [ask.constraint]
            rules = [submit.rules for submit in fakes.engine.submits]
            assert len(rules) == 2
            assert rules[0].grammar is rules[1].grammar
            assert isinstance(rules[0].grammar, Compiled)
        async with admitted(Ask("b", "hi"), services):
            assert asked == [ask.constraint]


@pytest.mark.parametrize(
    ("text", "error"), [("refused", InvalidRequest), ("full", QueueFull), ("dropped", EngineFailure)]
)
async def test_a_constraint_that_does_not_compile_ends_its_request_before_it_is_queued(
    text: str, error: type[Exception], autojump_clock: Any
) -> None:
    async with grammar_services([]) as (fakes, services):
        with pytest.raises(error):
            async with admitted(Ask("a", "hi", constraint=TextGrammar("regex", text)), services):
                pass
        assert fakes.engine.submits == []
        assert services.rendering == {}


@pytest.mark.parametrize(
    ("field", "param"), [("structured_outputs.regex", "structured_outputs.regex"), (None, "regex")]
)
async def test_a_refused_grammar_is_told_by_the_field_it_came_from(
    field: str | None, param: str, autojump_clock: Any
) -> None:
    ask = Ask("a", "hi", constraint=TextGrammar("regex", "refused"), constraint_field=field)
    async with grammar_services([]) as (_, services):
        with pytest.raises(InvalidRequest) as caught:
            async with admitted(ask, services):
                pass
    assert (caught.value.message, caught.value.param, caught.value.code) == ("no", param, "invalid_value")


async def test_an_abort_while_a_grammar_compiles_ends_every_choice_unsubmitted(autojump_clock: Any) -> None:
    async with grammar_services([]) as (fakes, services), trio.open_nursery() as nursery:
        ended: list[Any] = []

        async def run() -> None:
            ask = Ask("slow", "hi", constraint=TextGrammar("regex", "a"))
            async with admitted(ask, services) as answer:
                ended.append(await answer.events.receive())

        nursery.start_soon(run)
        await trio.sleep(1.5)
        services.abort("slow")
        await trio.sleep(1.0)
        assert [event.finish.kind for event in ended] == ["abort"]
        assert fakes.engine.submits == []


async def test_a_constraint_without_a_grammar_stage_is_refused_with_the_flag(autojump_clock: Any) -> None:
    async with fake_services(silent) as fakes:
        with pytest.raises(InvalidRequest, match="--structured-outputs"):
            async with admitted(Ask("a", "hi", constraint=TextGrammar("regex", "a")), fakes.services):
                pass
