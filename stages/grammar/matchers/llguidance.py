"""llguidance: any JSON schema it can follow wholly, regular expressions, and Lark; it refuses what it does not know.

Every step has a budget of work, so a pattern that would take for ever ends its own choice instead. A compiled grammar
cannot be carried from one process to another: a worker tries the text out, and this process reads it again.
"""

from typing import TYPE_CHECKING, Any

from attrs import frozen

from graphs.step import Words
from stages.grammar.matchers.port import GrammarRefused, Matcher, Source, TooComplex
from stages.grammar.tokens import GrammarTokens

if TYPE_CHECKING:
    import llguidance

# White space between two parts of JSON: enough for any layout, and no endless answer of blanks.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,128}"
# One spelling of every string, so that no key comes twice under two names: "\u0061" is "a" again.
ESCAPES = '"\\bfnrt'
# What a template and its matchers keep, beside a multiple of the grammar's own text.
TEMPLATE_BYTES = 1 << 16
BYTES_PER_LETTER = 64
OUTGROWN = "the grammar became too complex to follow"


@frozen(eq=False)
class LlguidanceEngine:
    """llguidance over one vocabulary."""

    tokens: GrammarTokens
    tokenizer: "llguidance.LLTokenizer"

    def compile(self, source: Source) -> bytes:
        """Return nothing, after trying a source and its first mask; raises GrammarRefused."""
        matcher = LlguidanceMatcher(self._matcher(source))
        try:
            matcher.fill(self.tokens.mask_of(()))
        except TooComplex as error:
            raise GrammarRefused(str(error)) from None
        return b""

    def load(self, source: Source, compiled: bytes) -> "LlguidanceTemplate":
        """Return the template of a source."""
        return LlguidanceTemplate(self._matcher(source), TEMPLATE_BYTES + BYTES_PER_LETTER * len(source.text))

    def _matcher(self, source: Source) -> "llguidance.LLMatcher":
        import llguidance

        try:
            grammar = _grammar(source)
        except ValueError as error:
            raise GrammarRefused(str(error)) from None
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarRefused(_reason(matcher.get_error()))
        return matcher


@frozen(eq=False)
class LlguidanceTemplate:
    """A matcher that has not begun."""

    matcher: "llguidance.LLMatcher"
    size_bytes: int

    def start(self) -> Matcher:
        """Return a matcher at the beginning."""
        return LlguidanceMatcher(self.matcher.deep_copy())


@frozen(eq=False)
class LlguidanceMatcher:
    """One text's place in an llguidance grammar."""

    matcher: "llguidance.LLMatcher"

    def fill(self, words: Words) -> None:
        """Write the mask of what may come next; raises TooComplex."""
        self.matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()

    def accept(self, token_id: int) -> bool:
        """Move over a token, or stay and return False; raises TooComplex."""
        num_taken = self.matcher.try_consume_tokens([token_id])
        self._check()
        return num_taken == 1

    @property
    def is_complete(self) -> bool:
        """Return whether the text may end here."""
        return self.matcher.is_accepting()

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest accepted tokens."""
        self.matcher.rollback(num_tokens)

    def fork(self) -> "LlguidanceMatcher":
        """Return a matcher of its own at the same place."""
        return LlguidanceMatcher(self.matcher.deep_copy())

    def _check(self) -> None:
        if self.matcher.is_error():
            raise TooComplex(f"{OUTGROWN}: {_reason(self.matcher.get_error())}")


class _Pieces:
    """A vocabulary in the form the library's wrapper asks for; text is never tokenized here."""

    bos_token_id = None

    def __init__(self, tokens: GrammarTokens) -> None:
        self.tokens = list(tokens.pieces)
        self.eos_token_id = min(tokens.eos_ids)
        self.special_token_ids = sorted(
            token_id for token_id in {*tokens.added.values(), *tokens.eos_ids} if token_id < len(tokens.pieces)
        )

    def __call__(self, text: bytes) -> list[int]:
        return []


def open_llguidance(tokens: GrammarTokens) -> LlguidanceEngine:
    """Return the engine over a vocabulary."""
    import llguidance

    wrapper = llguidance.TokenizerWrapper(_Pieces(tokens))
    tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=tokens.vocab_size, eos_token=sorted(tokens.eos_ids))
    return LlguidanceEngine(tokens, tokenizer)


def json_rules(*, is_compact: bool = False) -> dict[str, object]:
    """Return how JSON is written and that nothing in a schema may be passed over, whatever it says itself."""
    rules: dict[str, object] = {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": ESCAPES}
    rules |= {"item_separator": ",", "key_separator": ":", "whitespace_flexible": not is_compact}
    return rules if is_compact else rules | {"whitespace_pattern": WHITESPACE}


def _grammar(source: Source) -> str:
    import llguidance

    match source.kind:
        case "json_schema" | "compact_json_schema":
            rules: Any = json_rules(is_compact=source.kind == "compact_json_schema")
            return llguidance.LLMatcher.grammar_from_json_schema(source.text, overrides=rules)
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(source.text)
        case "lark":
            return llguidance.LLMatcher.grammar_from_lark(source.text)
    raise ValueError(f"llguidance has no {source.kind}")


def _reason(error: str) -> str:
    return " ".join(error.replace("<non-verbose/>", "").split())
