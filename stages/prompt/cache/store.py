"""Pieces of prompts and their ids, within a bound of bytes, the longest unused leave first. Core.

Prompt stages of one process share one store, so what one thread encoded another finds.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import NamedTuple

from attrs import define, field

ID_BYTES = array("I").itemsize
POINTER_BYTES = 8


class Piece(NamedTuple):
    """Text that is encoded as one and the mark that breaks control texts in it; equal pieces have equal ids.

    A tuple, since a long prompt has thousands and each is hashed.
    """

    text: str
    mark: str | None = None


@define(eq=False)
class PieceStore:
    """Ids as packed numbers by piece; num_bytes is what Python says the whole takes."""

    max_bytes: int
    _entries: "OrderedDict[Piece, bytes]" = field(factory=OrderedDict)
    _content_bytes: int = 0
    _lock: Lock = field(factory=Lock)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of everything held: texts, ids and the table that finds them."""
        return self._content_bytes + sys.getsizeof(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, pieces: Sequence[Piece]) -> list[bytes | None]:
        """Return each piece's packed ids, None for those not held; what is found counts as used now."""
        with self._lock:
            found = [self._entries.get(piece) for piece in pieces]
            for piece, ids in zip(pieces, found, strict=True):
                if ids is not None:
                    self._entries.move_to_end(piece)
        return found

    def keep(self, encoded: Iterable[tuple[Piece, bytes]]) -> None:
        """Hold these too, giving up the longest unused ones beyond max_bytes."""
        with self._lock:
            for piece, ids in encoded:
                size = _size_of(piece, ids)
                # Another thread may have had the same piece; what is too large would only drive all others out.
                if piece in self._entries or size > self.max_bytes:
                    continue
                self._entries[piece] = ids
                self._content_bytes += size
                while self._entries and self.num_bytes > self.max_bytes:
                    self._content_bytes -= _size_of(*self._entries.popitem(last=False))

    def close(self) -> None:
        """Give up everything and hold nothing from now on, whatever threads are still at work."""
        self.max_bytes = 0
        self.clear()

    def clear(self) -> None:
        """Give up everything, the table too."""
        with self._lock:
            self._entries = OrderedDict()
            self._content_bytes = 0


def packed(token_ids: Iterable[int]) -> bytes:
    """Return ids at four bytes each."""
    return array("I", token_ids).tobytes()


def unpacked(parts: Iterable[bytes]) -> tuple[int, ...]:
    """Return the ids of packed parts, in their order."""
    return tuple(array("I", b"".join(parts)))


def _size_of(piece: Piece, ids: bytes) -> int:
    # A tuple's subclass has room for one item more; the mark is one character that many pieces share.
    return sys.getsizeof(piece) + POINTER_BYTES + sys.getsizeof(piece.text) + sys.getsizeof(ids)
