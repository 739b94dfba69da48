"""The bytes of every token id, from a byte-level tokenizer.json.

A byte-level BPE writes each byte as one printable character; undone once at start, decoding is a look-up and a join,
exact for every sequence of ids and a tenth of the library's time.
"""

from collections.abc import Iterable, Mapping

from attrs import frozen
from tokenizers import Tokenizer

from stages.errors import CheckpointError
from stages.tokenizer_file import TokenizerFile, read_tokenizer_file

NUM_CHECKED = 2048


@frozen(eq=False)
class Vocabulary:
    """Bytes by id, the ids hidden as special, and added tokens' ids by their text; an id beyond it has no bytes."""

    pieces: tuple[bytes, ...]
    special: frozenset[int]
    added: Mapping[str, int]

    def piece(self, token_id: int) -> bytes:
        """Return the exact bytes of one id, special ones included."""
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def text(self, token_ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of a whole sequence of ids, special ones included unless they are to be skipped."""
        # A loop of its own, not a call of piece() for each: a sequence may hold a million ids.
        pieces, size, hidden = self.pieces, len(self.pieces), self.special if skip_special else frozenset()
        shown = [pieces[token_id] for token_id in token_ids if token_id < size and token_id not in hidden]
        return b"".join(shown).decode("utf-8", "replace")


def open_vocabulary(path: str) -> Vocabulary:
    """Build the Vocabulary of a tokenizer.json or its folder; raises CheckpointError when it is not byte-level."""
    file = read_tokenizer_file(path)
    vocabulary = vocabulary_of(file)
    try:
        tokenizer = Tokenizer.from_str(file.text)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"cannot use {file.path}: {error}") from error
    size = len(vocabulary.pieces)
    sample = [*range(0, size, 1 + size // NUM_CHECKED), *vocabulary.added.values()]
    sample = [token_id for token_id in sample if tokenizer.id_to_token(token_id) is not None]
    if tokenizer.decode(sample, skip_special_tokens=False) != vocabulary.text(sample):
        raise CheckpointError(f"{file.path} does not decode as byte-level BPE, the only kind served")
    return vocabulary


def vocabulary_of(file: TokenizerFile) -> Vocabulary:
    """Return the Vocabulary of a tokenizer.json that is known to be byte-level."""
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    words: Mapping[str, int] = file.spec["model"]["vocab"]
    by_id = {token_id: _bytes(word, byte_of) for word, token_id in words.items()}
    by_id.update({token.token_id: token.text.encode() for token in file.added})
    return Vocabulary(
        pieces=tuple(by_id.get(token_id, b"") for token_id in range(1 + max(by_id, default=-1))),
        special=frozenset(token.token_id for token in file.added if token.special),
        added=file.control_ids,
    )


def _bytes(word: str, byte_of: Mapping[str, int]) -> bytes:
    try:
        return bytes([byte_of[character] for character in word])
    except KeyError:
        return word.encode()


def byte_characters() -> tuple[str, ...]:
    """Return the character byte-level BPE writes for each byte 0 to 255.

    Printable Latin-1 stands for itself; the rest, in order, takes the characters from U+0100 on.
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in itself else next(others)) for byte in range(256))
