"""Stop strings: what is shown, what is held back, and what matches, for text in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.detokenizer.stops import stop_finder
from stages.stop_patterns import MAX_HELD_CHARACTERS

letters = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple)


def shown(stops: tuple[str, ...], pieces: list[str], keep_stop: bool = False) -> tuple[list[str], str | None]:
    finder = stop_finder(stops, keep_stop)
    texts = [finder.push(piece) for piece in pieces]
    return ([*texts, finder.flush()] if finder.matched is None else texts), finder.matched


@given(stop_lists, st.lists(st.text("abc", max_size=4), max_size=12), st.booleans())
def test_it_is_the_search_of_the_text_so_far_after_every_piece(
    stops: tuple[str, ...], pieces: list[str], keep_stop: bool
) -> None:
    texts, matched = shown(stops, pieces, keep_stop)
    seen = ""
    for number, piece in enumerate(pieces):
        seen += piece
        found = next((stop for stop in stops if stop in seen), None)
        if found is not None:
            cut = seen.index(found) + (len(found) if keep_stop else 0)
            assert ("".join(texts), matched) == (seen[:cut], found)
            return
        held = seen[len("".join(texts[: number + 1])) :]
        longest = max(
            (length for stop in stops for length in range(len(stop)) if length and seen.endswith(stop[:length])),
            default=0,
        )
        assert len(held) == longest
    assert ("".join(texts), matched) == (seen, None)


@given(stop_lists, st.lists(st.text("abc", max_size=4), max_size=12), st.integers(0, 12), st.booleans())
def test_while_it_heeds_no_stop_one_that_ends_later_counts_wherever_it_began(
    stops: tuple[str, ...], pieces: list[str], num_unheeded: int, keep_stop: bool
) -> None:
    finder = stop_finder(stops, keep_stop)
    texts, seen = "", ""
    for number, piece in enumerate(pieces):
        finder.heeds = number >= num_unheeded
        texts += finder.push(piece)
        ends = range(len(seen) + 1, len(seen) + len(piece) + 1)
        seen += piece
        found = [(stop, end) for stop in stops for end in ends if finder.heeds and seen[:end].endswith(stop)]
        if found:
            stop, end = found[0]
            assert (texts, finder.matched) == (seen[: end if keep_stop else end - len(stop)], stop)
            return
        assert seen.startswith(texts)
    assert (texts + finder.flush(), finder.matched) == (seen, None)


@pytest.mark.parametrize(
    ("pattern", "pieces", "num_unheeded", "expected"),
    [
        ("b+", ["ab", "a", "ab"], 1, "abaa"),
        ("a.c", ["abc", "aa", "bc"], 2, "abca"),
        ("a.c", ["ab", "c"], 1, ""),
        (r"x\b", ["x", "-x", "-"], 2, "x-"),
        # The dash says that x was a match, which is not heeded, and begins another.
        (r"x\b|-a", ["x", "-", "a"], 2, "x"),
    ],
)
def test_a_pattern_that_ends_after_what_is_not_heeded_stops(
    pattern: str, pieces: list[str], num_unheeded: int, expected: str
) -> None:
    finder = stop_finder((), False, (pattern,))
    texts = ""
    for number, piece in enumerate(pieces):
        finder.heeds = number >= num_unheeded
        texts += finder.push(piece)
    finder.heeds = len(pieces) >= num_unheeded
    assert (texts + finder.flush(), finder.matched) == (expected, pattern)


def test_a_pattern_that_waits_for_the_end_of_a_text_that_is_not_heeded_does_not_stop() -> None:
    finder = stop_finder((), False, (r"b\b",))
    finder.heeds = False
    assert finder.push("ab") + finder.flush() == "ab"
    assert finder.matched is None


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "matched"),
    [
        (("END",), ["alpha E", "N", "D beta"], ["alpha ", "", ""], "END"),
        (("END",), ["alpha E", "N", "T"], ["alpha ", "", "ENT", ""], None),
        (("aab",), ["aa", "ab"], ["", "a"], "aab"),
        (("b", "a"), ["ab"], ["a"], "b"),
        (("b", "ab"), ["ab"], ["a"], "b"),
        (("",), ["a"], ["a", ""], None),
        (("beta!!",), ["beta!"], ["", "beta!"], None),
        (("x",), ["ax", "y"], ["a", ""], "x"),
    ],
)
def test_examples(stops: tuple[str, ...], pieces: list[str], expected: list[str], matched: str | None) -> None:
    assert shown(stops, pieces) == (expected, matched)


@pytest.mark.parametrize(
    ("patterns", "pieces", "expected", "kept", "matched"),
    [
        ((r"\d+!",), ["a 1", "2", "! b"], ["a ", "", ""], "a 12!", r"\d+!"),
        ((r"\d+!",), ["a 1", "2", "? b"], ["a ", "", "12? b", ""], "a 12? b", None),
        ((r"\n\n",), ["a\n", "b\n\nc"], ["a", "\nb"], "a\nb\n\n", r"\n\n"),
        (("x+",), ["xxx"], [""], "x", "x+"),
        ((r"\bend\b",), ["the end", "s", " end", "."], ["the ", "ends", " ", ""], "the ends end", r"\bend\b"),
        ((r"\bend\b",), ["the end"], ["the ", ""], "the end", r"\bend\b"),
        (("b", "ab"), ["xab"], ["xa"], "xab", "b"),
        (("",), ["a"], ["a", ""], "a", None),
    ],
)
def test_patterns_are_held_back_and_cut_as_strings_are(
    patterns: tuple[str, ...], pieces: list[str], expected: list[str], kept: str, matched: str | None
) -> None:
    for keep_stop in (False, True):
        finder = stop_finder((), keep_stop, patterns)
        texts = [finder.push(piece) for piece in pieces]
        texts = texts if finder.matched is not None else [*texts, finder.flush()]
        assert finder.matched == matched
        assert "".join(texts) == (kept if keep_stop else "".join(expected))
        if not keep_stop:
            assert texts[: len(expected)] == expected
            assert not any(texts[len(expected) :])


def test_of_a_string_and_a_pattern_completed_by_one_token_the_string_wins() -> None:
    finder = stop_finder(("c",), keep_stop=False, patterns=("a",))
    assert (finder.push("abc"), finder.matched) == ("ab", "c")


def test_a_possible_match_holds_back_no_more_than_its_bound() -> None:
    finder = stop_finder((), keep_stop=False, patterns=("a.*z",))
    shown = "".join(finder.push("a" + "x" * 9) for _ in range(500))
    assert len(shown) == 5000 - MAX_HELD_CHARACTERS
    assert finder.push("yzy") == "xx"
    assert finder.matched == "a.*z"


def test_a_flush_starts_anew() -> None:
    finder = stop_finder(("ab",), keep_stop=False)
    assert finder.push("a") == ""
    assert finder.flush() == "a"
    assert finder.push("b") == "b"
    assert finder.matched is None
