"""Encodes chats out of pieces that were encoded before; what is new is encoded, all of a batch at once.

A template of segments has its seams itself: its texts are encoded one by one anyway. A text template's prompt is cut
where `seams.py` says. What a piece's ids are depends on nothing but the piece, so the store needs to know nothing of
conversations: an edit of the history, other tools or another user's chat find whatever they have in common with before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import define, field

from stages.prompt.cache.seams import NotSeparable, Seams, check_parts, seams_of
from stages.prompt.cache.store import ID_BYTES, Piece, packed, unpacked
from stages.prompt.cache.switch import PromptCache
from stages.prompt.segments import Control, Marked, Segment
from stages.prompt.tokenizer import PromptTokenizer
from stages.tokenizer_file import TokenizerFile

Ids = tuple[int, ...]
P = TypeVar("P")
# What stands in a prompt as it is, or is to be found or encoded.
Part = bytes | Piece


class Encoder(Protocol):
    """What turns rendered chats into ids: a PromptTokenizer, or a cache before it."""

    def encode_segments(self, prompts: Sequence[Sequence[Segment]]) -> list[Ids]:
        """Encode segments, giving each prompt's ids; raises KeyError for a control token the vocabulary lacks."""
        ...

    def encode_marked(self, prompts: Sequence[Marked]) -> list[Ids]:
        """Encode text prompts, giving each one's ids."""
        ...


@define(eq=False)
class CachingEncoder:
    """An Encoder of one thread over a cache that others may use too; without seams texts are encoded whole."""

    tokenizer: PromptTokenizer
    cache: PromptCache
    seams: Seams | None
    # Why there are none.
    why_whole: str = ""
    _controls: dict[str, bytes] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._controls = {text: packed((token_id,)) for text, token_id in self.tokenizer.control_ids.items()}

    def encode_segments(self, prompts: Sequence[Sequence[Segment]]) -> list[Ids]:
        """Encode segments, giving each prompt's ids; raises KeyError for a control token the vocabulary lacks."""
        whole = self.tokenizer.encode_segments
        return self._encode(prompts, self._parts_of_segments, self._encode_texts, whole)

    def encode_marked(self, prompts: Sequence[Marked]) -> list[Ids]:
        """Encode text prompts, giving each one's ids."""
        whole = self.tokenizer.encode_marked
        if self.seams is None:
            return whole(prompts)
        return self._encode(prompts, self._parts_of_text, self._encode_pieces, whole)

    def _encode(
        self,
        prompts: Sequence[P],
        parts_of: Callable[[P], list[Part]],
        encode: Callable[[list[Piece]], Iterable[Ids]],
        encode_whole: Callable[[Sequence[P]], list[Ids]],
    ) -> list[Ids]:
        if not self.cache.is_on:
            return encode_whole(prompts)
        prompts_parts = list(map(parts_of, prompts))
        wanted = list(dict.fromkeys(part for parts in prompts_parts for part in parts if isinstance(part, Piece)))
        ids_of = dict(zip(wanted, self.cache.store.find(wanted), strict=True))
        missing = {piece for piece, ids in ids_of.items() if ids is None}
        new = [piece for piece in wanted if piece in missing]
        encoded = dict(zip(new, map(packed, encode(new)), strict=True))
        self.cache.store.keep(encoded.items())
        held = {piece: ids or encoded[piece] for piece, ids in ids_of.items()}
        answers = []
        for prompt, parts in zip(prompts, prompts_parts, strict=True):
            ids = unpacked(part if isinstance(part, bytes) else held[part] for part in parts)
            if self._is_hit(parts, encoded, len(ids)) and self.cache.audits_this():
                ids = self._audited(ids, encode_whole([prompt])[0])
            answers.append(ids)
        return answers

    def _is_hit(self, parts: Sequence[Part], encoded: Mapping[Piece, bytes], num_tokens: int) -> bool:
        """Count a prompt and return whether anything of it was found."""
        pieces = [part for part in parts if isinstance(part, Piece)]
        new = [encoded[piece] for piece in pieces if piece in encoded]
        num_new = sum(map(len, new)) // ID_BYTES
        is_hit = len(new) < len(pieces)
        self.cache.count(
            hits=int(is_hit), misses=int(not is_hit), encoded_tokens=num_new, found_tokens=num_tokens - num_new
        )
        return is_hit

    def _audited(self, ids: Ids, whole: Ids) -> Ids:
        if ids == whole:
            self.cache.count(audits=1)
        else:
            self.cache.turn_off(f"an audit found {difference(ids, whole)}", is_mismatch=True, audits=1)
        return whole

    def _parts_of_segments(self, prompt: Sequence[Segment]) -> list[Part]:
        return [self._controls[segment.text] if isinstance(segment, Control) else Piece(segment) for segment in prompt]

    def _parts_of_text(self, prompt: Marked) -> list[Part]:
        # Invariant: encode_marked comes here with seams alone.
        assert self.seams is not None
        return [Piece(text, prompt.mark) for text in self.seams.pieces(prompt.text)]

    def _encode_texts(self, pieces: Sequence[Piece]) -> list[Ids]:
        return self.tokenizer.encode_segments([(piece.text,) for piece in pieces])

    def _encode_pieces(self, pieces: Sequence[Piece]) -> list[Ids]:
        return self.tokenizer.encode_marked([Marked(text, mark) for text, mark in pieces])


def open_caching_encoder(tokenizer: PromptTokenizer, cache: PromptCache, file: TokenizerFile) -> CachingEncoder:
    """Return the encoder of one prompt stage; turns the cache off for a tokenizer whose ids are not a text's own."""
    try:
        check_parts(file.spec)
    except NotSeparable as error:
        cache.turn_off(f"{file.path}: {error}", is_mismatch=False)
    try:
        seams = seams_of(file)
    except NotSeparable as error:
        return CachingEncoder(tokenizer, cache, None, str(error))
    return CachingEncoder(tokenizer, cache, seams)


def difference(ids: Ids, whole: Ids) -> str:
    """Return where two encodings part, in numbers alone."""
    same = next((at for at, (one, other) in enumerate(zip(ids, whole, strict=False)) if one != other), None)
    at = min(len(ids), len(whole)) if same is None else same
    return f"{len(ids)} ids in place of {len(whole)}, the first other one at {at}"
