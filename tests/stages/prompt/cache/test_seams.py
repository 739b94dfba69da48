"""Seams: a text's pieces have the ids of the whole, or the tokenizer is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.prompt.cache.seams import NotSeparable, Seams, check_parts, longest_of, seams_of
from stages.prompt.segments import Marked
from tests.small_tokenizer import small_tokenizer
from tests.stages.prompt.cache.kinds import KINDS, TOKENS, Spec, kind_of

MARK = "\U000f0000"
BETWEEN = (
    "a",
    " a",
    " ",
    "  ",
    "\n",
    "\n\n",
    "1",
    "e",
    "\u0301",
    "é",
    "你",
    "🙂",
    "'s",
    "▁",
    *"<t>b",
    "The weather",
    "{",
    "\u0338",
)
texts = st.lists(st.sampled_from([*TOKENS, *TOKENS, *BETWEEN]), max_size=12).map("".join)
marked_texts = st.lists(st.sampled_from([*TOKENS, *BETWEEN, f"<{MARK}|user|>", f"<{MARK}t>", MARK]), max_size=12)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=200)
@given(text=texts)
def test_the_ids_of_pieces_are_the_ids_of_the_whole(name: str, text: str) -> None:
    kind = kind_of(name)
    pieces = seams_of(kind.file).pieces(text)
    assert "".join(pieces) == text
    (whole,) = kind.tokenizer.encode_marked([Marked(text)])
    assert sum(kind.tokenizer.encode_marked([Marked(piece) for piece in pieces]), ()) == whole


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=100)
@given(parts=marked_texts)
def test_a_text_with_broken_control_texts_has_them_too(name: str, parts: list[str]) -> None:
    kind, text = kind_of(name), "".join(parts)
    (whole,) = kind.tokenizer.encode_marked([Marked(text, MARK)])
    pieces = seams_of(kind.file).pieces(text)
    assert sum(kind.tokenizer.encode_marked([Marked(piece, MARK) for piece in pieces]), ()) == whole


@pytest.mark.parametrize("name", KINDS)
def test_a_prompt_is_cut_before_every_token_that_is_found_first(name: str) -> None:
    pieces = seams_of(kind_of(name).file).pieces("x<s>The weather<s> is clear")
    assert pieces == ["x", "<s>The weather", "<s> is clear"]


def test_a_token_inside_of_a_longer_one_is_no_seam() -> None:
    seams = seams_of(kind_of("byte level").file)
    assert seams.pieces("a<t>b<t b") == ["a", "<t>b", "<t b"]
    assert seams.pieces("a>b<t>b") == ["a", ">b", "<t>b"]


def test_a_token_of_the_second_pass_gives_way_to_what_the_first_has_found() -> None:
    kind = kind_of("byte level, two passes")
    assert seams_of(kind.file).pieces("a<t>b</s>") == ["a", "<t", ">b", "</s>"]
    ids = kind.tokenizer.control_ids
    (found,) = kind.tokenizer.encode_marked([Marked("<t>b</s>")])
    assert found == (ids["<t"], ids[">b"], ids["</s>"])


def test_a_token_that_a_normalizer_may_undo_is_no_seam() -> None:
    """Its last sign and the stroke behind it become one character, and what was before it merges with its first."""
    kind, text = kind_of("composing, two passes"), '{"b>\u0338'
    (whole,) = kind.tokenizer.encode_marked([Marked(text)])
    assert sum(kind.tokenizer.encode_marked([Marked(text[:1]), Marked(text[1:])]), ()) != whole
    assert seams_of(kind.file).pieces(text) == [text]


def test_tokens_that_take_whitespace_on_their_left_are_no_seam() -> None:
    seams = seams_of(kind_of("takes whitespace").file)
    assert seams.pieces("a <|end|> b<|user|> c") == ["a <|end|> b", "<|user|> c"]


def test_with_a_normalizer_tokens_of_the_second_pass_are_no_seam() -> None:
    assert "<|user|>" not in seams_of(kind_of("composing, two passes").file).safe
    assert "<|user|>" in seams_of(kind_of("byte level, two passes").file).safe


def spec(**changes: Any) -> Spec:
    result: Spec = json.loads(small_tokenizer().to_str())
    return {**result, **changes}


def token(text: str, **flags: bool) -> Spec:
    return {"id": 0, "content": text, "special": True, "normalized": False, **flags}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"added_tokens": [token("<s>"), token("word", single_word=True)]}, "'word' matches as a whole word"),
        ({"added_tokens": [token("<s>", rstrip=True), token(" <b>")]}, "takes whitespace"),
        ({"added_tokens": [token("<s>", lstrip=True)]}, "no added token"),
        ({"added_tokens": [token("\n")]}, "no added token"),
        ({"added_tokens": []}, "no added token"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Odd"}]}}, "normalizer Odd"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Odd"}]}}, "pre_tokenizer Odd"),
        ({"model": {"type": "Odd", "vocab": {}}}, "model Odd"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}}, "draws lots"),
    ],
)
def test_what_cannot_be_shown_to_be_equal_is_refused(changes: Spec, reason: str) -> None:
    file = kind_of("byte level").file
    changed = type(file)(file.path, file.text, spec(**changes), file.added)
    with pytest.raises(NotSeparable, match=re.escape(reason)):
        seams_of(changed)


def test_a_template_of_segments_needs_no_seams_but_a_model_that_draws_no_lots() -> None:
    check_parts(spec(added_tokens=[]))
    with pytest.raises(NotSeparable):
        check_parts(spec(model={"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}))


@given(st.sets(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=8), st.text("ab<", max_size=8))
def test_the_pattern_of_tokens_matches_the_longest(texts: set[str], text: str) -> None:
    match = re.compile(longest_of(texts)).match(text)
    beginnings = [each for each in texts if text.startswith(each)]
    assert (match.group() if match else None) == max(beginnings, key=len, default=None)


def test_a_cut_inside_of_a_stretch_would_not_do() -> None:
    """Seams are needed: what stands between two tokens merges."""
    kind = kind_of("byte level")
    pieces = Seams((re.compile("eather"),), frozenset(["eather"])).pieces("The weather")
    (whole,) = kind.tokenizer.encode_marked([Marked("The weather")])
    assert pieces == ["The w", "eather"]
    assert sum(kind.tokenizer.encode_marked([Marked(piece) for piece in pieces]), ()) != whole
