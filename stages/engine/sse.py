"""Server-sent events out of bytes in any pieces. Core.

Lines end with LF or CRLF, mixed as they come; an empty line ends an event, whose data lines are joined with LF. Other
fields and comments are passed over, and so is an event that the stream's end cut off.
"""

from stages.errors import RemoteFailure


class EventReader:
    """Collects events; holds at most max_event_bytes of one that is not whole yet."""

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        # Pieces of the line that has not ended, and their size; kept apart so that a huge line is joined once.
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of every event that ended in this piece; raises RemoteFailure for one that is too large."""
        first, *others = piece.split(b"\n")
        self._line.append(first)
        self._line_bytes += len(first)
        if not others:
            self._check_size()
            return []
        events: list[bytes] = []
        self._take(b"".join(self._line), events)
        for line in others[:-1]:
            self._take(line, events)
        self._line = [others[-1]]
        self._line_bytes = len(others[-1])
        if not events:  # what came before it counts, however the bytes were cut; the next piece meets the limit
            self._check_size()
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if line[-1:] == b"\r":
            line = line[:-1]
        if not line:
            if self._data:
                events.append(b"\n".join(self._data) if len(self._data) > 1 else self._data[0])
                self._data = []
                self._data_bytes = 0
        elif line[:5] == b"data:":
            data = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(data)
            self._data_bytes += len(data)
        elif line == b"data":
            self._data.append(b"")

    def _check_size(self) -> None:
        if self._line_bytes + self._data_bytes > self._max_event_bytes:
            raise RemoteFailure(f"the engine sent an event of more than {self._max_event_bytes} bytes")
