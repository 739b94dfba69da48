"""Tokenizers of every kind that checkpoints have, small; each differs in what it does where two texts meet."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import frozen
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from stages.prompt.tokenizer import PromptTokenizer, build_prompt_tokenizer
from stages.tokenizer_file import TokenizerFile, read_tokenizer_file
from tests.small_tokenizer import CORPUS, small_tokenizer

Spec = dict[str, Any]
TOKENS = ("<s>", "</s>", "<|user|>", "<|end|>", "<t", "<t>", ">b", "[INST]", '"b>')


def _spec(tokenizer: Tokenizer) -> Spec:
    spec: Spec = json.loads(tokenizer.to_str())
    return spec


def _sentencepiece(scheme: str, *, splits: bool) -> Spec:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=splits)
    trainer = trainers.BpeTrainer(vocab_size=220, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TOKENS])
    return _spec(tokenizer)


def _with_first_blank() -> Spec:
    """One that has its blanks from normalizers, before each stretch of text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=220, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TOKENS])
    return _spec(tokenizer)


def _unigram() -> Spec:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False, max_piece_length=4
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in TOKENS])
    return _spec(tokenizer)


def _byte_level(normalized: tuple[str, ...] = (), takes: Mapping[str, str] | None = None, **changes: Any) -> Spec:
    """The small tokenizer with TOKENS added, some found in a second pass, some that take whitespace."""
    tokenizer = Tokenizer.from_str(small_tokenizer().to_str())
    for text in TOKENS:
        strip = {takes[text]: True} if takes and text in takes else {}
        tokenizer.add_tokens([AddedToken(text, normalized=text in normalized, **strip)])
    return {**_spec(tokenizer), **changes}


KINDS = {
    "byte level": lambda: _byte_level(),
    "byte level, two passes": lambda: _byte_level(normalized=("</s>", "<|user|>", "<t>")),
    "composing, two passes": lambda: _byte_level(normalized=("</s>", "<|user|>", '"b>'), normalizer={"type": "NFC"}),
    "takes whitespace": lambda: _byte_level(takes={"<|user|>": "rstrip", "<|end|>": "lstrip", "</s>": "rstrip"}),
    "blank before the first": lambda: _sentencepiece("first", splits=True),
    "blank before each": lambda: _sentencepiece("always", splits=True),
    "whole stretches": lambda: _sentencepiece("first", splits=False),
    "blanks by normalizers": _with_first_blank,
    "unigram": _unigram,
}


@frozen(eq=False)
class Kind:
    """One kind: the file and the tokenizer built of it."""

    file: TokenizerFile
    tokenizer: PromptTokenizer


@cache
def kind_of(name: str) -> Kind:
    return built(KINDS[name]())


def built(spec: Spec) -> Kind:
    with TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(json.dumps(spec))
        file = read_tokenizer_file(folder)
    return Kind(file, build_prompt_tokenizer(file))
