"""Stop patterns: what `re` finds, found as the text arrives, in time that no pattern and no text can blow up."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.stop_patterns import (
    MAX_HELD_CHARACTERS,
    MAX_SIZE,
    PatternError,
    check_patterns,
    compile_pattern,
    pattern_cursor,
)

ITEMS = ["a", "b", "[ab]", "[^a]", ".", r"\w", r"\S", r"\d", "(?:ab|b)", "(?i:B)", r"\b", r"\B", "^", "(a|ba?)", "é"]
quantified = st.tuples(st.sampled_from(ITEMS), st.sampled_from(["", "", "", "+", "*", "?", "{2}", "{1,3}", "+?"]))
bodies = st.lists(
    quantified.map(lambda pair: pair[0] + ("" if pair[0] in (r"\b", r"\B", "^") else pair[1])), min_size=1, max_size=5
).map("".join)
patterns = st.one_of(bodies, st.tuples(bodies, bodies).map("|".join), bodies.map("(?i)".__add__)).filter(
    lambda pattern: re._parser.parse(pattern).getwidth()[0] > 0  # type: ignore[attr-defined]
)
texts = st.text("abBA1é \n", max_size=12)


def found(pattern: str, pieces: list[str]) -> tuple[int, int] | None:
    """Where the first match starts and ends in the joined pieces."""
    cursor = pattern_cursor(pattern)
    origin = 0
    for piece in pieces:
        if (match := cursor.find(piece)) is not None:
            return origin + match[0] - match[1], origin + match[0]
        origin += len(piece)
    match = cursor.flush()
    return None if match is None else (origin + match[0] - match[1], origin + match[0])


def searched(pattern: str, text: str) -> tuple[int, int] | None:
    """The match that ends first, and of those the one that starts first, by trying them all."""
    flags, body = (re.IGNORECASE, pattern[4:]) if pattern.startswith("(?i)") else (0, pattern)
    for end in range(1, len(text) + 1):
        # What follows the match counts for \\b, so the text is not cut: the end is asked for by a look ahead.
        ends_there = re.compile(rf"(?:{body})(?=[\s\S]{{{len(text) - end}}}\Z)", flags)
        for start in range(end):
            if ends_there.match(text, start) is not None:
                return start, end
    return None


@given(patterns, texts, st.data())
def test_it_finds_the_match_that_ends_first_whatever_the_pieces(pattern: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert found(pattern, pieces) == searched(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        (r"\d{3}-\d{4}", "call 555-1234 now", (5, 13)),
        (r"a+", "baaa", (1, 2)),
        (r"\bend\b", "bend ends end.", (10, 13)),
        (r"\bend\b", "the end", (4, 7)),
        (r"^end", "end", (0, 3)),
        (r"^end", "\nend", None),
        (r"(?m)^end$", "bend\nend\n", (5, 8)),
        (r"(?m)^end$", "bend\nends", None),
        (r"(?i)STOP", "please Stop", (7, 11)),
        (r"(?i:k)", "\u212a", (0, 1)),
        (r"(?ai)[^k]", "\u212a", (0, 1)),
        (r"(?s)a.b", "a\nb", (0, 3)),
        (r"a.b", "a\nb", None),
        (r"(?a)\w\s\d", "é 1\x1c2a 3", (5, 8)),
        (r"[^\W\d_]x", "1x_xéx", (4, 6)),
        (r"(?P<name>x){2,}?y", "xxxy", (0, 4)),
        (r"\N{SNOWMAN}|\u2603", "a☃", (1, 2)),
        (r"[\n]{2}", "a\n\nb", (1, 3)),
        (r"((a*)*)*b", "aaab", (0, 4)),
        (r"(?:^|\b|a)*b", "aab", (0, 3)),
    ],
)
def test_examples(pattern: str, text: str, match: tuple[int, int] | None) -> None:
    assert found(pattern, [text]) == found(pattern, list(text)) == match


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(a)\1", "backreferences are not supported"),
        (r"(?P<x>a)(?P=x)", "backreferences are not supported"),
        (r"a(?=b)", "lookarounds are not supported"),
        (r"(?<!b)a", "lookarounds are not supported"),
        (r"(a)?b(?(1)c|d)", "conditional groups are not supported"),
        (r"(?>a+)b", "atomic groups are not supported"),
        (r"a++b", "possessive quantifiers are not supported"),
        (r"a$", "$ and \\Z are not supported, but $ is with (?m)"),
        (r"a\Z", "$ and \\Z are not supported"),
        (r"a*", "it matches the empty string"),
        (r"\b", "it matches the empty string"),
        (r"a|", "it matches the empty string"),
        (r"(a", "missing ), unterminated subpattern"),
        (r"[z-a]", "bad character range z-a"),
        (r"x{99999999999999}", "the repetition number is too large"),
        (r"x{5000}", f"over {MAX_SIZE}"),
        (r"((x{60}){60}){60}", f"over {MAX_SIZE}"),
        (r"(){99999999}y", f"over {MAX_SIZE}"),
        (r"(x|(){60000}){60000}y", f"over {MAX_SIZE}"),
        (r"(x?){1000}y", f"over {MAX_SIZE}"),
    ],
)
def test_what_cannot_be_walked_is_refused_with_the_reason(pattern: str, words: str) -> None:
    with pytest.raises(PatternError) as caught:
        check_patterns((pattern,))
    assert str(caught.value).startswith(f"invalid stop_regex {pattern!r}: ")
    assert words in str(caught.value)


def test_deep_groups_and_doubtful_sets_are_no_failure() -> None:
    check_patterns(("(" * 60 + "x" + ")" * 60, "[[x]"))
    with pytest.raises(PatternError):
        check_patterns(("(" * 5000 + "x" + ")" * 5000,))


def test_all_patterns_of_a_request_share_one_size() -> None:
    check_patterns(("x" * 200,) * 2)
    with pytest.raises(PatternError, match="all patterns need automata"):
        check_patterns(("x" * 200,) * 3)


CATASTROPHES = [r"(a+)+b", r"(a|a)*b", r"(a*)*b", r"(.*)*x.*y", r"(a|aa)+b", r"(?m)(\w+\s?)+$b", r"(a?){20}a{20}b"]


@pytest.mark.parametrize("pattern", CATASTROPHES)
def test_no_pattern_costs_more_than_its_size_for_a_character(pattern: str) -> None:
    program = compile_pattern(pattern)
    num_tests = 0

    def counted(accepts: object) -> object:
        def count(character: str) -> bool:
            nonlocal num_tests
            num_tests += 1
            return bool(accepts(character))  # type: ignore[operator]

        return count

    kept = [node.accepts for node in program.nodes]
    try:
        for node in program.nodes:
            if node.accepts is not None:
                node.accepts = counted(node.accepts)  # type: ignore[assignment]
        cursor = pattern_cursor(pattern)
        for number in range(1, 3001):
            cursor.find("a")
            assert num_tests <= number * program.size
            assert cursor.length <= MAX_HELD_CHARACTERS
    finally:
        for node, accepts in zip(program.nodes, kept, strict=True):
            node.accepts = accepts


def test_a_match_longer_than_what_is_held_back_still_matches_and_its_held_part_is_cut() -> None:
    cursor = pattern_cursor("a.*b")
    assert cursor.find("a" + "x" * 5000) is None
    assert cursor.length == MAX_HELD_CHARACTERS
    assert cursor.find("b") == (1, MAX_HELD_CHARACTERS)
