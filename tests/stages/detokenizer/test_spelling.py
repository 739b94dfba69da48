"""Sentencepiece's and other tokenizers' ids become the library's own text, one by one and as a whole."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from stages.detokenizer.choice import Choice
from stages.detokenizer.decoding import decoding_of
from stages.detokenizer.vocabulary import Vocabulary, open_vocabulary
from stages.messages import Delta, Finish, TextForm, TokensRow
from stages.prompt.segments import Marked
from stages.prompt.tokenizer import PromptTokenizer, open_prompt_tokenizer
from tests.small_tokenizer import CORPUS
from tests.stages.detokenizer.rows import submit

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
        if kind == "odd":
            # What comes behind Fuse sees a whole text, so that no token has bytes of its own.
            steps.append(decoders.Replace("never", "ever"))
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
    if kind in ("llama", "gemma", "odd"):
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


KINDS = ("llama", "gemma", "unigram", "wordpiece", "odd")


def spelled_after(vocabulary: Vocabulary, prompt_ids: list[int], ids: list[int]) -> str:
    speller = vocabulary.spell_after(prompt_ids)
    return (b"".join(map(speller.take, ids)) + speller.rest()).decode("utf-8", "replace")


@pytest.mark.parametrize("kind", KINDS)
@given(text, text)
def test_an_answer_reads_behind_its_prompt_as_the_library_reads_both(kind: str, prompt: str, answer: str) -> None:
    vocabulary, _ = opened(kind)
    prompt_ids = made(kind).encode(f"a {prompt}", add_special_tokens=False).ids
    ids = made(kind).encode(answer, add_special_tokens=False).ids
    spelled = spelled_after(vocabulary, prompt_ids, ids)
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


def byte_ids(data: bytes) -> list[int]:
    return [made("odd").token_to_id(f"<0x{byte:02X}>") for byte in data]


@given(st.text(alphabet="你🙂éa", min_size=1, max_size=30), st.text(alphabet="你🙂éa", max_size=30))
def test_bytes_that_the_library_spells_are_said_when_their_character_is_whole(prompt: str, answer: str) -> None:
    speller = opened("odd")[0].spell_after(byte_ids(prompt.encode()))
    pieces = [speller.take(token_id) for token_id in byte_ids(answer.encode())]
    assert b"".join(pieces).decode() == answer
    assert [piece.decode() for piece in pieces if piece] == list(answer)
    assert speller.rest() == b""


@given(st.text(alphabet="你🙂é", max_size=9), st.text(alphabet="你🙂é", min_size=4, max_size=9))
def test_a_byte_that_is_no_characters_leaves_those_behind_it_readable(before: str, behind: str) -> None:
    speller = opened("odd")[0].spell_after(byte_ids(b"a"))
    ids = byte_ids(before.encode() + b"\xff" + behind.encode())
    said = b"".join(map(speller.take, ids)).decode()
    assert said.startswith(f"{before}\ufffd")
    assert said.endswith(behind[3:])


def test_an_answer_cut_inside_a_character_ends_with_the_librarys_sign_for_it() -> None:
    prompt, *ids = byte_ids("a你".encode())
    speller = opened("odd")[0].spell_after([prompt])
    assert [speller.take(token_id) for token_id in ids[:2]] == [b"", b""]
    assert speller.rest().decode() == "\ufffd" * 2
    assert speller.take(ids[2]).decode() == "你"


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


@pytest.mark.parametrize("reasoning", [None, "qwen3"])
def test_an_answers_last_open_character_is_in_its_text_and_in_whichever_part_it_stands(reasoning: str | None) -> None:
    prompt, *ids = byte_ids("a你".encode())
    form = TextForm(parse_reasoning=reasoning is not None)
    asked = submit(form, prompt_ids=(prompt,), in_reasoning=True)
    choice = Choice(asked, decoding_of(opened("odd")[0], reasoning, None, reads_ids=False))
    events = choice.take(TokensRow(asked, tuple(ids[:2]), finish=Finish("length")))
    said = [(event.reasoning, event.text) for event in events if isinstance(event, Delta)]
    assert said == [("\ufffd\ufffd", "") if reasoning else ("", "\ufffd\ufffd")]
