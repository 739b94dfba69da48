"""One choice's stream of an engine's `/generate`: opened, read event by event to its end, closed."""

import math
from collections.abc import Callable
from urllib.parse import urlsplit

import orjson
import trio
from attrs import define, field

from stages.engine.frames import FrameReader, failure_of
from stages.engine.http_client import Headers, HttpClient, Response
from stages.engine.readiness import Readiness
from stages.engine.sse import EventReader
from stages.errors import RemoteFailure
from stages.messages import TokensRow
from stages.settings import RemoteSettings

DONE = b"[DONE]"
MAX_REDIRECTS = 3
REPEATED_REDIRECTS = (307, 308)
# How long an engine that told the end of an answer may take to end its stream.
SETTLE_S = 1.0


@define(eq=False)
class Stream:
    """A choice's exchange with the engine."""

    client: HttpClient
    settings: RemoteSettings
    frames: FrameReader
    # Reads the sockets of all streams; without one, and with TLS, a stream reads its own.
    readiness: Readiness | None = None
    _response: Response | None = None
    _asked_s: float = 0.0
    _any_came: bool = False
    _limit: trio.CancelScope = field(factory=trio.CancelScope)
    _events: EventReader = field(init=False)
    _has_limits: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        limits = (self.settings.first_event_timeout_s, self.settings.idle_timeout_s)
        self._has_limits = any(limit is not None for limit in limits)
        self._events = EventReader(self.settings.max_event_bytes)

    async def open(self, body: bytes, headers: Headers = ()) -> None:
        """Send the request, with these headers too, and take the head of its answer.

        Raises RemoteFailure with the engine's own status.
        """
        self._asked_s = trio.current_time()
        with trio.CancelScope(deadline=self._deadline(self._asked_s, self.settings.first_event_timeout_s)) as scope:
            response = self._response = await post(self.client, "/generate", body, headers)
            if response.status != 200:
                raise await refusal_of(response)
        if scope.cancelled_caught:
            raise self._too_slow("did not answer", self.settings.first_event_timeout_s)

    async def rows(self, take: Callable[[TokensRow], None]) -> None:
        """Give the row of every frame to `take`, up to the one that ends the choice.

        Raises RemoteFailure for whatever else ends the stream.
        """
        first_s, idle_s = self.settings.first_event_timeout_s, self.settings.idle_timeout_s
        # An answer's wait for the streams of other choices counts for nobody.
        deadline_s = max(trio.current_time(), self._deadline(self._asked_s, first_s))
        with trio.CancelScope(deadline=deadline_s) as self._limit:
            await self._read(take)
            return
        if self._any_came:
            raise self._too_slow("sent nothing", idle_s)
        raise self._too_slow("sent no token", first_s)

    async def _read(self, take: Callable[[TokensRow], None]) -> None:
        """Take pieces until the choice has ended: by ourselves, then from the task that reads all sockets."""
        response = self._opened()
        while self.readiness is None or (socket := response.socket) is None:
            if self._push(await response.read(), take):
                return
        ended = trio.Event()
        failure: Exception | None = None

        def took(piece: bytes) -> None:
            nonlocal failure
            if ended.is_set():
                return
            try:
                part = response.took(piece)
                is_over = bool(part or response.body.is_done) and self._push(part, take)
                if not is_over and response.body.failure is not None:
                    raise response.body.failure
            except Exception as error:  # it is this task's, not the reader's of everybody's sockets
                failure, is_over = error, True
            if is_over:
                ended.set()

        with self.readiness.reading(socket, took):
            await ended.wait()
        if failure is not None:
            raise failure

    def _push(self, part: bytes, take: Callable[[TokensRow], None]) -> bool:
        """Take a piece of the body, empty at its end, giving whether the choice has ended."""
        for data in self._events.feed(part):
            if data == DONE:
                raise RemoteFailure("engine stream ended before a terminal frame")
            take(self.frames.read(data))
            if self.frames.has_ended:
                return True
            self._any_came = True
        if not part or self._opened().body.is_done:
            raise RemoteFailure("engine response closed before [DONE]")
        if self._any_came and self._has_limits:
            self._limit.deadline = self._deadline(trio.current_time(), self.settings.idle_timeout_s)
        return False

    async def settle(self) -> None:
        """Read what follows the end of the answer, so that the connection can be kept, and close."""
        try:
            with trio.move_on_after(SETTLE_S):
                while await self._opened().read():
                    pass
        except RemoteFailure:
            pass  # the answer was whole before
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection unless it can be kept; a stream that was not opened has none."""
        if self._response is not None:
            await self._response.close()

    def _opened(self) -> Response:
        assert self._response is not None, "a stream is opened before it is read"
        return self._response

    def _deadline(self, since_s: float, limit_s: float | None) -> float:
        return math.inf if limit_s is None else since_s + limit_s

    def _too_slow(self, what: str, limit_s: float | None) -> RemoteFailure:
        return RemoteFailure(f"the engine at {self.client.origin} {what} within {limit_s:g} s", 504)


async def post(client: HttpClient, path: str, body: bytes, headers: Headers = ()) -> Response:
    """Return the answer to a POST, past redirects within the engine's own origin; raises RemoteFailure."""
    for _ in range(1 + MAX_REDIRECTS):
        response = await client.send("POST", path, body, headers)
        if not 300 <= response.status < 400:
            return response
        await response.close()
        location = (response.header(b"location") or b"").decode("latin-1")
        if response.status not in REPEATED_REDIRECTS or not (target := _target(location, client)):
            text = f"engine request failed: the engine answered {path} with a redirect ({response.status})"
            raise RemoteFailure(f"{text} to {location[:200]!r}, which is not followed", 502)
        path = target
    raise RemoteFailure("engine request failed: too many redirects", 502)


async def refusal_of(response: Response) -> RemoteFailure:
    """Return what a response that is no success stands for: its status, its words, its Retry-After; closes it."""
    async with response:
        text = await response.text()
    after = (response.header(b"retry-after") or b"").strip()
    retry_after_s = int(after) if after.isdigit() and len(after) < 8 else None
    status = response.status if response.status >= 400 else 502
    try:
        told = orjson.loads(text)
    except orjson.JSONDecodeError:
        told = None
    if isinstance(told, dict) and ("error" in told or "message" in told):
        failure = failure_of(told, status, retry_after_s)
        failure.status = status  # the head's, whatever the body says
        return failure
    return RemoteFailure(f"engine returned HTTP {response.status}", status, retry_after_s)


def _target(location: str, client: HttpClient) -> str | None:
    """Return the path a redirect leads to, None when it leaves the origin: nobody else may get prompt or key."""
    try:
        parts = urlsplit(location)
        port = parts.port
    except ValueError:
        return None
    origin = client.origin
    if parts.netloc or parts.scheme:
        port = port or (443 if parts.scheme == "https" else 80)
        if (parts.scheme or origin.scheme, parts.hostname, port) != (origin.scheme, origin.host, origin.port):
            return None
    if not parts.path.startswith("/"):
        return None
    return parts.path + (f"?{parts.query}" if parts.query else "")
