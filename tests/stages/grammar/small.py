"""Engines over the small tokenizer, and walks through grammars."""

from functools import cache
from random import Random

import numpy as np

from graphs.step import Words
from stages.detokenizer.vocabulary import vocabulary_of
from stages.grammar.engines import Engines
from stages.grammar.guide import ThinkingTags
from stages.grammar.matchers.port import Matcher, Source
from stages.grammar.pool import CompiledGrammar
from stages.grammar.sources import constraint_source
from stages.grammar.tokens import grammar_tokens
from stages.messages import Constraint
from stages.tokenizer_file import AddedToken, TokenizerFile
from tests.small_tokenizer import SPECIAL, TAGS, ids, small_tokenizer, tag

EOS = tag("<|endoftext|>")
USER = tag("<|user|>")
OBSERVATION = tag("<|observation|>")
# Wider than the tokenizer, as models' logits are, and no multiple of 32.
VOCAB_SIZE = 601
THINKING = ThinkingTags(tag("<think>"), tag("</think>"), tag("<tool_call>"))


@cache
def engines() -> Engines:
    import json
    from pathlib import Path

    text = small_tokenizer().to_str()
    added = tuple(AddedToken(tag(name), name, name in SPECIAL) for name in (*SPECIAL, *TAGS))
    vocabulary = vocabulary_of(TokenizerFile(Path("tokenizer.json"), text, json.loads(text), added))
    eos_ids = frozenset({EOS, USER, OBSERVATION})
    return Engines(vocabulary, grammar_tokens(vocabulary, eos_ids, VOCAB_SIZE))


def compiled(constraint: Constraint) -> CompiledGrammar:
    return CompiledGrammar(constraint, load(constraint_source(constraint, engines().tokens)))


def load(source: Source) -> "object":
    engine = engines().of(source)
    return engine.load(source, engine.compile(source))


def begin(source: Source) -> Matcher:
    return load(source).start()  # type: ignore[attr-defined,no-any-return]


def allowed_ids(words: Words) -> list[int]:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return [int(index) for index in np.flatnonzero(bits)]


def next_ids(matcher: Matcher) -> list[int]:
    words = np.zeros(engines().tokens.num_words, np.int32)
    matcher.fill(words)
    size, ends = len(engines().tokens.pieces), engines().tokens.eos_ids
    return [token_id for token_id in allowed_ids(words) if token_id < size and token_id not in ends]


def accepts(source: Source, text: str) -> bool:
    """Whether the whole of a text, tags matched, is a sentence of a grammar."""
    matcher = begin(source)
    return all(matcher.accept(token_id) for token_id in ids(text)) and matcher.is_complete


def text_of(token_ids: list[int]) -> str:
    return engines().vocabulary.text(token_ids)


def random_walk(matcher: Matcher, random: Random, max_tokens: int = 200) -> list[int] | None:
    """Ids of a random sentence, or None where it is not over by max_tokens."""
    walked: list[int] = []
    for _ in range(max_tokens):
        choices = next_ids(matcher)
        if matcher.is_complete and (not choices or random.random() < 0.3):
            return walked
        walked.append(random.choice(choices))
        assert matcher.accept(walked[-1])
    return None
