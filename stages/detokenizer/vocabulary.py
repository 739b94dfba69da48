"""The bytes of every token id, from a tokenizer.json.

Where a token's bytes do not depend on its neighbours they are worked out once at start: decoding is then a look-up and
a join, exact for every sequence of ids and a tenth of the library's time. Other tokenizers are decoded by the library,
over a window of the newest ids.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import define, field, frozen
from tokenizers import Tokenizer

from stages.detokenizer.spelling import spelling_of, strips_first_blank
from stages.errors import CheckpointError
from stages.tokenizer_file import TokenizerFile, read_tokenizer_file

NUM_CHECKED = 2048
# What a neighbour-sensitive decoder sees of the ids before: no decoder known looks further back.
WINDOW_TOKENS = 8
MAX_CHARACTER_BYTES = 4
UNREADABLE = "\ufffd"


@frozen(eq=False)
class Vocabulary:
    """Bytes by id, the ids hidden as special, and added tokens' ids by their text; an id beyond it has no bytes.

    decode is the library's, where a token's bytes depend on its neighbours; pieces are then the tokens alone.
    """

    pieces: tuple[bytes, ...]
    special: frozenset[int]
    added: Mapping[str, int]
    decode: "Callable[[Sequence[int]], str] | None" = None
    # Whether a whole text begins without its first token's blank.
    strips_first_blank: bool = False

    def piece(self, token_id: int) -> bytes:
        """Return the exact bytes of one id, special ones included."""
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def text(self, token_ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of a whole sequence of ids, special ones included unless they are to be skipped."""
        # A loop of its own, not a call of piece() for each: a sequence may hold a million ids.
        pieces, size, hidden = self.pieces, len(self.pieces), self.special if skip_special else frozenset()
        if self.decode is not None:
            return self.decode([token_id for token_id in token_ids if token_id not in hidden])
        shown = [pieces[token_id] for token_id in token_ids if token_id < size and token_id not in hidden]
        data = b"".join(shown)
        if self.strips_first_blank and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def spell_after(self, prompt_ids: Sequence[int]) -> "Speller":
        """Return what spells an answer's ids one by one, as they read behind this prompt."""
        if self.decode is None:
            return Speller(self.piece, bytes)
        replayed = _Replayed(self.decode, prompt_ids)
        return Speller(replayed.take, replayed.rest)


@frozen(eq=False)
class Speller:
    """Spells one answer: the bytes of each id as it comes, and at the end what was held back of them."""

    take: Callable[[int], bytes]
    rest: Callable[[], bytes]


@define(eq=False)
class _Replayed:
    """Spells ids by decoding the newest of them again with each one more.

    The library writes U+FFFD for bytes that make no character yet, so a text is said up to those at its end.
    """

    _decode: "Callable[[Sequence[int]], str]"
    _prompt_ids: Sequence[int]
    _window: list[int] = field(init=False)
    # Places in the window where no character is open; the ids behind the last one are not said yet.
    _clean: list[int] = field(init=False)
    _said: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        windows = (list(self._prompt_ids[-start:]) for start in range(WINDOW_TOKENS, 2 * WINDOW_TOKENS))
        # One that begins inside a character would read all bytes behind it wrongly.
        self._window = next((ids for ids in windows if not self._decode(ids).startswith(UNREADABLE)), [])
        whole = len(self._window)
        while whole and self._decode(self._window[:whole]).endswith(UNREADABLE):
            whole -= 1
        self._clean = [whole]
        self._said = self._decode(self._window[:whole])

    def take(self, token_id: int) -> bytes:
        """Return what the text has grown by."""
        self._window.append(token_id)
        grown = self._grown()
        while len(self._window) - self._clean[-1] >= MAX_CHARACTER_BYTES:
            # A byte that begins no character makes all behind it unreadable, for ever if it stayed.
            del self._window[: self._clean[-1] + 1]
            self._clean, self._said = [0], ""
            grown += UNREADABLE + self._grown()
        return grown.encode("utf-8", "replace")

    def rest(self) -> bytes:
        """Return what stands for bytes that never made a character."""
        return (UNREADABLE * (len(self._window) - self._clean[-1])).encode()

    def _grown(self) -> str:
        text = self._decode(self._window)
        if text.endswith(UNREADABLE):
            return ""
        # A decoder may reach back, as to a blank before a full stop; what has been said stays said.
        grown = text[len(self._said) :] if text.startswith(self._said) else text[_common(self._said, text) :]
        self._clean.append(len(self._window))
        self._said = text
        self._shorten()
        return grown

    def _shorten(self) -> None:
        if len(self._window) <= 2 * WINDOW_TOKENS:
            return
        start = max((at for at in self._clean if at <= len(self._window) - WINDOW_TOKENS), default=0)
        del self._window[:start]
        self._clean = [at - start for at in self._clean if at >= start]
        self._said = self._decode(self._window)


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def open_vocabulary(path: str) -> Vocabulary:
    """Build the Vocabulary of a tokenizer.json or its folder; raises CheckpointError when it cannot be."""
    file = read_tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_str(file.text)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"cannot use {file.path}: {error}") from error
    vocabulary = vocabulary_of(file, tokenizer)
    size = len(vocabulary.pieces)
    sample = [*range(0, size, 1 + size // NUM_CHECKED), *vocabulary.added.values()]
    sample = [token_id for token_id in sample if tokenizer.id_to_token(token_id) is not None]
    if not file.is_byte_level:
        # Sentencepiece's single bytes make characters only in the right company.
        sample = [token_id for token_id in sample if vocabulary.piece(token_id).decode("utf-8", "ignore")]
    if tokenizer.decode(sample, skip_special_tokens=False) != vocabulary.text(sample):
        raise CheckpointError(f"{file.path} does not decode as its decoder says")
    return vocabulary


def vocabulary_of(file: TokenizerFile, tokenizer: Tokenizer | None = None) -> Vocabulary:
    """Return the Vocabulary of a tokenizer.json; one that is not spelled token by token needs its tokenizer."""
    decoder = file.spec.get("decoder")
    spell = spelling_of(decoder)
    by_id = {token_id: spell(word) if spell is not None else word.encode() for word, token_id in file.words.items()}
    by_id.update({token.token_id: token.text.encode() for token in file.added})
    decode: Callable[[Sequence[int]], str] | None = None
    if spell is None:
        library = tokenizer if tokenizer is not None else Tokenizer.from_str(file.text)

        def decode(token_ids: Sequence[int]) -> str:
            return library.decode(token_ids, skip_special_tokens=False)

    return Vocabulary(
        pieces=tuple(by_id.get(token_id, b"") for token_id in range(1 + max(by_id, default=-1))),
        special=frozenset(token.token_id for token in file.added if token.special),
        added=file.control_ids,
        decode=decode,
        strips_first_blank=spell is not None and strips_first_blank(decoder),
    )
