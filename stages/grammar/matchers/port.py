"""What a grammar engine gives: sources compile in a worker process, templates load in this one, matchers run."""

from typing import Literal, Protocol

from attrs import frozen

from graphs.step import Words

EngineName = Literal["xgrammar", "llguidance"]


@frozen
class Source:
    """What an engine compiles: a text of a kind, spelling tags as text or not.

    json_schema, compact_json_schema, ebnf, structural_tag for xgrammar; json_schema, compact_json_schema, regex, lark
    for llguidance.
    """

    engine: EngineName
    kind: Literal["json_schema", "compact_json_schema", "ebnf", "structural_tag", "regex", "lark"]
    text: str
    has_tags: bool = False


class GrammarRefused(Exception):
    """The engine does not take the grammar; the text says why and is the client's."""


class TooComplex(Exception):
    """A grammar outgrew its engine's limits while text was matched."""


class Matcher(Protocol):
    """Where one text stands in its grammar; the bits of end tokens and of ids beyond the tokenizer mean nothing."""

    def fill(self, words: Words) -> None:
        """Write the mask of what may come next into words [W]; raises TooComplex."""
        ...

    def accept(self, token_id: int) -> bool:
        """Move over a token, or stay and return False where the grammar has no place for it; raises TooComplex."""
        ...

    @property
    def is_complete(self) -> bool:
        """Return whether the text may end here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest accepted tokens."""
        ...

    def fork(self) -> "Matcher":
        """Return a matcher that stands where this one does and goes its own way."""
        ...


class Template(Protocol):
    """A compiled grammar in this process."""

    @property
    def size_bytes(self) -> int:
        """Return about how much memory it takes."""
        ...

    def start(self) -> Matcher:
        """Return a matcher at the beginning."""
        ...


class Engine(Protocol):
    """One grammar library over one vocabulary."""

    def compile(self, source: Source) -> bytes:
        """Return the compiled form of a source, as `load` takes it; raises GrammarRefused."""
        ...

    def load(self, source: Source, compiled: bytes) -> Template:
        """Return the template of a source that has compiled elsewhere."""
        ...
