"""Sentencepiece's and other tokenizers' ids become the library's own text, one by one and as a whole."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from stages.detokenizer.vocabulary import Vocabulary, open_vocabulary
from stages.prompt.segments import Marked
from stages.prompt.tokenizer import PromptTokenizer, open_prompt_tokenizer
from tests.small_tokenizer import CORPUS

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
text = st.text(alphabet=st.sampled_from("ab the Paris é你🙂 .\n"), max_size=20)


@cache
def made(kind: str) -> Tokenizer:
    tokenizer: Tokenizer
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
        trainer = trainers.UnigramTrainer(
            vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if kind == "llama":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            steps.append(decoders.Strip(" ", 1, 0))
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(steps)
        trainer = trainers.BpeTrainer(
            vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *BYTES], limit_alphabet=40, show_progress=False
        )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    if kind in ("llama", "gemma"):
        # Bytes are words of the model, not added tokens.
        spec = json.loads(tokenizer.to_str())
        spec["added_tokens"] = [each for each in spec["added_tokens"] if each["content"] not in BYTES]
        tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return tokenizer


@cache
def opened(kind: str) -> tuple[Vocabulary, PromptTokenizer]:
    with TemporaryDirectory() as folder:
        made(kind).save(str(Path(folder) / "tokenizer.json"))
        return open_vocabulary(folder), open_prompt_tokenizer(folder)


KINDS = ("llama", "gemma", "unigram", "wordpiece")


@pytest.mark.parametrize("kind", KINDS)
@given(text, text)
def test_an_answer_reads_behind_its_prompt_as_the_library_reads_both(kind: str, prompt: str, answer: str) -> None:
    vocabulary, _ = opened(kind)
    prompt_ids = made(kind).encode(f"a {prompt}", add_special_tokens=False).ids
    ids = made(kind).encode(answer, add_special_tokens=False).ids
    spell = vocabulary.spell_after(prompt_ids)
    spelled = b"".join(map(spell, ids)).decode("utf-8", "replace")
    before = made(kind).decode(prompt_ids, skip_special_tokens=False)
    assert before + spelled == made(kind).decode([*prompt_ids, *ids], skip_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@given(text)
def test_a_whole_text_is_the_librarys(kind: str, whole: str) -> None:
    ids = made(kind).encode(whole, add_special_tokens=False).ids
    assert opened(kind)[0].text(ids) == made(kind).decode(ids, skip_special_tokens=False)


def test_fallback_bytes_are_exact_where_the_library_gives_them_up() -> None:
    vocabulary, _ = opened("llama")
    ids = [made("llama").token_to_id(f"<0x{byte:02X}>") for byte in "你".encode()]
    assert b"".join(map(vocabulary.piece, ids)).decode() == "你"
    assert vocabulary.piece(ids[0]) == b"\xe4"


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@given(text, text)
def test_a_marked_prompt_has_the_ids_of_the_unmarked_one(kind: str, before: str, after: str) -> None:
    tokenizer = opened(kind)[1]
    mark = "\U000f0000"
    (plain,) = tokenizer.encode_marked([Marked(f"x{before}<|end|>{after}")])
    (marked,) = tokenizer.encode_marked([Marked(f"x{mark}{before}<|end|>{after}", mark)])
    assert plain == marked
    (broken,) = tokenizer.encode_marked([Marked(f"{before}<{mark}|end|>{after}", mark)])
    assert tokenizer.control_ids["<|end|>"] not in broken
