"""A cache that is wrong is found out, at start or by an audit, turned off for good, and says so."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from stages.messages import Chat, Prompt, Record, Render
from stages.prompt.cache import encoder
from stages.prompt.cache.seams import Seams
from stages.prompt.cache.self_check import self_check
from stages.prompt.cache.store import PieceStore, packed
from stages.prompt.cache.switch import PromptCache
from stages.prompt.stage import Prompter, open_prompter, run_prompt_stage
from stages.settings import PromptSettings, TemplateSource
from stages.tokenizer_file import read_tokenizer_file
from tests.small_tokenizer import small_tokenizer, write_small_tokenizer
from tests.stages.prompt.jinja.styles import STYLES, VARIABLES, write_folder

CHATML = TemplateSource({"default": STYLES["chatml"]}, variables=VARIABLES)


def chat(*contents: str) -> Chat:
    return Chat(tuple({"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)))


@pytest.fixture
def settings(tmp_path: Path) -> PromptSettings:
    return PromptSettings(str(write_small_tokenizer(tmp_path)))


@pytest.fixture
def chatml(tmp_path: Path) -> PromptSettings:
    return PromptSettings(str(write_folder("chatml", tmp_path)), CHATML)


def spoil(cache: PromptCache) -> None:
    """Put one id for another into every piece."""
    for piece in list(cache.store._entries):
        cache.store._entries[piece] = packed([7]) + cache.store._entries[piece][4:]


def ids(prompter: Prompter, asked: Chat) -> tuple[int, ...]:
    (answer,) = prompter.answers([asked])
    assert isinstance(answer, Prompt)
    return answer.token_ids


def test_the_first_hit_is_audited_and_a_mismatch_turns_it_off_for_good(
    settings: PromptSettings, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PromptCache(1_000_000)
    prompter, expected = open_prompter(settings, cache), ids(open_prompter(settings), chat("Why is it so?"))
    assert ids(prompter, chat("Why is it so?")) == expected
    spoil(cache)
    with caplog.at_level(logging.ERROR):
        assert ids(prompter, chat("Why is it so?")) == expected
    assert not cache.is_on
    assert (cache.totals["mismatches"], cache.totals["audits"]) == (1, 1)
    assert re.search("the prompt token cache is off: an audit found .* the first other one at ", caplog.text)
    assert len(cache.store) == 0
    assert ids(prompter, chat("Why is it so?", "It is.", "Thanks")) == ids(
        open_prompter(settings), chat("Why is it so?", "It is.", "Thanks")
    )
    assert len(cache.store) == 0
    cache.turn_off("another reason", is_mismatch=True)
    assert cache.facts().reason != "another reason"
    assert cache.facts().mismatches == 1


def test_what_is_logged_of_a_mismatch_is_no_text(settings: PromptSettings, caplog: pytest.LogCaptureFixture) -> None:
    cache = PromptCache(1_000_000)
    prompter = open_prompter(settings, cache)
    ids(prompter, chat("my secret is 4711"))
    spoil(cache)
    ids(prompter, chat("my secret is 4711"))
    assert not cache.is_on
    assert "secret" not in caplog.text + str(cache.info())


@pytest.mark.parametrize(("share", "audits"), [(1.0, 40), (0.25, 10), (0.01, 1), (0.0, 0)])
def test_as_many_hits_are_audited_as_the_share_says(settings: PromptSettings, share: float, audits: int) -> None:
    cache = PromptCache(1_000_000, share)
    prompter = open_prompter(settings, cache)
    for _ in range(41):
        ids(prompter, chat("Hi"))
    facts = cache.facts()
    assert (facts.misses, facts.hits, facts.audits, facts.mismatches) == (1, 40, audits, 0)


def test_hits_and_tokens_are_counted(settings: PromptSettings) -> None:
    cache = PromptCache(1_000_000)
    prompter = open_prompter(settings, cache)
    first = len(ids(prompter, chat("Hi")))
    before = cache.facts().encoded_tokens
    second = len(ids(prompter, chat("Hi", "Hello", "a new question")))
    facts = cache.facts()
    assert (facts.hits, facts.misses) == (1, 1)
    assert facts.found_tokens + facts.encoded_tokens == first + second
    assert 0 < facts.encoded_tokens - before <= second - first
    assert facts.num_bytes == cache.store.num_bytes > 0
    assert facts.num_pieces == len(cache.store)


@pytest.mark.parametrize("safe", ["e", "a", "\n"])
def test_seams_that_are_none_are_found_at_start(
    chatml: PromptSettings, safe: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(encoder, "seams_of", lambda file: Seams((re.compile(re.escape(safe)),), frozenset([safe])))
    cache = PromptCache(1_000_000)
    prompter = open_prompter(chatml, cache)
    assert not cache.is_on
    assert cache.facts().mismatches == 1
    assert "self-check" in str(cache.facts().reason)
    assert "the prompt token cache is off" in caplog.text
    assert ids(prompter, chat("Hi")) == ids(open_prompter(chatml), chat("Hi"))


def test_pieces_that_are_taken_for_one_another_are_found_at_start(
    settings: PromptSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a store that tells pieces by their beginnings: other tools, or an edit behind them, would go unseen."""
    find, keep = PieceStore.find, PieceStore.keep
    monkeypatch.setattr(
        PieceStore, "find", lambda self, pieces: find(self, [piece._replace(text=piece.text[:40]) for piece in pieces])
    )
    monkeypatch.setattr(
        PieceStore,
        "keep",
        lambda self, encoded: keep(self, [(piece._replace(text=piece.text[:40]), ids) for piece, ids in encoded]),
    )
    cache = PromptCache(1_000_000)
    open_prompter(settings, cache)
    assert not cache.is_on


def test_a_right_cache_passes_its_check_and_begins_empty(settings: PromptSettings, chatml: PromptSettings) -> None:
    for each in (settings, chatml):
        cache = PromptCache(1_000_000)
        open_prompter(each, cache)
        assert cache.is_on
        assert (cache.facts().num_pieces, cache.facts().hits, cache.records()) == (0, 0, [])


def changed(folder: Path, **changes: Any) -> str:
    spec = json.loads(small_tokenizer().to_str())
    (folder / "tokenizer.json").write_text(json.dumps(spec | changes))
    return str(folder)


def test_a_tokenizer_that_cannot_be_cut_gets_no_cache_for_a_text_template_and_one_for_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = [token | {"lstrip": True} for token in json.loads(small_tokenizer().to_str())["added_tokens"]]
    path = changed(tmp_path, added_tokens=tokens)
    cache = PromptCache(1_000_000)
    prompter = open_prompter(PromptSettings(path, CHATML), cache)
    assert cache.facts().reason == f"{path}/tokenizer.json: it has no added token that a text may be cut before"
    assert (cache.facts().mismatches, "WARNING" in caplog.text) == (0, True)
    assert ids(prompter, chat("Hi")) == ids(open_prompter(PromptSettings(path, CHATML)), chat("Hi"))
    ours = PromptCache(1_000_000)
    open_prompter(PromptSettings(path), ours)
    assert ours.is_on


def test_a_model_that_draws_lots_gets_none(tmp_path: Path) -> None:
    model = json.loads(small_tokenizer().to_str())["model"] | {"dropout": 0.5}
    cache = PromptCache(1_000_000)
    open_prompter(PromptSettings(changed(tmp_path, model=model)), cache)
    assert "draws lots" in str(cache.facts().reason)


def test_a_self_check_that_fails_starts_the_server_without_a_cache(settings: PromptSettings) -> None:
    def broken(asked: Chat) -> tuple[str, ...]:
        raise KeyError("odd")

    prompter = open_prompter(settings)
    made = encoder.open_caching_encoder(
        prompter.tokenizer, PromptCache(1), read_tokenizer_file(settings.tokenizer_path)
    )
    assert self_check(made, broken) == "the self-check failed: KeyError('odd')"


def test_stages_that_share_a_cache_find_what_the_other_encoded(settings: PromptSettings) -> None:
    cache = PromptCache(1_000_000)
    one, other = open_prompter(settings, cache), open_prompter(settings, cache)
    assert ids(one, chat("Hi there")) == ids(other, chat("Hi there"))
    assert (cache.facts().hits, cache.facts().misses) == (1, 1)
    spoil(cache)
    cache._due = 1.0
    ids(one, chat("Hi there"))
    assert ids(other, chat("Hi there")) == ids(open_prompter(settings), chat("Hi there"))


async def test_the_stage_tells_stats_what_was_counted(settings: PromptSettings) -> None:
    told: list[Record] = []
    cache = PromptCache(1_000_000)
    send, receive = trio.open_memory_channel[Render](10)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_prompt_stage, settings, receive, cache, told.append)
            for _ in range(2):
                reply, answer = trio.open_memory_channel[Prompt | Exception](1)
                await send.send(Render(chat("Hi"), reply))
                await answer.receive()
            spoil(cache)
            cache._due = 1.0
            reply, answer = trio.open_memory_channel[Prompt | Exception](1)
            await send.send(Render(chat("Hi"), reply))
            await answer.receive()
            send.close()
    totals = {name: sum(each.value for each in told if each.name == name) for name in {each.name for each in told}}
    assert totals.pop("prompt_cache_found_tokens") > totals.pop("prompt_cache_encoded_tokens") > 0
    assert totals == {
        "prompt_cache_hits": 2,
        "prompt_cache_misses": 1,
        "prompt_cache_audits": 2,
        "prompt_cache_mismatches": 1,
        "prompt_cache_turned_off": 1,
    }


def test_without_a_cache_the_tokenizer_encodes(settings: PromptSettings) -> None:
    prompter = open_prompter(settings)
    assert prompter.encoder is prompter.tokenizer
    assert evolve(prompter).encoder is prompter.tokenizer
