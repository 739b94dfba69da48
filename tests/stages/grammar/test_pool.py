"""Compiles: once for many, bounded, remembered, and refused in words."""

from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from stages.errors import InvalidRequest, QueueFull
from stages.grammar.pool import Breach, CompiledGrammar, Pool, constraint_key
from stages.messages import CompileGrammar, Constraint, Grammar, TextGrammar, Tool, ToolGrammar
from stages.settings import GrammarSettings

SETTINGS = GrammarSettings("", 512, frozenset({1}), max_compiles=3, cache_bytes=5000, max_source_bytes=1000)


@define
class FakeTemplate:
    constraint: Constraint
    size_bytes: int = 1000

    def start(self) -> Any:
        raise NotImplementedError


@define(eq=False)
class Compiler:
    """Takes a second; a text that begins with "no" is refused, one that begins with "slow" breaches."""

    compiled: list[str] = field(factory=list)

    async def compile(self, constraint: Constraint) -> FakeTemplate:
        assert isinstance(constraint, TextGrammar)
        self.compiled.append(constraint.text)
        await trio.sleep(1.0)
        if constraint.text.startswith("no"):
            raise InvalidRequest("refused", "regex")
        if constraint.text.startswith("slow"):
            raise Breach("Grammar preprocessing timed out: it took more than 5 s.")
        return FakeTemplate(constraint)


def regex(text: str, **options: Any) -> TextGrammar:
    return TextGrammar("regex", text, **options)


def ask(pool: Pool, constraint: Constraint) -> "trio.MemoryReceiveChannel[Grammar | Exception]":
    reply, answer = trio.open_memory_channel[Grammar | Exception](1)
    pool.take(CompileGrammar(constraint, reply))
    return answer


async def test_one_compile_answers_all_who_wait_and_all_who_come_later(autojump_clock: Any) -> None:
    compiler = Compiler()
    async with trio.open_nursery() as nursery:
        pool = Pool(SETTINGS, nursery, [compiler.compile])
        start_s = trio.current_time()
        # Where a grammar begins is its request's own and changes nothing of what is compiled.
        late = regex("a", after_reasoning=False)
        answers = [ask(pool, regex("a")), ask(pool, regex("a")), ask(pool, late)]
        grammars = [await answer.receive() for answer in answers]
        assert trio.current_time() - start_s == 1.0
        again = await ask(pool, regex("a")).receive()
        assert trio.current_time() - start_s == 1.0
    assert compiler.compiled == ["a"]
    assert all(isinstance(grammar, CompiledGrammar) for grammar in (*grammars, again))
    assert [grammar.constraint for grammar in grammars] == [regex("a"), regex("a"), late]  # type: ignore[union-attr]


async def test_as_many_compile_at_once_as_there_are_compilers(autojump_clock: Any) -> None:
    async with trio.open_nursery() as nursery:
        pool = Pool(SETTINGS, nursery, [Compiler().compile, Compiler().compile])
        start_s = trio.current_time()
        answers = [ask(pool, regex(text)) for text in "abc"]
        assert [(await answer.receive(), trio.current_time() - start_s)[1] for answer in answers] == [1.0, 1.0, 2.0]


async def test_a_full_queue_refuses_and_says_so(autojump_clock: Any) -> None:
    async with trio.open_nursery() as nursery:
        pool = Pool(SETTINGS, nursery, [Compiler().compile])
        answers = [ask(pool, regex(text)) for text in "abcdef"]
        results = [await answer.receive() for answer in answers]
    assert [isinstance(result, QueueFull) for result in results] == [False] * 4 + [True] * 2


async def test_what_nobody_waits_for_is_not_compiled(autojump_clock: Any) -> None:
    compiler = Compiler()
    async with trio.open_nursery() as nursery:
        pool = Pool(SETTINGS, nursery, [compiler.compile])
        first, left, stays = ask(pool, regex("a")), ask(pool, regex("b")), ask(pool, regex("c"))
        left.close()
        await first.receive()
        await stays.receive()
    assert compiler.compiled == ["a", "c"]


async def test_a_refusal_is_remembered_and_a_breach_is_not(autojump_clock: Any) -> None:
    compiler = Compiler()
    async with trio.open_nursery() as nursery:
        pool = Pool(SETTINGS, nursery, [compiler.compile])
        for _ in range(2):
            for text in ("no", "slow"):
                assert isinstance(await ask(pool, regex(text)).receive(), InvalidRequest)
    assert compiler.compiled == ["no", "slow", "slow"]


async def test_the_cache_is_bounded_and_keeps_what_was_used_last(autojump_clock: Any) -> None:
    compiler = Compiler()
    async with trio.open_nursery() as nursery:
        pool = Pool(SETTINGS, nursery, [compiler.compile])
        for text in "abcdeafab":
            await ask(pool, regex(text)).receive()
    assert compiler.compiled == list("abcdefb")


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        (regex("a\x00"), r"Invalid regex: NUL bytes \(\\u0000\) are not allowed"),
        (TextGrammar("json_schema", "\x00"), r"Invalid json: NUL bytes"),
        (regex("a" * 2000), "it has 2017 bytes, more than 1000"),
        (ToolGrammar((Tool("f", {}, {"a": "\ud800"}),), True, ("f",)), "Failed to compile tool grammar"),
    ],
)
async def test_what_no_worker_need_see_is_refused_at_once(constraint: Constraint, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        constraint_key(constraint, 1000)


def test_constraints_that_compile_differently_have_keys_of_their_own() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    turned = {"type": "object", "properties": {"b": {}, "a": {}}}
    tools = ToolGrammar((Tool("f", {}, schema),), True, ("f",))
    constraints: list[Constraint] = [
        regex("a"),
        TextGrammar("ebnf", "a"),
        TextGrammar("json_schema", "a"),
        TextGrammar("json_schema", "a", any_whitespace=False),
        tools,
        evolve(tools, is_required=False),
        evolve(tools, is_parallel=False),
        evolve(tools, tools=(Tool("f", {}, turned),)),
        evolve(tools, tools=(Tool("f", {}, schema, is_strict=True),)),
    ]
    assert len({constraint_key(constraint, 1000) for constraint in constraints}) == len(constraints)
