"""Writes a stream's deltas to its connection as they are made, while the request's task waits.

A token then costs no wake: the detokenizer's delivery of a step encodes and writes every stream's frame in one go. The
task keeps all that takes time or ends something. It is woken for an Ended, for whatever cannot be written at once, and
for a failure of the encoder, which the stage that delivers must not see.
"""

from stages.ingress.dialect import Encoder
from stages.ingress.feed import Arrival, Feed
from stages.ingress.wire import Wire
from stages.messages import Delta, Event


class DirectFeed:
    """A feed of one stream; the deltas of a single ask are written from within the mailbox."""

    def __init__(self, feed: Feed, encoder: Encoder, wire: Wire) -> None:
        self._feed = feed
        self._encoder = encoder
        self._wire = wire
        # Of a delta that was begun but is the task's to finish: what is left of its frames, or why there are none.
        self._rest = b""
        self._failure: Exception | None = None

    async def next(self) -> list[Arrival]:
        """Wait for what the sink does not take, giving the arrivals still to be encoded; raises as the feed does."""
        try:
            arrivals = await self._feed.next(self._take)
        finally:
            # However the wait ended, a chunk that was begun is finished before anything else is written.
            rest, self._rest = self._rest, b""
            if rest:
                await self._wire.write_rest(rest)
        if self._failure is not None:
            raise self._failure
        return arrivals[1:] if rest else arrivals

    def _take(self, event: Event) -> bool:
        """Write the frames of a delta; False for what is the task's to do or to finish."""
        if not isinstance(event, Delta) or not self._wire.can_write_now:
            return False
        try:
            frames = self._encoder.event(0, self._feed.prompts[0], event)
        except Exception as error:  # raised by next, in the task whose call has failed
            self._failure = error
            return False
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        if data:
            self._rest = self._wire.write_now(data)
        return not self._rest
