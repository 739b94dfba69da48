"""Prompt tokenizer: ids of raw text and of segments."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import CheckpointError
from stages.prompt.segments import Control
from stages.prompt.tokenizer import PromptTokenizer, open_prompt_tokenizer
from tests.small_tokenizer import SPECIAL, TAGS, ids, small_tokenizer, tag, write_small_tokenizer

added_ids = {tag(text) for text in (*SPECIAL, *TAGS)}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    return open_prompt_tokenizer(str(write_small_tokenizer(tmp_path_factory.mktemp("model"))))


def test_raw_text_has_its_added_tokens_matched(tokenizer: PromptTokenizer) -> None:
    assert tokenizer.encode_texts(["a<|user|>b", ""]) == [ids("a<|user|>b"), ()]


@given(st.lists(st.text(max_size=5) | st.sampled_from([*SPECIAL, *TAGS])).map("".join))
def test_text_of_a_segment_is_never_an_added_token_and_survives_the_round_trip(
    tokenizer: PromptTokenizer, text: str
) -> None:
    (encoded,) = tokenizer.encode_segments([(text,)]) if text else ((),)
    assert added_ids.isdisjoint(encoded)
    assert small_tokenizer().decode(list(encoded), skip_special_tokens=False) == text


def test_segments_without_written_tags_are_the_ids_of_the_joined_text(tokenizer: PromptTokenizer) -> None:
    chats = [(Control("<|user|>"), "Hi there", Control("<think>")), (Control("<sop>"),), ("你好 42",)]
    expected = [ids("<|user|>Hi there<think>"), (tag("<sop>"),), ids("你好 42")]
    assert tokenizer.encode_segments(chats) == expected


def test_the_vocabulary_counts_the_added_tokens(tokenizer: PromptTokenizer) -> None:
    assert tokenizer.vocab_size == tag("<|video|>") + 1


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"model": {"vocab": []}, "decoder": {"type": "ByteLevel"}}),
        json.dumps({"model": {"vocab": {}}, "decoder": {"type": "Metaspace"}}),
        json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}, "decoder": {"type": "ByteLevel"}}),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        open_prompt_tokenizer(str(tmp_path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        open_prompt_tokenizer(str(tmp_path))
