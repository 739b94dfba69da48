"""The body of an HTTP/1.1 response out of bytes in any pieces. Core.

h11 reads the head; the body is read here, since h11 costs several times as much a chunk (docs/PERFORMANCE.md), and a
streamed answer is one chunk a token.
"""

from collections.abc import Iterable

from stages.errors import RemoteFailure

# A chunk's size in hex, and what extensions may follow it; trailers altogether.
MAX_SIZE_LINE_BYTES = 1024
MAX_TRAILER_BYTES = 16384
_HEX = frozenset(b"0123456789abcdefABCDEF")


class LengthBody:
    """A body of content-length bytes, or of all there is until the connection ends (None)."""

    def __init__(self, num_bytes: int | None) -> None:
        self._left = num_bytes
        self.failure: RemoteFailure | None = None
        self.is_done = num_bytes == 0

    def feed(self, piece: bytes) -> bytes:
        """Return the piece's part of the body; what is behind its end is dropped, and may not be reused."""
        if self._left is None:
            return piece
        taken = piece[: self._left]
        self._left -= len(taken)
        self.is_done = self._left == 0
        return taken

    def end(self) -> None:
        """Take the connection's end; raises RemoteFailure when the body was not whole."""
        if self._left:
            raise RemoteFailure("engine stream failed: the connection ended inside the body", 503)
        self.is_done = True


class ChunkedBody:
    """A body in chunks; is_done with the last one's empty line."""

    def __init__(self) -> None:
        self.is_done = False
        # What stands behind the part that was returned last.
        self.failure: RemoteFailure | None = None
        # Bytes of the chunk that are still to come, its CRLF among them; 0 where a size line is.
        self._left = 0
        self._line = b""
        self._in_trailers = False
        self._trailer_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """Return the piece's part of the body; raises RemoteFailure for what is no chunk, unless it sets `failure`."""
        self._raise_failure()
        out: list[bytes] = []
        at, size = 0, len(piece)
        while at < size and not self.is_done:
            if self._left:
                end = min(size, at + self._left)
                data_end = min(end, at + max(0, self._left - 2))  # the last two are CRLF
                if data_end > at:
                    out.append(piece[at:data_end])
                self._left -= end - at
                at = end
                continue
            newline = piece.find(b"\n", at)
            if newline < 0:
                self._line += piece[at:]
                self._check_line()
                break
            line = self._line + piece[at:newline]
            self._line = b""
            at = newline + 1
            try:
                self._take_line(line.rstrip(b"\r"))
            except RemoteFailure as failure:
                if not out:
                    raise
                self.failure = failure  # what came before it counts, however the bytes were cut
                break
        return out[0] if len(out) == 1 else b"".join(out)

    def end(self) -> None:
        """Take the connection's end; raises RemoteFailure when the body was not whole."""
        self._raise_failure()
        if not self.is_done:
            raise RemoteFailure("engine stream failed: the connection ended inside the body", 503)

    def _take_line(self, line: bytes) -> None:
        if self._in_trailers:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                raise RemoteFailure("engine stream failed: its trailers are too long", 503)
            self.is_done = not line
            return
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 15 or not _HEX.issuperset(digits):
            raise RemoteFailure("engine stream failed: a chunk without a size", 503)
        length = int(digits, 16)
        self._left = length + 2 if length else 0
        self._in_trailers = not length

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _check_line(self) -> None:
        if len(self._line) > MAX_SIZE_LINE_BYTES:
            raise RemoteFailure("engine stream failed: a chunk without a size", 503)


Body = LengthBody | ChunkedBody


def body_of(status: int, headers: Iterable[tuple[bytes, bytes]], method: str = "POST") -> Body:
    """Return what reads the body of a response with this head to `method`; names are in lower case, as h11 has them."""
    named = dict(headers)
    if status in (204, 304) or method == "HEAD":
        return LengthBody(0)
    if b"chunked" in named.get(b"transfer-encoding", b"").lower():
        return ChunkedBody()
    length = named.get(b"content-length")
    return LengthBody(None if length is None else int(length))
