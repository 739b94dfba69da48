"""llguidance: any JSON schema it can follow wholly, regular expressions, and Lark; it refuses what it does not know.

Every step has a budget of work, so a pattern that would take for ever ends its own choice instead. A compiled grammar
cannot be carried from one process to another: a worker tries the text out, and this process reads it again.
"""

import json
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from graphs.step import Words
from stages.grammar.matchers.port import GrammarRefused, Matcher, Source, TooComplex
from stages.grammar.tokens import GrammarTokens, unspellable

if TYPE_CHECKING:
    import llguidance

# One spelling of every string, so that no key comes twice under two names: "\u0061" is "a" again.
ESCAPES = '"\\bfnrt'
# Without this it would rule out every spelling of a text that must come but the tokenizer's own, and ask that for it.
HEAD = '%llguidance {"no_forcing": true}'
NUM_TRIED_TOKENS = 4
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
        """Return nothing, after trying a source and the first masks of two texts; raises GrammarRefused."""
        matcher = self._matcher(source)
        try:
            for end in (0, -1):
                _try(LlguidanceMatcher(matcher.deep_copy()), self.tokens, end)
        except TooComplex as error:
            raise GrammarRefused(str(error)) from None
        return b""

    def load(self, source: Source, compiled: bytes) -> "LlguidanceTemplate":
        """Return the template of a source."""
        return LlguidanceTemplate(self._matcher(source), TEMPLATE_BYTES + BYTES_PER_LETTER * len(source.text))

    def _matcher(self, source: Source) -> "llguidance.LLMatcher":
        import llguidance

        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(self.tokenizer, _grammar(source), log_level=0, limits=limits)
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
    """A vocabulary in the form the library's wrapper asks for; nothing makes it tokenize text."""

    bos_token_id = None

    def __init__(self, tokens: GrammarTokens) -> None:
        # The logits may be wider than the tokenizer: ids without a token are no text either.
        self.tokens = [*tokens.pieces, *map(unspellable, range(len(tokens.pieces), tokens.vocab_size))]
        self.eos_token_id = min(tokens.eos_ids)
        self.special_token_ids = sorted(
            token_id for token_id in {*tokens.added.values(), *tokens.eos_ids} if token_id < tokens.vocab_size
        )

    def __call__(self, text: bytes) -> list[int]:
        return []


def open_llguidance(tokens: GrammarTokens) -> LlguidanceEngine:
    """Return the engine over a vocabulary."""
    import llguidance

    wrapper = llguidance.TokenizerWrapper(_Pieces(tokens))
    tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=tokens.vocab_size, eos_token=sorted(tokens.eos_ids))
    return LlguidanceEngine(tokens, tokenizer)


def ruled_schema(schema: Mapping[str, Any], *, is_compact: bool = False) -> str:
    """Return a schema as Lark has it: how its JSON is written, and that nothing in it may be passed over.

    The options beat whatever the schema says of them itself.
    """
    rules: dict[str, object] = {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": ESCAPES}
    rules |= {"item_separator": ",", "key_separator": ":", "whitespace_flexible": not is_compact}
    rules["whitespace_pattern"] = None
    return "%json " + json.dumps({**schema, "x-guidance": rules})


def _grammar(source: Source) -> str:
    """Return the Lark of a source."""
    import llguidance

    match source.kind:
        case "json_schema" | "compact_json_schema":
            is_compact = source.kind == "compact_json_schema"
            return f"{HEAD}\nstart: {ruled_schema(json.loads(source.text), is_compact=is_compact)}"
        case "regex":
            escaped = json.loads(llguidance.LLMatcher.grammar_from_regex(source.text))
            return f"{HEAD}\n{escaped['grammars'][0]['lark_grammar']}"
        case "lark":
            return source.text
    raise ValueError(f"llguidance has no {source.kind}")


def _try(matcher: LlguidanceMatcher, tokens: GrammarTokens, end: int) -> None:
    """Follow the first tokens of one text, always the first or the last that may come; raises TooComplex."""
    words = tokens.mask_of(())
    for _ in range(NUM_TRIED_TOKENS):
        matcher.fill(words)
        allowed = [int(index) for index in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]
        allowed = [token_id for token_id in allowed if token_id not in tokens.eos_ids]
        if not allowed or not matcher.accept(allowed[end]):
            return


def _reason(error: str) -> str:
    """Return what an error says, without where in the Lark made here it is and without the Lark itself."""
    lines = takewhile(lambda line: not re.match(r"\s*\d+ \|", line), error.replace("<non-verbose/>", "").splitlines())
    return re.sub(r"^at \d+\(\d+\): ", "", " ".join(" ".join(lines).split()))
