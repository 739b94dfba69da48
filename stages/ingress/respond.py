"""Runs one generation call: admit its asks, then stream their events or collect them into one body.

The status goes out only after every ask was admitted, so a refusal is a real HTTP status. Whatever fails later in a
stream becomes the dialect's error frame and its terminator: a stream never just stops. One scope holds the whole call;
a client that leaves cancels it from outside, the deadline and the server's last call (`cutoff`) end it from inside.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import orjson
import trio
from attrs import evolve, field, frozen

from stages.errors import (
    Aborted,
    DeadlineExceeded,
    Draining,
    EngineFailure,
    InvalidRequest,
    QueueFull,
    RemoteFailure,
    RequestError,
    Unavailable,
)
from stages.ingress.aside import Aside
from stages.ingress.calls import Calls, HttpCounts
from stages.ingress.dialect import Collected, Dialect, ErrorBody, Lookup, Parsed
from stages.ingress.feed import Feed, admit, collect
from stages.ingress.pieces import write_in_pieces
from stages.ingress.sink import DirectFeed
from stages.ingress.wire import JSON_HEADERS, SSE_HEADERS, Wire
from stages.logs.switches import LogSwitches
from stages.logs.transcript import OverheardEncoder, transcript_of
from stages.messages import Detokenized, Tokenized, WorkDone
from stages.request import Services, look_up
from stages.settings import IngressSettings
from stages.trail import Trail

INTERNAL_STATUS = 500
STREAM_STATUS = 200
# A whole answer up to this goes out with its head; a longer one is not copied for it.
ONE_WRITE_BYTES = 1 << 16
# An answer of more is made on a thread: token ids, or events times the logprobs of each; it takes 2 to 50 ms.
LARGE_ANSWER_ENTRIES = 4096
CHARACTERS_AN_ENTRY = 16

log = logging.getLogger("trnrt.ingress")


@frozen(eq=False)
class Serving:
    """What every call shares: the services, the settings, the live request ids, and the end of it all.

    At the cutoff every call still running is answered that the server stops, or, once `failed`, that the engine failed.
    """

    services: Services
    settings: IngressSettings
    live_ids: set[str] = field(factory=set)
    aside: Aside = field(factory=Aside)
    cutoff: trio.Event = field(factory=trio.Event)
    failed: trio.Event = field(factory=trio.Event)
    # Set when no connection is accepted any more: what would never end by itself ends now.
    stopping: trio.Event = field(factory=trio.Event)
    # The HTTP requests under way, each until its last byte was handed to its connection.
    answering: set[object] = field(factory=set)
    calls: Calls = field(factory=Calls)
    http: HttpCounts = field(factory=HttpCounts)

    @property
    def logs(self) -> LogSwitches:
        """Return what is logged of calls now."""
        return self.calls.logs


async def respond(
    parsed: Parsed, dialect: Dialect, request_id: str, serving: Serving, wire: Wire, trail: Trail | None = None
) -> None:
    """Answer one parsed call on `wire`, whatever happens; only the cancellation of the caller passes through.

    When it got where and how it ended is noted on `trail`, whose record is sent.
    """
    trail = trail or Trail(request_id)
    transcript = transcript_of(parsed, serving.logs)
    if transcript is not None and transcript.has_texts:
        parsed = evolve(parsed, encoder=OverheardEncoder(parsed.encoder, transcript))
    with serving.calls.recorded(trail, transcript):
        await _respond(parsed, dialect, request_id, serving, wire, trail)


async def _respond(
    parsed: Parsed, dialect: Dialect, request_id: str, serving: Serving, wire: Wire, trail: Trail
) -> None:
    try:
        with _claimed_ids(parsed, serving.live_ids), trio.fail_after(_timeout_s(parsed, serving.settings)):
            async with _watched(_ping(parsed, dialect), serving, wire):
                async with admit(parsed.asks, serving.services, trail) as feed:
                    if parsed.stream:
                        trail.status = STREAM_STATUS
                        last = await _stream(parsed, dialect, feed, wire)
                    else:
                        collected = await collect(parsed.asks, feed)
        if parsed.stream:
            await wire.end(last + b"".join(parsed.encoder.finish()))
            return
        status, body = await _whole(parsed, collected, serving.aside)
        trail.status = status
        await _send_body(wire, status, body)
    except trio.TooSlowError:
        await _fail(DeadlineExceeded(), parsed, dialect, request_id, wire, trail)
    except Exception as error:
        await _fail(error, parsed, dialect, request_id, wire, trail)


async def answer_lookup(lookup: Lookup, dialect: Dialect, request_id: str, serving: Serving, wire: Wire) -> None:
    """Answer a call that generates nothing, one work after the other so that prompts of others come between."""
    limit_s = serving.settings.request_timeout_s
    try:
        with trio.fail_after(math.inf if limit_s is None else limit_s):
            async with _watched(None, serving, wire):
                done = [await look_up(work, serving.services) for work in lookup.works]
        written = partial(_written_lookup, lookup, done)
        size = sum(map(_num_entries, done))
        body = await serving.aside.write(written) if size > LARGE_ANSWER_ENTRIES else written()
        await _send_body(wire, 200, body)
    except trio.TooSlowError:
        await refuse(DeadlineExceeded(), dialect.error, request_id, wire)
    except Exception as error:
        await refuse(error, dialect.error, request_id, wire)


async def refuse(error: Exception, shape: ErrorBody, request_id: str, wire: Wire) -> None:
    """Answer with a status and an error body in `shape`; what is not a known error is logged and told as a 500."""
    status, told, headers = describe(error)
    await send_json(wire, status, shape(told, status, request_id), headers)


def describe(error: Exception) -> tuple[int, Exception, dict[str, str]]:
    """Return the HTTP status of an error, the error to tell the client, and the headers that go with it.

    What the server is at fault for is logged.
    """
    told = _told(error)
    status, headers = _status_of(told)
    return status, told, headers


def _status_of(told: Exception) -> tuple[int, dict[str, str]]:
    """Return the HTTP status of an error that clients may know, and its headers."""
    if isinstance(told, RequestError):
        return told.status, {}
    if isinstance(told, Unavailable):
        headers = {"retry-after": str(told.retry_after_s)}
        if isinstance(told, QueueFull):
            headers["x-trnrt-queue-full"] = "1"
        return told.status, headers
    if isinstance(told, RemoteFailure):
        again = {} if told.retry_after_s is None else {"retry-after": str(told.retry_after_s)}
        return told.status, again
    return INTERNAL_STATUS, {}


async def send_json(wire: Wire, status: int, value: object, headers: dict[str, str] | None = None) -> None:
    """Send a whole JSON answer."""
    await _send_body(wire, status, orjson.dumps(value), headers)


async def _send_body(wire: Wire, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    is_small = len(body) <= ONE_WRITE_BYTES
    head = {**JSON_HEADERS, "content-length": str(len(body)), **(headers or {})}
    await wire.start(status, head, body if is_small else b"")
    if not is_small:
        await wire.write(body)
    await wire.end()


async def _whole(parsed: Parsed, collected: Sequence[Collected], aside: Aside) -> tuple[int, bytes]:
    """Return status and text of an answer that is not streamed; raises what the encoder does."""

    def written() -> tuple[int, bytes]:
        status, value = parsed.encoder.body(collected)
        return status, b"".join(write_in_pieces(value))

    entries = [1 + ask.num_top_logprobs * ask.logprobs for ask in parsed.asks]
    size = sum(each * len(one.events) for each, one in zip(entries, collected, strict=True))
    return await aside.write(written) if size > LARGE_ANSWER_ENTRIES else written()


def _written_lookup(lookup: Lookup, done: Sequence[WorkDone]) -> bytes:
    return b"".join(write_in_pieces(lookup.body(done)))


def _num_entries(done: WorkDone) -> int:
    """Return about how many ids an answer of the prompt stage takes as long to write as."""
    if isinstance(done, Tokenized):
        return sum(map(len, done.token_ids))
    return sum(map(len, done.texts)) // CHARACTERS_AN_ENTRY if isinstance(done, Detokenized) else 0


async def _stream(parsed: Parsed, dialect: Dialect, feed: Feed, wire: Wire) -> bytes:
    """Send frames as events arrive, at once or one write a wake, giving those that came last, to go out with the end.

    What came before a failure goes out too.
    """
    encoder = parsed.encoder
    await wire.start(STREAM_STATUS, _stream_headers(dialect), b"".join(encoder.start()))
    direct = DirectFeed(feed, encoder, wire)
    while feed.num_running:
        frames: list[bytes] = []
        try:
            for arrival in await direct.next():
                frames += encoder.event(arrival.ask_index, arrival.prompt, arrival.event)
        except Exception:
            await wire.write(b"".join(frames))
            raise
        if not feed.num_running:
            return b"".join(frames)
        await wire.write(b"".join(frames))
    return b""


async def _fail(error: Exception, parsed: Parsed, dialect: Dialect, request_id: str, wire: Wire, trail: Trail) -> None:
    told = _told(error)
    trail.failed(told)
    in_stream = parsed.stream and parsed.errors_in_stream and isinstance(told, RequestError)
    if not wire.started and not in_stream:
        status, headers = _status_of(told)
        trail.status = status
        await send_json(wire, status, dialect.error(told, status, request_id), headers)
        return
    trail.status = STREAM_STATUS
    if not wire.started:
        await wire.start(STREAM_STATUS, _stream_headers(dialect))
    await wire.end(b"".join(parsed.encoder.failed(told)))


def _stream_headers(dialect: Dialect) -> dict[str, str]:
    return {**SSE_HEADERS, "content-type": dialect.stream_type}


def _told(error: Exception) -> Exception:
    """Return the error as clients may know it; an unexpected one is logged with its traceback and becomes generic."""
    leaf: BaseException = error
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    if isinstance(leaf, RequestError | Unavailable | Aborted):
        return leaf
    if isinstance(leaf, EngineFailure):
        # What another process did wrong has no traceback of interest here.
        log.error("a request failed: %s", leaf, exc_info=None if isinstance(leaf, RemoteFailure) else leaf.__cause__)
        return leaf
    log.error("a request failed", exc_info=error)
    return EngineFailure("unexpected error")


@asynccontextmanager
async def _watched(ping: Callable[[], bytes] | None, serving: Serving, wire: Wire) -> AsyncIterator[None]:
    """Run a watch beside the block: it pings a silent stream, and at the cutoff raises Draining or EngineFailure."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, ping, serving, wire)
            yield
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        cancelled, failure = group.split(trio.Cancelled)
        if cancelled is None or not isinstance(failure, ExceptionGroup):
            raise
        # The client left as its call failed: there is nobody to tell, and the web framework would take it for a bug.
        _told(failure)
        raise cancelled from None


async def _watch(ping: Callable[[], bytes] | None, serving: Serving, wire: Wire) -> None:
    ping_s = serving.settings.sse_ping_s if ping else math.inf
    while True:
        silent_since_s = wire.written_s if wire.started else trio.current_time()
        with trio.move_on_at(silent_since_s + ping_s):
            await serving.cutoff.wait()
            raise EngineFailure("a stage failed") if serving.failed.is_set() else Draining
        if ping and wire.started and trio.current_time() - wire.written_s >= ping_s:
            await wire.write(ping())


def _ping(parsed: Parsed, dialect: Dialect) -> Callable[[], bytes] | None:
    """Return what makes the frame for a silent stream; None where there is none to be sent."""
    frame = dialect.ping
    if not parsed.stream or frame is None:
        return None
    return parsed.ping or (lambda: frame)


def _timeout_s(parsed: Parsed, settings: IngressSettings) -> float:
    limits = [settings.request_timeout_s, *(ask.timeout_s for ask in parsed.asks)]
    return min((limit for limit in limits if limit is not None), default=math.inf)


@contextmanager
def _claimed_ids(parsed: Parsed, live_ids: set[str]) -> Iterator[None]:
    """Hold the asks' ids for the block; raises InvalidRequest for one that is live already."""
    ids = [ask.request_id for ask in parsed.asks]
    for request_id in ids:
        if request_id in live_ids:
            raise InvalidRequest(f"Duplicate request ID detected: {request_id}", "rid")
    live_ids.update(ids)
    try:
        yield
    finally:
        live_ids.difference_update(ids)
