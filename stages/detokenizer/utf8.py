"""Bytes to text as they come: whole characters only, and what is left at the end. Core."""

from codecs import utf_8_decode

from attrs import define, field


@define(eq=False)
class Utf8:
    """An incremental decoder; the texts of all pushes and the flush joined are the decoding of all bytes joined."""

    _pending: bytes = field(default=b"", init=False)

    def push(self, piece: bytes) -> str:
        """Return the characters that piece completes."""
        data = self._pending + piece if self._pending else piece
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        """Return what an unfinished character comes to, and start anew."""
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text
