"""One choice's token bytes taken apart by parsers of text. Core."""

from attrs import define, field, frozen

from stages.detokenizer.parsers.answer import Answer, Part, answer_of
from stages.detokenizer.parsers.port import TextReasoning, TextReasoningParser, TextToolParser
from stages.detokenizer.utf8 import Utf8
from stages.detokenizer.vocabulary import Vocabulary
from stages.messages import Submit, ToolGrammar


@frozen(eq=False)
class TextParsers:
    """The parsers, None where off, with the special tokens that each must see; its make gives fresh automata."""

    reasoning: TextReasoningParser | None
    tools: TextToolParser | None
    reasoning_tags: frozenset[int]
    tool_tags: frozenset[int]

    def make(self, submit: Submit) -> "TextParts":
        """Return a choice's automata; the one of reasoning runs, and counts, whether or not its text is told apart."""
        form = submit.form
        # A prompt whose beginning nobody knows leaves it to the format where reasoning begins.
        reasoning = self.reasoning.make(submit.in_reasoning) if self.reasoning is not None else None
        is_told_apart = form.parse_reasoning and reasoning is not None
        tools = None
        if self.tools is not None and form.parse_tools:
            tools = self.tools.make(form.tools, _must_call(submit))
        tags = (self.reasoning_tags if is_told_apart else frozenset()) | (self.tool_tags if tools else frozenset())
        markers = self.reasoning.markers if self.reasoning is not None else ()
        return TextParts(
            answer_of(reasoning if is_told_apart else None, markers, tools), reasoning, is_told_apart, tags
        )


@define(eq=False)
class TextParts:
    """Automata of one choice, and how many tokens were reasoning; `tags` are the special tokens they must see."""

    _answer: Answer
    _reasoning: TextReasoning | None
    _is_told_apart: bool
    tags: frozenset[int]
    num_reasoning: int = 0
    _characters: Utf8 = field(factory=Utf8, init=False)
    _counted: Utf8 = field(factory=Utf8, init=False)

    def take(self, shown: bytes, piece: bytes) -> list[Part]:
        """Move over a token, `shown` what its text shows of its bytes, and return what is decided of it."""
        reasoning = self._reasoning
        was_active = reasoning is not None and reasoning.active
        parts = self._answer.push(self._characters.push(shown))
        if reasoning is not None:
            if not self._is_told_apart:
                reasoning.push(self._counted.push(piece))
            self.num_reasoning += was_active or reasoning.active
        return parts

    def flush(self, rest: bytes = b"") -> list[Part]:
        """Return what was held back, at the end, behind bytes that no token is left for."""
        last = self._characters.push(rest) + self._characters.flush()
        return self._answer.push(last) + self._answer.flush()


def _must_call(submit: Submit) -> bool:
    grammar = submit.rules.grammar if submit.rules is not None else None
    return grammar is not None and isinstance(grammar.constraint, ToolGrammar) and grammar.constraint.is_required


def text_parsers(
    vocabulary: Vocabulary, reasoning: TextReasoningParser | None, tools: TextToolParser | None
) -> TextParsers:
    """Return the parsers with the special tokens of a vocabulary that are part of their markers."""
    return TextParsers(
        reasoning,
        tools,
        _tags(vocabulary, reasoning.markers if reasoning is not None else ()),
        _tags(vocabulary, tools.markers if tools is not None else ()),
    )


def _tags(vocabulary: Vocabulary, markers: tuple[str, ...]) -> frozenset[int]:
    return frozenset(
        token_id
        for text, token_id in vocabulary.added.items()
        if token_id in vocabulary.special and any(text in marker or marker in text for marker in markers)
    )
