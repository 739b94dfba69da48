"""Stop patterns: regular expressions looked for in text that arrives in pieces, in linear time. Core.

Theory of operation. Python's own parser reads the pattern, so its syntax is that of `re`; what it reads becomes a
nondeterministic automaton, which is walked with all its states at once (Thompson's way). A character so costs at most
the size of the automaton, whatever the pattern and the text: there is no backtracking to blow up. What such an
automaton cannot do (backreferences, lookarounds, atomic groups) is refused by name, as is a pattern whose automaton is
too large, one that matches nothing at all, and one that waits for an end of a text that is still being written.

# Invariant: the match that ends first wins, and of those the one that starts first; it hangs on the text alone, not on
# the pieces it comes in.
"""

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from attrs import define, field, frozen

# A walk costs a fraction of a microsecond for each: what all patterns of a choice may cost for one character.
MAX_SIZE = 512
# Text held back at most for a match that has begun; `a.*b` would else hold all text from the first a.
MAX_HELD_CHARACTERS = 1024
MAX_OPENINGS = 1024
MATCH = 0

Accepts = Callable[[str], bool]
# Whether a position is right for what stands there; of the characters before and after it, "" for none.
Looks = Callable[[str, str], bool]


class PatternError(ValueError):
    """A pattern that is wrong or not served; the text says why."""


# ---------------------------------------------------------------------------------------------------------------------
# Characters and positions
# ---------------------------------------------------------------------------------------------------------------------


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[Any, tuple[Accepts, bool]] = {
    ops.CATEGORY_DIGIT: (str.isdecimal, True),
    ops.CATEGORY_NOT_DIGIT: (str.isdecimal, False),
    ops.CATEGORY_SPACE: (str.isspace, True),
    ops.CATEGORY_NOT_SPACE: (str.isspace, False),
    ops.CATEGORY_WORD: (_is_word, True),
    ops.CATEGORY_NOT_WORD: (_is_word, False),
}
# Four control characters are space to str.isspace and to re, but not to re in ASCII mode.
_UNICODE_ONLY_SPACES = "\x1c\x1d\x1e\x1f"


def _category(name: Any, flags: int) -> Accepts:
    test, wanted = _CATEGORIES[name]
    if not flags & re.ASCII:
        return test if wanted else lambda character: not test(character)
    return lambda character: (
        wanted is (character.isascii() and character not in _UNICODE_ONLY_SPACES and test(character))
    )


def _one(op: Any, argument: Any, flags: int) -> Accepts:
    """Return the test of one member of a set, in the case it is written in."""
    if op is ops.LITERAL:
        return chr(argument).__eq__
    if op is ops.RANGE:
        first, last = map(chr, argument)
        return lambda character: first <= character <= last
    return _category(argument, flags)


def _accepts(op: Any, argument: Any, flags: int) -> Accepts:
    if op is ops.LITERAL and not flags & re.IGNORECASE:
        return chr(argument).__eq__
    if op is ops.ANY:
        return (lambda character: True) if flags & re.DOTALL else "\n".__ne__
    members = argument if op is ops.IN else [(ops.LITERAL, argument)]
    tests = [_one(each, its, flags) for each, its in members if each is not ops.NEGATE]
    wanted = op is not ops.NOT_LITERAL and members[0][0] is not ops.NEGATE
    if not flags & re.IGNORECASE:
        return _remembered(lambda character: wanted is any(test(character) for test in tests))

    def in_any_case(character: str) -> bool:
        cases = {character, character.lower(), character.upper()}
        if flags & re.ASCII and not character.isascii():
            cases = {character}
        return wanted is any(test(case) for case in cases if len(case) == 1 for test in tests)

    return _remembered(in_any_case)


def _remembered(test: Accepts) -> Accepts:
    """Return a test that is made once for a character: a text has few, and each comes often."""
    return functools.lru_cache(maxsize=256)(test)


def _looks(where: Any, flags: int) -> Looks:
    if where is ops.AT_BEGINNING and flags & re.MULTILINE:
        return lambda before, after: before in ("", "\n")
    if where in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
        return lambda before, after: not before
    if where is ops.AT_END and flags & re.MULTILINE:
        return lambda before, after: after in ("", "\n")
    if where in (ops.AT_END, ops.AT_END_STRING):
        raise PatternError("$ and \\Z are not supported, but $ is with (?m): the text has no end while it is written")
    word = _category(ops.CATEGORY_WORD, flags)
    if where is ops.AT_BOUNDARY:
        return lambda before, after: word(before) is not word(after)
    return lambda before, after: word(before) is word(after) and bool(before or after)


# ---------------------------------------------------------------------------------------------------------------------
# Automata
# ---------------------------------------------------------------------------------------------------------------------


@define(eq=False)
class Node:
    """A state: it takes a character, looks at a position, or (with neither) is several states at once."""

    accepts: Accepts | None = None
    looks: Looks | None = None
    nexts: list[int] = field(factory=list)
    # The states behind nexts that take or look, or MATCH.
    leaves: tuple[int, ...] = ()


@frozen(eq=False)
class Program:
    """The automaton of a pattern; size is what a character can cost."""

    nodes: tuple[Node, ...]
    initial: tuple[int, ...]
    size: int
    # What each character makes of a text in which no match has begun; None where that hangs on what is before it.
    openings: dict[str, tuple[int, ...]] | None


_REFUSED = {
    ops.ASSERT: "lookarounds are",
    ops.ASSERT_NOT: "lookarounds are",
    ops.GROUPREF: "backreferences are",
    ops.GROUPREF_EXISTS: "conditional groups are",
    ops.ATOMIC_GROUP: "atomic groups are",
    ops.POSSESSIVE_REPEAT: "possessive quantifiers are",
}


@define(eq=False)
class _Builder:
    """Makes nodes from the back to the front, each with the node that comes after it."""

    nodes: list[Node] = field(factory=lambda: [Node()])
    num_tries: int = 0

    def sequence(self, items: Iterable[tuple[Any, Any]], flags: int, after: int) -> int:
        """Return the first node of items one after another."""
        for op, argument in reversed(list(items)):
            after = self._item(op, argument, flags, after)
        return after

    def _item(self, op: Any, argument: Any, flags: int, after: int) -> int:
        if op in _REFUSED:
            raise PatternError(f"{_REFUSED[op]} not supported")
        if op is ops.BRANCH:
            return self._node(Node(nexts=[self.sequence(branch, flags, after) for branch in argument[1]]))
        if op is ops.SUBPATTERN:
            _, added, dropped, items = argument
            return self.sequence(items, (flags | added) & ~dropped, after)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, items = argument
            return self._repeat(least, most, items, flags, after)
        if op is ops.AT:
            return self._node(Node(looks=_looks(argument, flags), nexts=[after]))
        return self._node(Node(accepts=_accepts(op, argument, flags), nexts=[after]))

    def _repeat(self, least: int, most: Any, items: Any, flags: int, after: int) -> int:
        if most is ops.MAXREPEAT:
            loop = self._node(Node())
            self.nodes[loop].nexts = [self.sequence(items, flags, loop), after]
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self._node(Node(nexts=[self.sequence(items, flags, after), end]))
        for _ in range(least):
            self._spend()
            after = self.sequence(items, flags, after)
        return after

    def _node(self, node: Node) -> int:
        self._spend()
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _spend(self) -> None:
        """Count what is made, also where it is nothing: `(){9999999}` must not take its time."""
        self.num_tries += 1
        if self.num_tries > MAX_SIZE:
            raise PatternError(_TOO_LARGE)

    def leaves(self, nexts: Sequence[int]) -> tuple[int, ...]:
        """Return what stands behind nodes that are several."""
        found: dict[int, None] = {}
        seen = set(nexts)
        todo = list(nexts)
        while todo:
            index = todo.pop()
            node = self.nodes[index]
            if index == MATCH or node.accepts is not None or node.looks is not None:
                found[index] = None
                continue
            todo.extend(each for each in node.nexts if each not in seen)
            seen.update(node.nexts)
        return tuple(found)


_TOO_LARGE = f"it needs an automaton of a size over {MAX_SIZE}; shorten it or its counted repeats"


@functools.lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Program:
    """Return the automaton of a pattern; raises PatternError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = parser.parse(pattern)
        if parsed.getwidth()[0] == 0:
            raise PatternError("it matches the empty string")
        builder = _Builder()
        first = builder.sequence(parsed, parsed.state.flags, MATCH)
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from None
    except RecursionError:
        raise PatternError("its groups are nested too deeply") from None
    initial = builder.leaves([first])
    size = len(initial)
    for node in builder.nodes[1:]:
        if node.accepts is not None or node.looks is not None:
            node.leaves = builder.leaves(node.nexts)
            size += len(node.leaves)
            if size > MAX_SIZE:
                raise PatternError(_TOO_LARGE)
    is_plain = all(builder.nodes[state].looks is None for state in initial)
    return Program(tuple(builder.nodes), initial, size, {} if is_plain else None)


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise PatternError for the first pattern that is wrong, not served, or too much with those before it."""
    size = 0
    for pattern in patterns:
        try:
            size += compile_pattern(pattern).size
            if size > MAX_SIZE:
                raise PatternError(f"all patterns need automata of a size over {MAX_SIZE}")
        except PatternError as error:
            raise PatternError(f"invalid stop_regex {pattern!r}: {error}") from None


# ---------------------------------------------------------------------------------------------------------------------
# The walk
# ---------------------------------------------------------------------------------------------------------------------


@define(eq=False)
class PatternCursor:
    """The states of a pattern's automaton after the text so far."""

    stop: str
    _program: Program
    # State -> where the match began that may come of it; the oldest first, and of two in one state the older.
    _threads: dict[int, int] = field(factory=dict, init=False)
    _position: int = field(default=0, init=False)
    _before: str = field(default="", init=False)

    @property
    def length(self) -> int:
        """How many characters of the text a match may still come to take in."""
        for start in self._threads.values():
            return min(self._position - start, MAX_HELD_CHARACTERS)
        return 0

    def find(self, text: str) -> tuple[int, int] | None:
        """Move over text and return where in it the first match ends and how long it is, or None."""
        origin = self._position
        for character in text:
            found = self._step(character)
            if found is not None:
                start, end = found
                self._threads = {}
                return end - origin, min(end - start, MAX_HELD_CHARACTERS)
            self._position += 1
            self._before = character
        return None

    def skip(self, text: str) -> None:
        """Move over text in which no match may end; one that begins there may end later."""
        for character in text:
            found = self._step(character)
            if found is not None:
                self._threads = {}
                # A match that only waited for what comes next has not taken the character: it may begin another.
                if found[1] == self._position and self._step(character) is not None:
                    self._threads = {}
            self._position += 1
            self._before = character

    def flush(self) -> tuple[int, int] | None:
        """Start anew; return a match that only waited for the text to end, as find does."""
        found = self._step("")
        self._threads = {}
        return None if found is None else (0, min(found[1] - found[0], MAX_HELD_CHARACTERS))

    def _step(self, character: str) -> tuple[int, int] | None:
        """Take a character, "" for the end, and return where a match starts and ends, or None."""
        openings = self._program.openings
        if openings is None or self._threads:
            ended = self._walk(character)
            if ended is not None:
                return ended, self._position
        else:
            opening = openings.get(character)
            if opening is None:
                self._walk(character)
                opening = tuple(self._threads)
                if len(openings) < MAX_OPENINGS:
                    openings[character] = opening
            if not opening:
                return None
            self._threads = dict.fromkeys(opening, self._position)
        matched = self._threads.pop(MATCH, None)
        return None if matched is None else (matched, self._position + 1)

    def _walk(self, character: str) -> int | None:
        """Move every state over a character; return the start of a match that only waited for what comes next."""
        nodes, position = self._program.nodes, self._position
        threads: dict[int, int] = {}
        looked: set[int] = set()
        for state, start in (*self._threads.items(), *((state, position) for state in self._program.initial)):
            todo = [state]
            while todo:
                state = todo.pop()
                node = nodes[state]
                if node.accepts is not None:
                    if character and node.accepts(character):
                        for after in node.leaves:
                            threads.setdefault(after, start)
                elif node.looks is None:
                    return start
                elif state not in looked:
                    looked.add(state)
                    if node.looks(self._before, character):
                        todo.extend(node.leaves)
        self._threads = threads
        return None


def pattern_cursor(pattern: str) -> PatternCursor:
    """Return the cursor of a pattern that check_patterns has let through."""
    return PatternCursor(pattern, compile_pattern(pattern))
