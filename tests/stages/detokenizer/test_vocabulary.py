"""The bytes table and the incremental decoder equal the library's own decoding."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer import spelling as module
from stages.detokenizer.spelling import byte_characters
from stages.detokenizer.utf8 import Utf8
from stages.detokenizer.vocabulary import open_vocabulary
from stages.errors import CheckpointError
from tests.small_tokenizer import small_tokenizer, tag, write_small_tokenizer
from tests.stages.detokenizer.rows import vocabulary

all_ids = st.lists(st.integers(0, tag("<|video|>")), max_size=40)


@given(all_ids)
def test_text_of_any_ids_is_the_librarys(ids: list[int]) -> None:
    assert vocabulary().text(ids) == small_tokenizer().decode(ids, skip_special_tokens=False)


@given(all_ids)
def test_text_without_special_ids_is_the_librarys(ids: list[int]) -> None:
    kept = [token_id for token_id in ids if token_id not in vocabulary().special]
    assert vocabulary().text(kept) == small_tokenizer().decode(ids, skip_special_tokens=True)


def test_only_the_special_ones_of_the_added_tokens_are_hidden() -> None:
    assert tag("<|user|>") in vocabulary().special
    assert tag("</think>") not in vocabulary().special
    assert vocabulary().piece(tag("<|user|>")) == b"<|user|>"


def test_an_id_beyond_the_vocabulary_has_no_bytes() -> None:
    assert vocabulary().piece(10**6) == b""


def test_every_byte_has_its_own_character() -> None:
    assert len(set(byte_characters())) == 256
    assert byte_characters()[0x41] == "A"
    assert byte_characters()[0x20] == "Ġ"
    assert byte_characters()[0x0A] == "Ċ"


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_bytes_in_any_pieces_decode_as_the_whole(data: bytes, cuts: list[int]) -> None:
    decoder = Utf8()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    text = "".join(decoder.push(data[start:end]) for start, end in pairwise(edges))
    assert text + decoder.flush() == data.decode("utf-8", "replace")


def test_a_character_appears_whole_and_at_once() -> None:
    decoder = Utf8()
    assert [decoder.push(bytes([byte])) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_a_flush_starts_anew() -> None:
    decoder = Utf8()
    assert decoder.push(b"\xf0\x9f") == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.push(b"a") == "a"


def test_a_whole_folder_opens(tmp_path: Path) -> None:
    assert open_vocabulary(str(write_small_tokenizer(tmp_path))).pieces == vocabulary().pieces


def test_a_table_that_disagrees_with_the_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "byte_characters", lambda: tuple(reversed(byte_characters())))
    with pytest.raises(CheckpointError, match="decoder"):
        open_vocabulary(str(write_small_tokenizer(tmp_path)))
