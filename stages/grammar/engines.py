"""The engines over one tokenizer, each made when it is first needed."""

from collections.abc import Callable
from importlib.util import find_spec

from attrs import define, field

from stages.detokenizer.vocabulary import Vocabulary, open_vocabulary
from stages.errors import StartupError
from stages.grammar.matchers.port import Engine, EngineName, Source
from stages.grammar.tokens import GrammarTokens, grammar_tokens, with_tags

INSTALL = "pip install 'trnrt[grammar]'"
LIBRARIES = ("xgrammar", "llguidance", "tvm_ffi", "torch", "transformers")


@define(eq=False)
class Engines:
    """Engines by name, over the vocabulary with and without the texts of tags."""

    vocabulary: Vocabulary
    tokens: GrammarTokens
    _open: dict[tuple[EngineName, bool], Engine] = field(factory=dict, init=False)

    def of(self, source: Source) -> Engine:
        """Return the engine of a source; takes seconds when a library is imported for it."""
        key = source.engine, source.has_tags
        if key not in self._open:
            tokens = with_tags(self.tokens, self.vocabulary) if source.has_tags else self.tokens
            self._open[key] = _opener(source.engine)(tokens)
        return self._open[key]

    def warm(self) -> None:
        """Make the engines that any request may need."""
        self.of(Source("xgrammar", "json_schema", ""))
        self.of(Source("llguidance", "json_schema", ""))


def open_engines(tokenizer_path: str, vocab_size: int, eos_ids: frozenset[int]) -> Engines:
    """Return the engines over a tokenizer.json or its folder; raises StartupError."""
    vocabulary = open_vocabulary(tokenizer_path)
    return Engines(vocabulary, grammar_tokens(vocabulary, eos_ids, vocab_size))


def check_available() -> None:
    """Raise StartupError naming the command that installs what constrained output needs, without importing it."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise StartupError(f"--structured-outputs needs the package {missing[0]}: {INSTALL}")


def _opener(name: EngineName) -> Callable[[GrammarTokens], Engine]:
    if name == "xgrammar":
        from stages.grammar.matchers.xgrammar import open_xgrammar

        return open_xgrammar
    from stages.grammar.matchers.llguidance import open_llguidance

    return open_llguidance
