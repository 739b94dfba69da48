"""Bytes to text as they come: whole characters only, and what is left at the end. Core."""

import codecs

from attrs import define, field


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@define(eq=False)
class Utf8:
    """An incremental decoder; the texts of all pushes and the flush joined are the decoding of all bytes joined."""

    _decoder: codecs.IncrementalDecoder = field(factory=_decoder, init=False)

    def push(self, piece: bytes) -> str:
        """Return the characters that piece completes."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """Return what an unfinished character comes to, and start anew."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text
