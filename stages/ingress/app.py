"""The web application: what every request gets before and after what answers it.

A route that generates answers through `respond`, which owns status, headers and body in one coroutine: no scope or
nursery is ever held across a generator's yield. Its exact path goes past Quart's dispatch, which costs more than all
else that HTTP asks of a request; Quart knows it too, for the paths it takes as equal and for what it refuses.
Everything else is a plain Quart response. Every answer carries x-request-id: the client's own when it is sane, else a
fresh one.
"""

import re
import secrets
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any, cast

import orjson
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart import Quart, Request, Response
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection

from stages import errors
from stages.calls import CallContext, working_for
from stages.ingress.access import Access
from stages.ingress.admin import admin_paths
from stages.ingress.dialect import ErrorBody
from stages.ingress.error_bodies import general_error
from stages.ingress.forwarding import is_admin_path
from stages.ingress.openapi import rule_of
from stages.ingress.proxy import Proxy
from stages.ingress.respond import Serving
from stages.ingress.wire import AsgiWire, Wire
from stages.logs.access import LEFT, log_access
from stages.trace_context import TraceContext, trace_of

SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

JSON = "application/json"
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PLAIN_TEXT = {"content-type": "text/plain; charset=utf-8"}

# Writes a whole answer to a wire.
Answering = Callable[[Wire], Awaitable[None]]
# Understands a call, giving what answers it, a refusal too.
Generation = Callable[[Request], Awaitable[Response | Answering]]


class GenerationResponse(Response):
    """A placeholder Quart returns for a generation route; the answer itself is made by `answer(wire)`."""

    def __init__(self, answer: Answering) -> None:
        super().__init__(b"")
        self.answer = answer


class Connection(TrioASGIHTTPConnection):
    """One HTTP request: names it, dispatches it, and lets a generation answer itself."""

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        root = cast(App, app).serving.settings.root_path
        if root and scope["path"].startswith(f"{root}/"):
            scope["path"] = scope["path"].removeprefix(root)
            scope["raw_path"] = scope["raw_path"].removeprefix(root.encode())
        super().__init__(app, scope)

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve the request beside a task that waits for the client to leave, and cancels this one then."""
        request = self._create_request_from_scope(send)
        proxy = cast(App, self.app).proxy
        if proxy is not None and not cast(App, self.app).owns(request.path):
            await self._observed(request, partial(self._pass_on, proxy, request, receive, send))
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.handle_messages, nursery, request, receive)
            await self.handle_request(nursery, request, send)

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Answer the request, then end the task that waits for the client to leave."""
        await self._observed(request, partial(self._answer, request, send))
        nursery.cancel_scope.cancel()

    async def _observed(self, request: Request, answer: Callable[[str], Awaitable[int]]) -> None:
        """Have a request answered by its id as one that is under way, with its line in the log."""
        serving = cast(App, self.app).serving
        serving.answering.add(self)
        began_s, status, request_id = trio.current_time(), LEFT, _request_id(request)
        with working_for(CallContext(request_id, _trace(request, serving.settings.trace_sample_ratio))):
            try:
                status = await answer(request_id)
            finally:
                serving.answering.discard(self)
                log_access(serving.logs, cast(Any, self.scope), status, trio.current_time() - began_s)

    async def _answer(self, request: Request, send: ASGISendCallable, request_id: str) -> int:
        """Answer the request, giving the status."""
        app = cast(App, self.app)
        headers = {
            "x-request-id": request_id,
            "request-id": request_id,
            **app.access.cors_headers(request.headers.get("origin")),
        }
        self.scope["state"]["request_id"] = request_id
        with app.serving.http.counted(*app.counted_as(request)) as answered:
            response = app.gate(request, request_id) or await self._dispatched(app, request)
            if isinstance(response, Response):
                response.headers.update(headers)
                answered(response.status_code)
                await self._send_response(send, response)
                return response.status_code
            wire = AsgiWire(cast(Any, send), cast(Any, self.scope), headers)
            try:
                await response(wire)
            finally:
                answered(wire.status)
            return wire.status or LEFT

    async def _pass_on(
        self, proxy: Proxy, request: Request, receive: ASGIReceiveCallable, send: ASGISendCallable, request_id: str
    ) -> int:
        """Let the engine answer what nothing here does, once the call was let in, giving the status."""
        app, scope = cast(App, self.app), cast(Any, self.scope)
        headers = {"x-request-id": request_id, **app.access.cors_headers(request.headers.get("origin"))}
        wire = AsgiWire(cast(Any, send), scope, headers)
        with app.serving.http.counted(*app.counted_as(request)) as answered:
            try:
                path = proxy.checked_path(scope)
            except errors.RequestError as error:
                answered(error.status)
                await wire.start(error.status, PLAIN_TEXT)
                await wire.end(f"{error.message}\n".encode())
                return error.status
            refused = app.gate(request, request_id, engine_path=path)
            if refused is not None:
                refused.headers.update(headers)
                answered(refused.status_code)
                await self._send_response(send, refused)
                return refused.status_code
            adds_key = app.access.asks_for_key(request.method, path)
            ours = tuple((name.encode(), value.encode("latin-1")) for name, value in headers.items())
            try:
                await proxy.pass_on(
                    scope, cast(Any, receive), wire, adds_key=adds_key, ours=ours, stop=app.serving.cutoff
                )
            finally:
                answered(wire.status)
            return wire.status or LEFT

    async def _dispatched(self, app: "App", request: Request) -> Response | Answering:
        generate = app.generations.get((request.method, request.path))
        if generate is not None:
            return await generate(request)
        response = cast(Response, await app.handle_request(request))
        return response.answer if isinstance(response, GenerationResponse) else response


class RefusedWebsocket(TrioASGIWebsocketConnection):
    """A WebSocket handshake: refused, there is nothing here to talk to by frames."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer the handshake with a 403."""
        await send({"type": "websocket.close", "code": 1000, "reason": None})


class App(QuartTrio):
    """The ASGI application; `serving` is what its calls share, its cutoff is for the server to set."""

    asgi_http_class = Connection
    asgi_websocket_class = RefusedWebsocket

    def __init__(self, serving: Serving) -> None:
        super().__init__("trnrt", static_folder=None)
        self.serving = serving
        settings = serving.settings
        self.access = Access(
            settings.api_key, settings.admin_api_key, settings.allowed_origins, frozenset(admin_paths())
        )
        # Answers calls of paths that are not served here, in place of a 404.
        self.proxy: Proxy | None = None
        # By path, the error body of the dialect that owns it.
        self.error_bodies: dict[str, ErrorBody] = {}
        # By method and path, what runs without Quart's dispatch.
        self.generations: dict[tuple[str, str], Generation] = {}
        self.url_map.strict_slashes = False
        self.url_map.merge_slashes = False
        self.config["RESPONSE_TIMEOUT"] = None  # Quart's default cuts any stream after 60 s, silently
        self.config["BODY_TIMEOUT"] = serving.settings.body_timeout_s
        self.config["MAX_CONTENT_LENGTH"] = serving.settings.max_request_bytes

    def gate(self, request: Request, request_id: str, *, engine_path: str | None = None) -> Response | None:
        """Return the answer to a browser's preflight or to a call without its key, or with two; None lets a call in.

        engine_path is the plain path of a call that is passed on.
        """
        path = request.path if engine_path is None else engine_path
        is_admin = engine_path is not None and is_admin_path(engine_path)
        given = {name.lower(): value for name, value in request.headers.items()}
        preflight = self.access.preflight_headers(given) if request.method == "OPTIONS" else None
        if preflight is not None:
            return Response(b"", 200 if preflight else 403, headers=preflight)
        try:
            self.access.check(request.method, path, request.headers.items(), is_admin=is_admin)
        except errors.RequestError as error:
            if path == "/v1" or path.startswith("/v1/"):
                body = self.error_body(path)(error, error.status, request_id)
            else:
                body = {"error": error.message}
            headers = {"www-authenticate": "Bearer"} if isinstance(error, errors.Unauthorized) else {}
            return Response(orjson.dumps(body), error.status, headers, content_type=JSON)
        return None

    def owns(self, path: str) -> bool:
        """Return whether a path is served here, by whatever method."""
        return path in self.error_bodies or bool(self.url_map.bind("").allowed_methods(path))

    def counted_as(self, request: Request) -> tuple[str, str]:
        """Return the endpoint and the method that a request counts as, of those that are served, or "other"."""
        path = request.path.rstrip("/") or "/"
        method = request.method if request.method in _METHODS else OTHER
        if path in self._fixed_paths:
            return path, method
        return next((name for start, name in self._open_paths if path.startswith(start)), OTHER), method

    @cached_property
    def _fixed_paths(self) -> frozenset[str]:
        return frozenset(rule.rule for rule in self.url_map.iter_rules() if not rule.arguments)

    @cached_property
    def _open_paths(self) -> list[tuple[str, str]]:
        rules = [rule_of(rule.rule, (), rule.endpoint).path for rule in self.url_map.iter_rules() if rule.arguments]
        return [(path.partition("{")[0], path) for path in rules]

    def error_body(self, path: str) -> ErrorBody:
        """Return the error shape of the dialect that owns a path, or else of what is around it."""
        return self.error_bodies.get(path.rstrip("/"), partial(general_error, path))


def _trace(request: Request, ratio: float | None) -> TraceContext | None:
    return trace_of(request.headers.getlist("traceparent"), request.headers.getlist("tracestate"), ratio)


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if SANE_REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
