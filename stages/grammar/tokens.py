"""The vocabulary as grammars see it, and masks over it. Core.

Added tokens are not text here: each has the byte 0xFF and its id as its piece, which no UTF-8 text and so no grammar
of text can spell, while grammars of tokens still name them by id. So a JSON string never holds a `<tool_call>` that a
parser of ids would take for a call. Where a client's own grammar spells tags, `with_tags` gives the visible ones their
texts back.
"""

from collections.abc import Iterable

import numpy as np
from attrs import frozen

from graphs.step import Words
from stages.detokenizer.vocabulary import Vocabulary

WORD_BITS = 32


@frozen(eq=False)
class GrammarTokens:
    """Bytes by id, the ids of added tokens by text, the model's end tokens and the width of its logits."""

    pieces: tuple[bytes, ...]
    added: dict[str, int]
    eos_ids: frozenset[int]
    vocab_size: int
    has_tags: bool = False

    @property
    def num_words(self) -> int:
        """Return the words of a mask."""
        return -(-self.vocab_size // WORD_BITS)

    def mask_of(self, token_ids: Iterable[int]) -> Words:
        """Return a mask that allows these ids and no other; ids beyond the logits are none."""
        bits = np.zeros(self.num_words * WORD_BITS, np.bool_)
        bits[[token_id for token_id in token_ids if 0 <= token_id < self.vocab_size]] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def whole(self) -> Words:
        """Return a mask that allows every token the tokenizer has."""
        return self.mask_of(range(min(len(self.pieces), self.vocab_size)))


def grammar_tokens(vocabulary: Vocabulary, eos_ids: frozenset[int], vocab_size: int) -> GrammarTokens:
    """Return the vocabulary of a tokenizer for a model whose logits are vocab_size wide."""
    added = dict(vocabulary.added)
    hidden = {*added.values(), *eos_ids}
    pieces = tuple(
        unspellable(token_id) if token_id in hidden else piece for token_id, piece in enumerate(vocabulary.pieces)
    )
    return GrammarTokens(pieces[:vocab_size], added, eos_ids, vocab_size)


def with_tags(tokens: GrammarTokens, vocabulary: Vocabulary) -> GrammarTokens:
    """Return `tokens` with the texts of the added tokens that are not special; those stay unspellable."""
    shown = {token_id: text.encode() for text, token_id in tokens.added.items() if token_id not in vocabulary.special}
    pieces = tuple(
        shown.get(token_id, piece) if token_id not in tokens.eos_ids else piece
        for token_id, piece in enumerate(tokens.pieces)
    )
    return GrammarTokens(pieces, tokens.added, tokens.eos_ids, tokens.vocab_size, has_tags=True)


def spells_tag(text: str, tokens: GrammarTokens) -> bool:
    """Return whether a grammar's text holds an added token's text."""
    return any(tag in text for tag in tokens.added)


def unspellable(token_id: int) -> bytes:
    """Return the piece of a token that no text can spell."""
    return b"\xff%d" % token_id
