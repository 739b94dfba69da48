"""One choice's rules from its first token to its last: what may come next. Core.

    THINKING --</think>--> FREE --<tool_call>--> HELD --end token--> ENDED
        |                    ^ where calls may come and need not
        +--</think>--> HELD   with any other grammar
        +--</think>--> OPEN   without one

Theory of operation. A grammar holds the answer, never the thinking before it: the matcher begins with the token after
`</think>`, or with the `<tool_call>` that ends thinking or text as well. Without thinking it begins at once. While a
grammar waits that must be followed, whatever would end the answer before it began is ruled out: the end tokens,
`<eop>`, and for a grammar of text `<tool_call>`.

The thinking budget counts the tokens generated inside the block, and those a prompt holds after its open `<think>`,
where a turn is continued; when it is used up only `</think>` may come. It concerns the block the prompt leaves open,
no later one.

JSON may be laid out with white space as one likes, but not with nothing else for long: after MAX_BLANK_TOKENS tokens of
it in a row one that is more must come, where any may. A model that has nothing to say could go on like that for ever.

End tokens may come when the grammar is complete, and not before min_new_tokens; allowed_token_ids narrows what is
left. Where that leaves nothing, the end tokens may come: an answer that nothing can continue has ended. Without end
tokens it is complete, if its grammar is.

# Invariant: a Guide holds no reference to its Submit, whose life is its own.
"""

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache

import numpy as np
from attrs import define, field, frozen

from graphs.step import Words
from stages.errors import EngineFailure
from stages.grammar.matchers.port import Matcher
from stages.grammar.tokens import GrammarTokens
from stages.messages import Constraint, Rules, Submit, TextGrammar, ToolGrammar

# As many tokens as no answer has.
UNLIMITED = 1 << 30
# More than any layout of JSON takes: a line's end and its indentation are a token or two.
MAX_BLANK_TOKENS = 4
STRICT_THINKING = ("<eop>", "</tool_call>")


class Phase(Enum):
    """Where in its answer a choice stands."""

    THINKING = "thinking"
    FREE = "text that a call may end"
    HELD = "held to the grammar"
    OPEN = "held to no grammar"
    ENDED = "after the end token"


@frozen
class ThinkingTags:
    """The tags of the reasoning parser."""

    open_id: int
    close_id: int
    call_id: int


@frozen(eq=False)
class Allowed:
    """What may come next, as in stages.messages.Mask."""

    words: Words | None = None
    num_free: int = 0
    is_complete: bool = False


@frozen
class _Place:
    """Where a choice stood before a token."""

    phase: Phase
    num_generated: int
    num_thinking: int
    num_matched: int


@define(eq=False)
class Guide:
    """The rules of one choice and how far it has come; matcher is a fresh one of its grammar."""

    tokens: GrammarTokens
    rules: Rules
    matcher: Matcher | None
    tags: ThinkingTags | None
    stop_ids: frozenset[int]
    place: _Place
    # The places at which a token changed the phase, oldest first.
    _turns: list[_Place] = field(factory=list, init=False)
    # For each token of JSON whether it was white space and nothing else.
    _blanks: bytearray = field(factory=bytearray, init=False)
    _stops: Words = field(init=False)
    _listed: Words | None = field(init=False)
    _thoughts: Words | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._stops = self.tokens.mask_of(self.stop_ids)
        listed = self.rules.allowed_token_ids
        self._listed = self.tokens.mask_of(listed) if listed is not None else None

    @property
    def constraint(self) -> Constraint | None:
        """Return what the answer is held to."""
        return self.rules.grammar.constraint if self.rules.grammar is not None else None

    @property
    def num_generated(self) -> int:
        """Return the tokens accepted so far."""
        return self.place.num_generated

    def accept(self, token_ids: Iterable[int]) -> None:
        """Move over generated tokens; raises EngineFailure for one that was ruled out, TooComplex."""
        for token_id in token_ids:
            self._accept(token_id)

    def _accept(self, token_id: int) -> None:
        before = self.place
        phase, thinking, matched = before.phase, before.num_thinking, before.num_matched
        if phase is Phase.THINKING:
            phase, is_matched = self._after_thought(token_id)
            thinking += phase is Phase.THINKING
            matched += is_matched
        elif phase is Phase.FREE and self.tags is not None and token_id == self.tags.call_id:
            phase, matched = Phase.HELD, matched + 1
        elif phase is Phase.HELD:
            assert self.matcher is not None
            if token_id in self.stop_ids and self.matcher.is_complete:
                phase = Phase.ENDED
            else:
                matched += 1
        if matched > before.num_matched:
            # Invariant: a token that comes here was allowed by the mask before it.
            assert self.matcher is not None
            if not self.matcher.accept(token_id):
                raise EngineFailure(f"token {token_id} came, which the grammar had ruled out")
        if phase is Phase.HELD and before.phase is Phase.HELD and _is_json(self.constraint):
            self._blanks.append(token_id in _blank_ids(self.tokens))
        if phase is not before.phase:
            self._turns.append(before)
        self.place = _Place(phase, before.num_generated + 1, thinking, matched)

    def _after_thought(self, token_id: int) -> tuple[Phase, bool]:
        """Return the phase after a token of thinking, and whether the matcher takes it."""
        assert self.tags is not None
        if token_id == self.tags.close_id:
            return answer_phase(self.constraint), False
        if token_id != self.tags.call_id:
            return Phase.THINKING, False
        if self.constraint is None:
            return Phase.OPEN, False
        if isinstance(self.constraint, TextGrammar):
            raise EngineFailure("a tool call came before an answer that is held to a grammar")
        return Phase.HELD, True

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens, as if they had never come."""
        target = self.place.num_generated - num_tokens
        matched = self.place.num_matched
        while self._turns and self._turns[-1].num_generated >= target:
            self.place = self._turns.pop()
        place = self.place
        back = place.num_generated - target
        self.place = _Place(
            place.phase,
            target,
            place.num_thinking - back * (place.phase is Phase.THINKING),
            place.num_matched - back * (place.phase is Phase.HELD),
        )
        if matched > self.place.num_matched and self.matcher is not None:
            self.matcher.rollback(matched - self.place.num_matched)
        del self._blanks[self.place.num_matched :]

    def allowed(self) -> Allowed:
        """Return what may come next; raises EngineFailure where nothing can, TooComplex."""
        phase = self.place.phase
        if phase is Phase.ENDED:
            return Allowed(is_complete=True)
        if phase is Phase.THINKING and self._thoughts_left() <= 0:
            assert self.tags is not None
            return Allowed(self.tokens.mask_of((self.tags.close_id,)))
        is_short = self.num_generated < self.rules.min_new_tokens
        words = self._grammar_words()
        if words is None and not is_short and self._listed is None:
            return Allowed(num_free=self._num_free())
        return self._ruled(words if words is not None else self.tokens.whole(), is_short)

    def _grammar_words(self) -> Words | None:
        """Return what the phase allows by itself, as an array of its own, or None for anything."""
        if self.place.phase is Phase.THINKING and self._must_be_followed():
            if self._thoughts is None:
                self._thoughts = self.tokens.whole() & ~self._ends_of_thinking()
            return self._thoughts.copy()
        if self.place.phase is not Phase.HELD:
            return None
        assert self.matcher is not None
        words = np.zeros(self.tokens.num_words, np.int32)
        self.matcher.fill(words)
        # The engine's own end tokens are not text; those of the choice come in when the text may end.
        words &= _text_words(self.tokens)
        if self.matcher.is_complete:
            words |= self._stops
        if self._blanks.endswith(b"\1" * MAX_BLANK_TOKENS):
            inked = words & ~_blank_words(self.tokens)
            return inked if inked.any() else words
        return words

    def _ruled(self, words: Words, is_short: bool) -> Allowed:
        if is_short:
            words &= ~self._stops
        if self._listed is not None:
            words &= self._listed
        if words.any():
            return Allowed(words)
        if self.stop_ids:
            return Allowed(self._stops)
        if self.matcher is None or self.matcher.is_complete:
            return Allowed(is_complete=True)
        raise EngineFailure("nothing can follow: the grammar and allowed_token_ids leave no token")

    def _num_free(self) -> int:
        """Return how many tokens may come unseen where any token may."""
        if self.place.phase is Phase.OPEN:
            return UNLIMITED
        # A <tool_call> begins what is held, so what comes after any token must be seen.
        num_unseen = 1 if self.matcher is not None else UNLIMITED
        return min(num_unseen, self._thoughts_left()) if self.place.phase is Phase.THINKING else num_unseen

    def _thoughts_left(self) -> int:
        budget = self.rules.thinking_budget_tokens
        return UNLIMITED if budget is None else budget - self.place.num_thinking

    def _must_be_followed(self) -> bool:
        constraint = self.constraint
        return isinstance(constraint, TextGrammar) or (isinstance(constraint, ToolGrammar) and constraint.is_required)

    def _ends_of_thinking(self) -> Words:
        """Return what would end an answer, or begin another one than its grammar's, while it thinks."""
        ends = {self.tokens.added[text] for text in STRICT_THINKING if text in self.tokens.added}
        if isinstance(self.constraint, TextGrammar) and self.tags is not None:
            ends.add(self.tags.call_id)
        return self.tokens.mask_of(ends | self.stop_ids | self.tokens.eos_ids)


@lru_cache(maxsize=4)
def _text_words(tokens: GrammarTokens) -> Words:
    """Return every token but the end tokens; shared, so nobody may change it."""
    return tokens.whole() & ~tokens.mask_of(tokens.eos_ids)


@lru_cache(maxsize=4)
def _blank_ids(tokens: GrammarTokens) -> frozenset[int]:
    """Return the tokens that are white space and nothing else."""
    return frozenset(token_id for token_id, piece in enumerate(tokens.pieces) if piece and not piece.strip(b" \t\r\n"))


@lru_cache(maxsize=4)
def _blank_words(tokens: GrammarTokens) -> Words:
    """Return the mask of those tokens; shared, so nobody may change it."""
    return tokens.mask_of(_blank_ids(tokens))


def _is_json(constraint: Constraint | None) -> bool:
    return isinstance(constraint, TextGrammar) and constraint.kind in ("json_schema", "json_object")


def open_guide(submit: Submit, tokens: GrammarTokens, tags: ThinkingTags | None, matcher: Matcher | None) -> Guide:
    """Return the Guide of a choice that has no tokens yet; matcher is a fresh one of its grammar."""
    rules = submit.rules or Rules()
    constraint = rules.grammar.constraint if rules.grammar is not None else None
    # A grammar that does not wait takes the first token, thinking or not.
    waits = not (isinstance(constraint, TextGrammar) and not constraint.after_reasoning)
    thinks = submit.in_reasoning and tags is not None and waits
    num_thinking = 0
    if thinks and rules.thinking_budget_tokens is not None:
        num_thinking = _num_thoughts(submit.prompt_ids, tags)
    phase = Phase.THINKING if thinks else answer_phase(constraint)
    return Guide(tokens, rules, matcher, tags, submit.stop_token_ids, _Place(phase, 0, num_thinking, 0))


def answer_phase(constraint: Constraint | None) -> Phase:
    """Return where an answer begins once there is no thinking before it."""
    if constraint is None:
        return Phase.OPEN
    return Phase.FREE if isinstance(constraint, ToolGrammar) and not constraint.is_required else Phase.HELD


def _num_thoughts(prompt_ids: tuple[int, ...], tags: ThinkingTags | None) -> int:
    """Return the tokens of a prompt after its last `<think>`."""
    assert tags is not None
    for num_after, token_id in enumerate(reversed(prompt_ids)):
        if token_id == tags.open_id:
            return num_after
    return 0
