"""The seam between HTTP and one API's JSON: a dialect turns a parsed body into asks, and events into frames or a body.

A dialect is core: plain functions, no trio, no clock, no I/O; ids and times come in with the Call. Its module, a file
of `stages/ingress/dialects/`, exports one constant `DIALECT`. What ingress does with one call:

    read the JSON object --Call--> DIALECT.parse --Parsed--> admit every ask --> status and headers
        stream:     encoder.start(), encoder.event(...) for each event in order of arrival, encoder.finish()
        otherwise:  encoder.body(collected)
    parse may also give a Lookup, for what needs no generation: lookup.body(answers of the prompt stage)
    any failure before the status: DIALECT.error(...) as the body; in a stream after it: encoder.failed(...), then end
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import field, frozen

from stages.messages import Ask, Event, Prompt, Work, WorkDone
from stages.settings import ModelSettings

SSE_COMMENT_PING = b": ping\n\n"
EVENT_STREAM = "text/event-stream; charset=utf-8"


Values = Mapping[str, tuple[object, ...]]


@frozen(eq=False)
class BodyForm:
    """What a body may hold, for the document at /openapi.json: the fields of its wire classes, the first one's first.

    `refused` are fields that are not served, each with the values that ask for nothing and pass; `refused_in` are those
    of nested classes. One of `any_of` must be there. Keys that a class of `closed` does not list are refused.
    """

    classes: tuple[type, ...]
    refused: Values = field(factory=dict)
    refused_in: Mapping[type, Values] = field(factory=dict)
    any_of: tuple[str, ...] = ()
    closed: tuple[type, ...] = ()


@frozen
class Route:
    """A path the dialect answers; `{name}` parts are not served here, generation routes have fixed paths.

    The answers to `samples`, bodies without a model, show together all that an answer may hold (answers.py). A field of
    `data_keyed` is an object whose keys are data, not names.
    """

    path: str
    methods: tuple[str, ...] = ("POST",)
    form: BodyForm | None = None
    samples: tuple[Mapping[str, Any], ...] = ()
    data_keyed: frozenset[str] = frozenset()


@frozen
class Call:
    """One HTTP request as a dialect sees it; header names are lower case, created_s is Unix time in whole seconds.

    request_id is fresh and unique in the process, so asks may use it as it is or with a suffix; the client's own
    X-Request-Id is echoed in the headers by ingress and never names an ask. The body is `parse`'s alone: it is emptied
    after that, what was taken out of it stays.
    """

    body: dict[str, Any]
    headers: Mapping[str, str]
    path: str
    request_id: str
    created_s: int
    # Seconds since the call arrived, for answers that tell it; None where nobody measures.
    elapsed_s: Callable[[], float] | None = None


@frozen(eq=False)
class Collected:
    """Everything one ask brought: its prompt and its events in order, each choice's Ended among them."""

    prompt: Prompt
    events: tuple[Event, ...]
    # From the first event to the last.
    decode_s: float = 0.0


class Encoder(Protocol):
    """Turns the events of one call into the dialect's answer; it may keep state, each call has its own.

    `event` and `body` may raise RequestError, Unavailable, Aborted or EngineFailure to say that the call has failed (an
    Ended of kind "error", say): a stream then gets `failed`, a body the dialect's `error`.
    """

    def start(self) -> list[bytes]:
        """Return the frames that go out with the headers, once every ask was admitted."""
        ...

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the frames of one event of asks[ask_index]; an empty list is fine."""
        ...

    def finish(self) -> list[bytes]:
        """Return the last frames after every choice of every ask has ended: usage, terminator."""
        ...

    def failed(self, error: Exception) -> list[bytes]:
        """Return the error frame and the terminator of a stream that cannot go on; `error` as for Dialect.error."""
        ...

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return status and JSON value of an answer that is not streamed, from one Collected per ask, in ask order."""
        ...


@frozen(eq=False)
class Parsed:
    """A call understood: what to run and how to answer; every ask's request_id is unique within the call.

    A request_id the client chose (SGLang's rid) that is live already is refused by ingress with a 400.
    With errors_in_stream a stream that is refused after parsing (a prompt beyond the context, say) is answered 200
    with `encoder.failed(...)`, as SGLang's /generate does; Unavailable stays a real 503 either way.
    """

    asks: tuple[Ask, ...]
    stream: bool
    encoder: Encoder
    errors_in_stream: bool = False
    # What breaks a stream's silence where the dialect's one frame will not do; for a stream that numbers its events.
    ping: Callable[[], bytes] | None = None


@frozen(eq=False)
class Lookup:
    """A call that generates nothing: its works go to the prompt stage one by one, `body` makes JSON of their answers.

    It takes no place in the queue and touches no cache; with no work at all it is answered at once.
    """

    works: tuple[Work, ...]
    body: Callable[[Sequence[WorkDone]], object]


ErrorBody = Callable[[Exception, int, str], object]


@frozen(eq=False)
class Dialect:
    """One API: its routes, its parser and its error shape.

    `parse` raises RequestError naming the field. `error(exc, status, request_id)` gives the JSON value of a failure:
    exc is a RequestError, an Unavailable, an Aborted, or an EngineFailure whose own text is not for clients.
    `json_only` demands the media type application/json. `ping` is the frame sent after sse_ping_s of silence, or None
    for no keep-alives. `stream_type` is the media type of a stream, whose frames the encoder makes whole. Where nothing
    `generates`, all calls are lookups: they are no generation calls, those that cannot be parsed neither.
    """

    name: str
    routes: tuple[Route, ...]
    parse: Callable[[Call, ModelSettings], Parsed | Lookup]
    error: ErrorBody
    json_only: bool = True
    ping: bytes | None = SSE_COMMENT_PING
    stream_type: str = EVENT_STREAM
    generates: bool = True
