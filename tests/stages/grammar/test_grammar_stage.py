"""The stage with its real worker processes: they compile, they are killed, and nothing else notices."""

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve

from stages.errors import CheckpointError, EngineFailure, InvalidRequest, StartupError
from stages.grammar import engines as engines_module
from stages.grammar import process as process_module
from stages.grammar.engines import check_available, open_engines
from stages.grammar.pool import Breach, CompiledGrammar
from stages.grammar.process import Worker
from stages.grammar.stage import run_grammar
from stages.messages import (
    CompileGrammar,
    Constraint,
    FillMasks,
    Grammar,
    GrammarInbox,
    MasksFilled,
    Rules,
    Submit,
    TextGrammar,
)
from stages.settings import GrammarSettings
from tests.sim.simkit import submit as plain_submit
from tests.small_tokenizer import ids, write_small_tokenizer
from tests.stages.grammar.small import EOS, VOCAB_SIZE, allowed_ids

pytestmark = pytest.mark.slow

# A grammar whose compile takes longer than anybody waits.
RULES = "".join(f'r{n} ::= "a" r{n + 1} | "b"\n' for n in range(20_000))
ENDLESS = TextGrammar("ebnf", f'root ::= r0\n{RULES}r20000 ::= "c"')
JSON = TextGrammar("json_schema", json.dumps({"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]}))


@define(eq=False)
class Stage:
    inbox: "trio.MemorySendChannel[GrammarInbox]"
    filled: "trio.MemoryReceiveChannel[MasksFilled]"

    async def compile(self, constraint: Constraint) -> "Grammar | Exception":
        reply, answer = trio.open_memory_channel[Grammar | Exception](1)
        self.inbox.send_nowait(CompileGrammar(constraint, reply))
        return await answer.receive()

    async def mask(self, order: Submit, tokens: tuple[int, ...] = ()) -> Any:
        self.inbox.send_nowait(FillMasks(((order, tokens),)))
        return (await self.filled.receive()).masks[0]


def settings_of(folder: Path, **changes: Any) -> GrammarSettings:
    settings = GrammarSettings(str(write_small_tokenizer(folder)), VOCAB_SIZE, frozenset({EOS}), "glm45", num_workers=1)
    return evolve(settings, **changes)


@asynccontextmanager
async def running(settings: GrammarSettings) -> AsyncIterator[Stage]:
    inbox_send, inbox = trio.open_memory_channel[GrammarInbox](100)
    filled_send, filled = trio.open_memory_channel[MasksFilled](100)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_grammar, settings, inbox, filled_send.send_nowait)
        yield Stage(inbox_send, filled)
        nursery.cancel_scope.cancel()


async def test_a_choice_is_led_through_its_grammar_to_its_end(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with running(settings_of(tmp_path)) as stage:
            grammar = await stage.compile(JSON)
            assert isinstance(grammar, CompiledGrammar)
            assert grammar.constraint == JSON
            order = evolve(
                plain_submit("a", (1,)), stop_token_ids=frozenset({EOS}), in_reasoning=True, rules=Rules(grammar)
            )
            assert EOS not in allowed_ids((await stage.mask(order)).allowed)
            assert (await stage.mask(order, ids("hm</think>"))).error is None
            mask = await stage.mask(order, ids('{"n": 7}'))
            assert allowed_ids(mask.allowed) == [EOS]
            assert (await stage.mask(order, (EOS,))).is_complete


async def test_refusals_are_in_sglangs_words(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with running(settings_of(tmp_path)) as stage:
            for constraint, told in (
                (TextGrammar("json_schema", '{"not": {}}'), "Failed to compile json grammar: #/not: the keyword not"),
                (TextGrammar("json_schema", "{"), "Failed to compile json grammar: not JSON"),
                (TextGrammar("regex", "("), "Failed to compile regex grammar: "),
                (TextGrammar("ebnf", "root ::= x"), "Failed to compile ebnf grammar: EBNF parser error"),
                (TextGrammar("structural_tag", "[]"), "Failed to compile structural_tag grammar: "),
                (TextGrammar("regex", "\x00"), "Invalid regex: NUL bytes (\\u0000) are not allowed"),
            ):
                answer = await stage.compile(constraint)
                assert isinstance(answer, InvalidRequest)
                assert answer.message.startswith(told)
                assert "/project/" not in answer.message


async def test_a_compile_that_takes_too_long_is_killed_and_the_next_one_has_a_new_process(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with running(settings_of(tmp_path, compile_timeout_s=1.0)) as stage:
            answer = await stage.compile(ENDLESS)
            assert isinstance(answer, InvalidRequest)
            assert answer.message == "Grammar preprocessing timed out: it took more than 1 s."
            assert isinstance(await stage.compile(TextGrammar("regex", "a")), CompiledGrammar)


def open_files(pid: int) -> list[str]:
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def children() -> list[str]:
    """Every child of this process, whichever of its threads has started it."""
    return sorted(pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split())


@asynccontextmanager
async def worker_of(settings: GrammarSettings) -> AsyncIterator[Worker]:
    engines = open_engines(settings.tokenizer_path, settings.vocab_size, settings.eos_token_ids)
    worker = Worker(settings, engines, trio.CapacityLimiter(1))
    try:
        await worker.start()
        yield worker
    finally:
        await worker.kill()


async def test_a_compile_that_takes_too_much_memory_is_refused_and_the_worker_goes_on(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with worker_of(settings_of(tmp_path, worker_memory_bytes=1 << 25, compile_timeout_s=60.0)) as worker:
            with pytest.raises((Breach, InvalidRequest), match="Failed to compile ebnf grammar"):
                await worker.compile(ENDLESS)
            await worker.compile(TextGrammar("regex", "a"))


async def test_a_worker_inherits_no_file_and_no_terminal_signal(tmp_path: Path) -> None:
    with trio.fail_after(120), socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.set_inheritable(True)  # as a careless library might
        async with worker_of(settings_of(tmp_path)) as worker:
            process = worker._process
            assert process is not None
            assert not [name for name in open_files(process.pid) if name.startswith("socket:")]
            assert os.getsid(process.pid) == process.pid


async def test_a_worker_that_cannot_start_fails_its_compile_and_not_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    engines = open_engines(settings.tokenizer_path, settings.vocab_size, settings.eos_token_ids)
    worker = Worker(settings, engines, trio.CapacityLimiter(1))
    for command in (("/nowhere/python",), ("/bin/false",)):
        monkeypatch.setattr(process_module, "COMMAND", command)
        with trio.fail_after(60), pytest.raises(EngineFailure, match="a grammar worker did not start"):
            await worker.compile(TextGrammar("regex", "a"))


async def test_a_worker_that_dies_between_compiles_is_replaced(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with worker_of(settings_of(tmp_path)) as worker:
            process = worker._process
            assert process is not None
            process.kill()
            await process.wait()
            await worker.compile(TextGrammar("regex", "a"))


async def test_a_cancelled_stage_leaves_no_process(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    before = children()
    with trio.fail_after(120):
        async with running(settings) as stage:
            assert isinstance(await stage.compile(TextGrammar("regex", "a")), CompiledGrammar)
            assert children() != before
    assert children() == before


async def test_a_tokenizer_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    settings = GrammarSettings(str(tmp_path), VOCAB_SIZE, frozenset({EOS}))
    inbox_send, inbox = trio.open_memory_channel[GrammarInbox](1)
    with inbox_send, pytest.raises(CheckpointError):
        await run_grammar(settings, inbox, lambda masks: None)


def test_without_the_extra_the_start_ends_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_available()
    monkeypatch.setattr(engines_module, "find_spec", lambda name: None if name == "llguidance" else object())
    with pytest.raises(StartupError, match=r"needs the package llguidance: pip install 'trnrt\[grammar\]'"):
        check_available()
