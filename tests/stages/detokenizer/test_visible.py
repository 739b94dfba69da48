"""The visible answer: blanks held back around tool calls, exact text everywhere else."""

from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.stops import stop_finder
from stages.detokenizer.visible import Blanks, Visible

pieces = st.lists(st.text("a é\n", max_size=4), max_size=10)


@given(pieces)
def test_without_calls_the_text_is_all_there_and_trailing_blanks_come_last(texts: list[str]) -> None:
    blanks = Blanks()
    shown = [blanks.push(text) for text in texts]
    assert all(text == text.rstrip() for text in shown)
    assert "".join(shown) + blanks.flush() == "".join(texts)


@given(pieces, pieces)
def test_a_call_takes_the_blanks_before_it_and_the_blanks_alone_after_it(before: list[str], after: list[str]) -> None:
    blanks = Blanks()
    shown = "".join(blanks.push(text) for text in before)
    blanks.begin_call()
    rest = "".join(blanks.push(text) for text in after) + blanks.flush()
    assert shown == "".join(before).rstrip()
    assert rest == ("".join(after) if "".join(after).strip() else "")


@given(pieces, st.sampled_from(["a", " a", "\n", "é\n", "zz"]))
def test_text_is_cut_at_the_stop_with_its_blanks_kept(texts: list[str], stop: str) -> None:
    visible = Visible(stop_finder((stop,), keep_stop=False), Blanks())
    shown = "".join(visible.push(text.encode()) for text in texts) + visible.flush()
    assert shown == "".join(texts).split(stop)[0]
    assert visible.matched == (stop if stop in "".join(texts) else None)
