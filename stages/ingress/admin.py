"""SGLang's admin routes: abort, flush, pause and continue, sessions, logging; most turn a body into the engine's order.

An order waits for its answer no longer than the server lives, nor than its client: leaving takes it back.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Literal

import trio
from attrs import define, frozen

from stages.engine.port import Order
from stages.errors import Draining, EngineFailure, InvalidRequest
from stages.ingress.dialects.openai_common import read_body
from stages.ingress.dialects.placement import MAX_NAME_CHARACTERS
from stages.ingress.respond import Serving
from stages.logs.switches import MAX_REQUESTS_LEVEL
from stages.messages import CloseSession, CommandResult, FlushCache, OpenSession, Pause, Resume

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
NOT_FLUSHED = "Flush cache failed.\n"
FLUSH_UNDER_WAY = "Another flush_cache is already in progress."
FLUSH_TIMED_OUT = "Timed out waiting for idle state."

PAUSED = {"message": "Generation paused successfully.", "status": "ok"}
CONTINUED = {"message": "Generation continued successfully.", "status": "ok"}
# By path, an example of the answer of every admin route that has one.
ANSWERS: dict[str, list[object]] = {
    "/pause_generation": [PAUSED],
    "/continue_generation": [CONTINUED],
    "/open_session": ["a session's id"],
}

LOG_LEVELS = ("debug", "info", "warning", "error")
REQUESTS_FORMATS = ("auto", "text", "json")

Mode = Literal["abort", "retract", "in_place"]
MODES: dict[str, Mode] = {"abort": "abort", "retract": "retract", "in_place": "in_place"}


@frozen
class Told:
    """An admin route's answer: text as it is, None for an empty body, anything else as JSON."""

    status: int
    value: object = None
    is_text: bool = False


@frozen(kw_only=True)
class AbortBody:
    """The body of /abort_request."""

    rid: str = ""
    abort_all: bool = False


@frozen(kw_only=True)
class PauseBody:
    """The body of /pause_generation."""

    mode: str = "abort"


@frozen(kw_only=True)
class ContinueBody:
    """The body of /continue_generation; there is no allocator's cache to empty."""

    torch_empty_cache: bool = True


@frozen(kw_only=True)
class OpenSessionBody:
    """The body of /open_session; a session's size is bounded by the context, and it streams as its requests do."""

    session_id: str | None = None
    timeout: float | None = None
    capacity_of_str_len: int | None = None
    streaming: bool = False


@frozen(kw_only=True)
class CloseSessionBody:
    """The body of /close_session."""

    session_id: str


@frozen(kw_only=True)
class LoggingBody:
    """The body of /configure_logging; what is null stays as it is. Requests are never dumped to files."""

    log_level: str | None = None
    log_requests: bool | None = None
    log_requests_level: int | None = None
    log_requests_format: str | None = None
    access_log: bool | None = None
    dump_requests_folder: str | None = None
    dump_requests_threshold: int | None = None
    crash_dump_folder: str | None = None


# By path, the body of every admin route that takes one.
BODIES: dict[str, type] = {
    "/abort_request": AbortBody,
    "/pause_generation": PauseBody,
    "/continue_generation": ContinueBody,
    "/configure_logging": LoggingBody,
    "/open_session": OpenSessionBody,
    "/close_session": CloseSessionBody,
}


@define(eq=False)
class Admin:
    """The admin routes of one server."""

    serving: Serving
    is_flush_waiting: bool = False

    async def abort_request(self, body: dict[str, object]) -> Told:
        """Abort all, or the request of that id and those whose ids begin with it; answers the same for unknown ids."""
        wanted = read_body(AbortBody, body)
        services = self.serving.services
        if wanted.abort_all:
            services.abort_all()
        elif wanted.rid in self.serving.live_ids:
            services.abort(wanted.rid)
        return Told(200)

    async def flush_cache(self, timeout_s: float) -> Told:
        """Forget every cached prefix now, or wait up to timeout_s for the engine to be idle."""
        if self.is_flush_waiting:
            return Told(400, FLUSH_UNDER_WAY, is_text=True)
        if timeout_s == 0:
            return _flushed(await self._command(FlushCache()))
        self.is_flush_waiting = True
        try:
            with trio.move_on_after(timeout_s):
                return _flushed(await self._command(FlushCache(waits=True)))
        finally:
            self.is_flush_waiting = False
        return Told(400, FLUSH_TIMED_OUT, is_text=True)

    async def pause_generation(self, body: dict[str, object]) -> Told:
        """Stop planning steps, and first end or send back what runs, by the mode."""
        mode = read_body(PauseBody, body).mode
        if mode not in MODES:
            raise InvalidRequest(f"mode must be one of {', '.join(MODES)}, got {mode!r}.", "mode", "invalid_value")
        _demand(await self._command(Pause(MODES[mode])), "Pausing failed.")
        return Told(200, PAUSED)

    async def continue_generation(self, body: dict[str, object]) -> Told:
        """Plan steps again."""
        read_body(ContinueBody, body)
        _demand(await self._command(Resume()), "Continuing failed.")
        return Told(200, CONTINUED)

    async def open_session(self, body: dict[str, object]) -> Told:
        """Begin a session, giving its id."""
        wanted = read_body(OpenSessionBody, body)
        if wanted.timeout is not None and not 0 < wanted.timeout < math.inf:
            text = f"timeout must be a positive number of seconds, got {wanted.timeout}."
            raise InvalidRequest(text, "timeout", "invalid_value")
        session_id = _session_id(wanted.session_id) if wanted.session_id else None
        result = _demand(await self._command(OpenSession(session_id, wanted.timeout)), "The session was not opened.")
        return Told(200, result.text)

    async def close_session(self, body: dict[str, object]) -> Told:
        """End a session; one that is not open, or no more, is as closed as can be."""
        await self._command(CloseSession(_session_id(read_body(CloseSessionBody, body).session_id)))
        return Told(200)

    async def configure_logging(self, body: dict[str, object]) -> Told:
        """Change what is logged, all of it or nothing; raises InvalidRequest naming the field."""
        wanted = read_body(LoggingBody, body)
        for name in ("dump_requests_folder", "crash_dump_folder"):
            if getattr(wanted, name):
                raise InvalidRequest(f"{name} is not supported by this server.", name, "unsupported_parameter")
        level = None if wanted.log_level is None else wanted.log_level.lower()
        _check_choice("log_level", level, LOG_LEVELS)
        _check_choice("log_requests_format", wanted.log_requests_format, REQUESTS_FORMATS)
        detail = wanted.log_requests_level
        if detail is not None and not 0 <= detail <= MAX_REQUESTS_LEVEL:
            text = f"log_requests_level must be between 0 and {MAX_REQUESTS_LEVEL}, got {detail}."
            raise InvalidRequest(text, "log_requests_level", "invalid_value")
        if level is not None:
            logging.getLogger().setLevel(level.upper())  # the root, whose level --log-level is
        self.serving.logs.change(
            requests=wanted.log_requests,
            requests_level=detail,
            requests_format=wanted.log_requests_format,
            access=wanted.access_log,
        )
        return Told(200)

    async def _command(self, order: Order) -> CommandResult:
        """Return the engine's answer; raises Draining or EngineFailure when the server ends first."""
        results: list[CommandResult] = []
        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                try:
                    results.append(await self.serving.services.engine.command(order))
                except Exception as error:
                    failures.append(error)  # raised below, outside the nursery, so that no group is wrapped around it
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            await self.serving.cutoff.wait()
            nursery.cancel_scope.cancel()
        if results:
            return results[0]
        if failures:
            raise failures[0]
        raise EngineFailure("a stage failed") if self.serving.failed.is_set() else Draining()


BodyRoute = Callable[[dict[str, object]], Awaitable[Told]]


def body_routes(admin: Admin) -> dict[str, tuple[tuple[str, ...], BodyRoute]]:
    """Return the methods and the function of every admin route that takes a JSON body, by path."""
    runs: tuple[tuple[tuple[str, ...], BodyRoute], ...] = (
        (("POST",), admin.abort_request),
        (("POST",), admin.pause_generation),
        (("POST",), admin.continue_generation),
        (("GET", "POST"), admin.configure_logging),
        (("GET", "POST"), admin.open_session),
        (("POST",), admin.close_session),
    )
    return dict(zip(BODIES, runs, strict=True))


def admin_paths() -> tuple[str, ...]:
    """Return the paths that need the admin key where there is one."""
    return ("/flush_cache", *BODIES)


def read_flush_timeout_s(given: str | None) -> float:
    """Return the seconds of ?timeout=, 0 when absent; raises InvalidRequest for what is not seconds."""
    try:
        timeout_s = float(given or 0)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s < math.inf:
        raise InvalidRequest(f"timeout must be a number of seconds from 0, got {given!r}.", "timeout", "invalid_value")
    return timeout_s


def _flushed(result: CommandResult) -> Told:
    if result.is_done:
        return Told(200, FLUSHED, is_text=True)
    return Told(400, result.text or NOT_FLUSHED, is_text=True)


def _demand(result: CommandResult, failure: str) -> CommandResult:
    if not result.is_done:
        raise InvalidRequest(result.text or failure)
    return result


def _check_choice(name: str, given: str | None, choices: tuple[str, ...]) -> None:
    if given is not None and given not in choices:
        raise InvalidRequest(f"{name} must be one of {', '.join(choices)}, got {given!r:.80}.", name, "invalid_value")


def _session_id(session_id: str) -> str:
    if not 1 <= len(session_id) <= MAX_NAME_CHARACTERS:
        text = f"session_id must have between 1 and {MAX_NAME_CHARACTERS} characters."
        raise InvalidRequest(text, "session_id", "invalid_value")
    return session_id
