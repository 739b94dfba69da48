"""Segments: texts side by side are one piece, and nothing else changes."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stages.prompt.segments import Control, as_text, joined

segments = st.lists(st.text("ab", max_size=2) | st.sampled_from([Control("<a>"), Control("<b>")]))


@given(segments)
def test_joined_segments_hold_the_same_text_with_no_two_texts_side_by_side(parts: list[Control | str]) -> None:
    result = joined(parts)
    assert as_text(result) == as_text(parts)
    assert [part for part in result if isinstance(part, Control)] == [p for p in parts if isinstance(p, Control)]
    assert "" not in result
    assert not any(isinstance(one, str) and isinstance(two, str) for one, two in pairwise(result))
