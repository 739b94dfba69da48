"""An engine that runs something else than prompts are rendered for is told, when it is up and whenever it changes."""

import logging
from typing import Any

import pytest
import trio
from attrs import evolve

from stages.engine.facts import EngineFacts
from stages.errors import RemoteFailure, StartupError
from trnrt.engine_match import POLL_S, OwnFacts, mismatches, plain_name, watch_engine

OWN = OwnFacts(("org/model",), "/models/model", 4096, 500, "model")
SAME = EngineFacts(("served",), "org/model", "org/model", "main", 4096, 500, 0, "model", are_known=True)


def test_nothing_is_said_of_an_engine_that_runs_the_same() -> None:
    assert mismatches(OWN, SAME) == []
    assert mismatches(OWN, EngineFacts(are_known=True)) == []


@pytest.mark.parametrize(
    ("own", "engine", "words"),
    [
        ({}, {"context_length": 8192}, ("context length", "4096", "8192", "--context-length")),
        ({}, {"vocab_size": 501}, ("vocabulary", "500", "501", "--vocab-size")),
        ({}, {"sampling_defaults": "openai"}, ("sampling defaults", "model", "openai", "--sampling-defaults")),
        ({"num_reserved_tokens": 3}, {}, ("reserved", "3", "0", "--num-reserved-tokens")),
        ({}, {"revision": "v2"}, ("revision", "main", "v2", "--revision")),
        ({"revision": "v1"}, {"revision": "v2"}, ("revision", "v1", "v2", "--revision")),
        ({}, {"tokenizer_path": "org/other"}, ("tokenizer", "/models/model", "org/other", "--tokenizer-path")),
        ({"tokenizer_path": "org/else"}, {}, ("tokenizer", "org/else", "org/model", "--tokenizer-path")),
        ({"names": ("a",), "model_path": "/b"}, {}, ("the model is a or /b", "served or org/model", "MODEL")),
        ({}, {"preferred_sampling": {"top_k": 5}}, ("top_k=5",)),
        ({}, {"skips_tokenizer": True}, ("--skip-tokenizer-init",)),
    ],
)
def test_a_mismatch_is_one_line_with_both_values_and_the_flag(
    own: dict[str, Any], engine: dict[str, Any], words: tuple[str, ...]
) -> None:
    [line] = mismatches(evolve(OWN, **own), evolve(SAME, **engine))
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/a/", "a"),
        ("org/a", "a"),
        ("a", "a"),
        ("/home/x/.cache/huggingface/hub/models--org--a/snapshots/0123abcd", "a"),
        ("", ""),
    ],
)
def test_a_model_is_called_the_same_wherever_it_lies(path: str, name: str) -> None:
    assert plain_name(path) == name


class Engine:
    """Up or not, and what it says; and when it was asked."""

    def __init__(self, facts: EngineFacts | None) -> None:
        self.facts = facts
        self.asked_s: list[float] = []

    async def read(self) -> EngineFacts:
        self.asked_s.append(trio.current_time())
        if self.facts is None:
            raise RemoteFailure("away", 503)
        return self.facts


async def test_an_engine_that_is_not_up_is_waited_for_longer_and_longer_and_then_compared(
    autojump_clock: Any, caplog: Any
) -> None:
    engine = Engine(None)
    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: watch_engine(engine.read, OWN, is_strict=False))
        await trio.sleep(30)
        assert [at - start_s for at in engine.asked_s] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 25.5]
        assert [record.message for record in caplog.records] == [
            "the engine is not up; what it runs is compared once it is"
        ]
        engine.facts = evolve(SAME, vocab_size=501)
        await trio.sleep(6)
        assert "vocabulary is 500 here and 501 in the engine" in caplog.records[-1].message
        nursery.cancel_scope.cancel()


async def test_an_engine_is_compared_again_only_after_it_was_away_or_has_changed(
    autojump_clock: Any, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING)
    engine = Engine(evolve(SAME, vocab_size=501))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: watch_engine(engine.read, OWN, is_strict=False))
        await trio.sleep(10 * POLL_S)
        assert len(caplog.records) == 1
        engine.facts = None
        await trio.sleep(2 * POLL_S)
        engine.facts = evolve(SAME, vocab_size=501)
        await trio.sleep(2 * POLL_S)
        assert len(caplog.records) == 3
        engine.facts = evolve(SAME, vocab_size=502)
        await trio.sleep(2 * POLL_S)
        assert ["502 in the engine" in record.message for record in caplog.records[3:]] == [True]
        nursery.cancel_scope.cancel()


async def test_a_strict_comparison_ends_with_every_mismatch_in_one_line(autojump_clock: Any) -> None:
    engine = Engine(evolve(SAME, vocab_size=501, context_length=1))
    with pytest.raises(StartupError, match=r"--strict-engine-match: context length .*; vocabulary .*--vocab-size"):
        await watch_engine(engine.read, OWN, is_strict=True)


async def test_an_engine_that_hangs_is_one_that_is_not_up(autojump_clock: Any, caplog: Any) -> None:
    async def read() -> EngineFacts:
        await trio.sleep_forever()

    with trio.move_on_after(100):
        await watch_engine(read, OWN, is_strict=True)
    assert "not up" in caplog.records[0].message
