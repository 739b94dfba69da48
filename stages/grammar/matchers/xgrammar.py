"""xgrammar: JSON schemas of the plain kind, EBNF and structural tags; masks of a few microseconds.

Its schemas are only trusted with what stages/grammar/schemas.py lists, as it passes over what it does not know.
Importing it imports torch and transformers, so it is imported when an engine is made.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from graphs.step import Words
from stages.grammar.matchers.port import GrammarRefused, Matcher, Source
from stages.grammar.tokens import GrammarTokens

if TYPE_CHECKING:
    import xgrammar


@frozen(eq=False)
class XgrammarEngine:
    """xgrammar over one vocabulary."""

    tokens: GrammarTokens
    info: "xgrammar.TokenizerInfo"
    compiler: "xgrammar.GrammarCompiler"

    def compile(self, source: Source) -> bytes:
        """Return a source's compiled grammar, serialised; raises GrammarRefused."""
        try:
            compiled = self._compiled(source)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:  # what its bindings and its models raise
            raise GrammarRefused(_reason(error)) from None
        serialised: str = compiled.serialize_json()
        return serialised.encode()

    def load(self, source: Source, compiled: bytes) -> "XgrammarTemplate":
        """Return the template of a serialised grammar."""
        import xgrammar

        grammar = xgrammar.CompiledGrammar.deserialize_json(compiled.decode(), self.info)
        # Invariant: an engine's end tokens are told apart from text by the guide, which rules them out and in itself.
        return XgrammarTemplate(grammar, self.tokens.num_words, len(compiled))

    def _compiled(self, source: Source) -> "xgrammar.CompiledGrammar":
        match source.kind:
            case "json_schema":
                # White space is free: bounding it multiplies the grammar's size by the bound.
                return self.compiler.compile_json_schema(source.text, strict_mode=False)
            case "compact_json_schema":
                return self.compiler.compile_json_schema(
                    source.text, strict_mode=False, any_whitespace=False, separators=(",", ":")
                )
            case "ebnf":
                return self.compiler.compile_grammar(source.text)
            case "structural_tag":
                return self.compiler.compile_structural_tag(source.text)
        raise ValueError(f"xgrammar has no {source.kind}")


@frozen(eq=False)
class XgrammarTemplate:
    """A grammar and the width of its masks."""

    grammar: "xgrammar.CompiledGrammar"
    num_words: int
    size_bytes: int

    def start(self) -> Matcher:
        """Return a matcher at the beginning."""
        import xgrammar

        return XgrammarMatcher(xgrammar.GrammarMatcher(self.grammar))


@frozen(eq=False)
class XgrammarMatcher:
    """One text's place in an xgrammar grammar."""

    matcher: Any

    def fill(self, words: Words) -> None:
        """Write the mask of what may come next."""
        if not self.matcher.fill_next_token_bitmask(words.reshape(1, -1), 0):
            # It leaves the mask alone where everything may come.
            words[:] = np.int32(-1)

    def accept(self, token_id: int) -> bool:
        """Move over a token, or stay and return False."""
        return bool(self.matcher.accept_token(token_id))

    @property
    def is_complete(self) -> bool:
        """Return whether the text may end here."""
        return bool(self.matcher.is_completed())

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest accepted tokens."""
        self.matcher.rollback(num_tokens)

    def fork(self) -> "XgrammarMatcher":
        """Return a matcher of its own at the same place."""
        return XgrammarMatcher(self.matcher.fork())


def open_xgrammar(tokens: GrammarTokens) -> XgrammarEngine:
    """Return the engine over a vocabulary; takes seconds the first time, for what it imports."""
    import xgrammar

    info = xgrammar.TokenizerInfo(
        list(tokens.pieces),
        xgrammar.VocabType.RAW,
        vocab_size=tokens.vocab_size,
        stop_token_ids=sorted(tokens.eos_ids),
    )
    return XgrammarEngine(tokens, info, xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False))


def _reason(error: Exception) -> str:
    """Return what an error says without where in the library it was raised."""
    text = str(error).split("Stack trace:")[0].strip()
    return text.partition(": ")[2] if text.startswith("[") else text
