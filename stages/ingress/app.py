"""The web application: routes of every dialect and of the server's own facts; what a request gets before it runs.

A generation route reads and parses its body, then answers through `respond`, which owns status, headers and body in one
coroutine: no scope or nursery is ever held across a generator's yield. Its exact path goes past Quart's dispatch, which
costs more than all else that HTTP asks of a request; Quart knows it too, for the paths it takes as equal and for what
it refuses. Everything else is a plain Quart response. Every answer carries x-request-id: the client's own when it is
sane, else a fresh one.
"""

import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from typing import Any, cast

import orjson
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart import Quart, Request, Response, current_app, request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge, RequestTimeout

from stages import errors
from stages.calls import CallContext, current_call, working_for
from stages.ingress import info as facts
from stages.ingress import ollama
from stages.ingress.access import Access
from stages.ingress.admin import ANSWERS, BODIES, Admin, BodyRoute, Told, admin_paths, body_routes, read_flush_timeout_s
from stages.ingress.body import LARGE_BODY_BYTES, check_media_type, parse_object
from stages.ingress.dashboard import page
from stages.ingress.dialect import Call, Dialect, ErrorBody, Lookup, Parsed, Route
from stages.ingress.error_bodies import general_error
from stages.ingress.forwarding import is_admin_path
from stages.ingress.info import Info
from stages.ingress.info_answers import RUNNING, info_answers
from stages.ingress.openapi import document, rule_of
from stages.ingress.proxy import Proxy
from stages.ingress.respond import Serving, answer_lookup, describe, respond
from stages.ingress.stats_routes import MetricsFeed, StatsFeed, encoded, read_limit
from stages.ingress.wire import AsgiWire, Wire
from stages.logs.access import LEFT, log_access
from stages.stats.stage import Stats, open_stats
from stages.trace_context import TraceContext, trace_of
from stages.trail import Trail

SANE_RANK = re.compile(r"-?[0-9]{1,18}")
SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

JSON = "application/json"
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
PLAIN_TEXT = {"content-type": "text/plain; charset=utf-8"}

log = logging.getLogger("trnrt.ingress")


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
            await self._pass_on(proxy, request, receive, send)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.handle_messages, nursery, request, receive)
            await self.handle_request(nursery, request, send)

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Answer the request, then end the task that waits for the client to leave."""
        serving = cast(App, self.app).serving
        serving.answering.add(self)
        began_s, status, request_id = trio.current_time(), LEFT, _request_id(request)
        with working_for(CallContext(request_id, _trace(request, serving.settings.trace_sample_ratio))):
            try:
                status = await self._answer(request, send, request_id)
            finally:
                serving.answering.discard(self)
                log_access(serving.logs, cast(Any, self.scope), status, trio.current_time() - began_s)
        nursery.cancel_scope.cancel()

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
        self, proxy: Proxy, request: Request, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Let the engine answer what nothing here does, once the call was let in."""
        app = cast(App, self.app)
        request_id = _request_id(request)
        headers = {"x-request-id": request_id, **app.access.cors_headers(request.headers.get("origin"))}
        wire = AsgiWire(cast(Any, send), cast(Any, self.scope), headers)
        app.serving.answering.add(self)
        try:
            try:
                path = proxy.checked_path(cast(Any, self.scope))
            except errors.RequestError as error:
                await wire.start(error.status, PLAIN_TEXT)
                await wire.end(f"{error.message}\n".encode())
                return
            refused = app.gate(request, request_id, engine_path=path)
            if refused is not None:
                refused.headers.update(headers)
                await self._send_response(send, refused)
                return
            await proxy.pass_on(
                cast(Any, self.scope),
                cast(Any, receive),
                wire,
                adds_key=app.access.asks_for_key(request.method, path),
                ours=tuple((name.encode(), value.encode("latin-1")) for name, value in headers.items()),
                stop=app.serving.cutoff,
            )
        finally:
            app.serving.answering.discard(self)

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


def create_app(dialects: Sequence[Dialect], serving: Serving, info: Info, stats: Stats | None = None) -> App:
    """Return the application that serves `dialects`, the info routes, the admin routes and statistics."""
    app = bare_app(dialects, serving)
    _add_info_routes(app, info)
    _add_admin_routes(app)
    add_stats_routes(app, stats or open_stats())
    add_document(app, dialects, info)
    return app


def bare_app(dialects: Sequence[Dialect], serving: Serving) -> App:
    """Return the application that serves `dialects` and nothing else."""
    app = App(serving)
    for dialect in dialects:
        for route in dialect.routes:
            _add_generation_route(app, dialect, route)
    app.register_error_handler(HTTPException, _on_http_exception)
    app.register_error_handler(Exception, _on_exception)
    return app


def _add_generation_route(app: App, dialect: Dialect, route: Route) -> None:
    async def generate(request: Request) -> Response | Answering:
        request_id = _id_of(request)
        trail = _trail(request_id, route.path, dialect, app.serving.services.model.served_model_name)
        try:
            parsed = await _parse(request, dialect, app.serving, trail.arrived_s)
        except Exception as error:
            response = _refused(error, dialect.error, request_id)
            if dialect.generates:
                app.serving.calls.refused(trail, error, response.status_code)
            return response
        if isinstance(parsed, Lookup):
            return partial(answer_lookup, parsed, dialect, request_id, app.serving)
        _note_parsed(trail, parsed)
        return partial(respond, parsed, dialect, request_id, app.serving, trail=trail)

    async def dispatched() -> Response:
        response = await generate(request)
        return response if isinstance(response, Response) else GenerationResponse(response)

    app.error_bodies[route.path] = dialect.error
    app.add_url_rule(route.path, f"{dialect.name} {route.path}", dispatched, methods=list(route.methods))
    app.generations.update({(method, route.path): generate for method in route.methods})


def _trail(request_id: str, path: str, dialect: Dialect, model: str) -> Trail:
    call = current_call()
    return Trail(
        request_id=request_id,
        route=path,
        dialect=dialect.name,
        model=model,
        trace=call.trace if call is not None else None,
        arrived_s=trio.current_time(),
        arrived_unix_s=time.time(),
    )


def _note_parsed(trail: Trail, parsed: Parsed) -> None:
    trail.parsed_s = trio.current_time()
    trail.is_streamed = parsed.stream
    trail.is_constrained = any(ask.constraint is not None for ask in parsed.asks)
    trail.num_choices = sum(ask.num_choices for ask in parsed.asks)


async def _parse(request: Request, dialect: Dialect, serving: Serving, arrived_s: float) -> Parsed | Lookup:
    clock = trio.lowlevel.current_clock()  # works on threads too
    if dialect.json_only:
        check_media_type(request.headers.get("content-type", ""))
    data = await _read_body(request, serving)
    headers = {name.lower(): value for name, value in request.headers.items()}
    path, created_s = request.path, int(time.time())

    def understand() -> Parsed | Lookup:
        body = parse_object(data)
        call = Call(
            body=body,
            headers=headers,
            path=path,
            request_id=secrets.token_hex(16),
            created_s=created_s,
            elapsed_s=lambda: clock.current_time() - arrived_s,
        )
        try:
            return dialect.parse(call, serving.services.model)
        finally:
            body.clear()  # what nobody asked about is freed here, on this thread, not kept for the whole answer

    return await serving.aside.read(understand) if len(data) > LARGE_BODY_BYTES else understand()


async def _read_body(request: Request, serving: Serving) -> bytes:
    settings = serving.settings
    try:
        return await request.get_data(cache=False, as_text=False, parse_form_data=False)
    except RequestEntityTooLarge:
        limit = settings.max_request_bytes
        raise errors.BodyTooLarge(f"The request body is larger than {limit} bytes (--max-request-bytes).") from None
    except RequestTimeout:
        raise errors.BodyTooSlow(f"The request body did not arrive within {settings.body_timeout_s:g} s.") from None


def _add_info_routes(app: App, info: Info) -> None:
    def add(paths: Iterable[str], body: Callable[..., object], methods: Iterable[str] = ("GET",)) -> None:
        async def answer(**arguments: str) -> Response:
            try:
                value = body(**arguments)
                return value if isinstance(value, Response) else _json(200, value)
            except errors.RequestError as error:
                return _refusal(error, partial(general_error, request.path))

        for path in paths:
            app.add_url_rule(path, f"info {path}", answer, methods=list(methods))

    def add_health(paths: Iterable[str], is_well: Callable[[], bool]) -> None:
        async def answer() -> Response:
            return Response(b"", 200 if is_well() else 503)

        for path in paths:
            app.add_url_rule(path, f"health {path}", answer, methods=["GET"])

    # A paused server is alive, and not the one to send a request to.
    add_health(
        ["/health", "/get_health", "/health_generate", "/get_health_generate", "/ping", "/get_ping"],
        lambda: info.readiness() == "ready",
    )
    add_health(["/ready", "/get_ready"], lambda: info.readiness() == "ready" and not info.load().is_paused)
    add(["/"], lambda: RUNNING)
    add(["/v1/models", "/get_models"], lambda: facts.models(info))
    add(["/v1/models/<path:model_id>"], lambda model_id: facts.model(info, model_id))
    add(["/v1/responses/<path:response_id>"], facts.no_response, ["GET", "POST", "DELETE"])
    add(["/model_info", "/get_model_info"], lambda: facts.model_info(info))
    add(["/server_info", "/get_server_info"], lambda: facts.server_info(info))
    add(["/version", "/get_version"], lambda: {"version": info.version})
    add(["/get_load"], lambda: facts.get_load(info))
    add(["/v1/loads", "/get_loads"], lambda: _loads(info))
    add(["/api/tags"], lambda: ollama.tags(info))
    add(["/api/version"], ollama.version)


def add_stats_routes(app: App, stats: Stats) -> None:
    """Add the routes of statistics, and the page that shows them."""
    feed, exposed = StatsFeed(stats), MetricsFeed(stats, app.serving.aside)

    async def dashboard() -> Response:
        return Response(page().body, headers=dict(page().headers))

    async def snapshot() -> Response:
        return Response(encoded(stats.statistics(trio.current_time())), content_type=JSON)

    async def stream(request: Request) -> Response | Answering:
        try:
            limit = read_limit(request.args.get("limit"))
        except errors.RequestError as error:
            return _refused(error, partial(general_error, request.path), _id_of(request))
        return partial(feed.answer, app.serving, limit)

    async def dispatched_stream() -> Response:
        response = await stream(request)
        return response if isinstance(response, Response) else GenerationResponse(response)

    async def metrics() -> Response:
        text, content_type = await exposed.text(request.headers.get("accept", ""))
        return Response(text, content_type=content_type)

    if app.serving.settings.enable_metrics:
        app.add_url_rule("/metrics", "info /metrics", metrics, methods=["GET"])
    app.add_url_rule("/v1/stats", "info /v1/stats", snapshot, methods=["GET"])
    app.add_url_rule("/v1/stats/stream", "info /v1/stats/stream", dispatched_stream, methods=["GET"])
    app.add_url_rule("/dashboard", "info /dashboard", dashboard, methods=["GET"])
    app.generations["GET", "/v1/stats/stream"] = stream


def add_document(app: App, dialects: Sequence[Dialect], info: Info) -> None:
    """Serve the OpenAPI document of the application's routes."""

    @cache
    def rendered() -> bytes:
        return orjson.dumps(
            document(
                [rule_of(rule.rule, rule.methods or (), rule.endpoint) for rule in app.url_map.iter_rules()],
                dialects,
                BODIES,
                app.access,
                answers={**info_answers(info), **ANSWERS},
                version=info.version,
                model_name=info.model.served_model_name,
                root_path=app.serving.settings.root_path,
            )
        )

    async def answer() -> Response:
        return Response(await app.serving.aside.write(rendered), content_type=JSON)

    app.add_url_rule("/openapi.json", "info /openapi.json", answer, methods=["GET"])


def _loads(info: Info) -> object:
    rank = request.args.get("dp_rank")
    if rank is not None and not SANE_RANK.fullmatch(rank):
        raise errors.InvalidRequest(f"dp_rank must be an integer, not {rank!r:.80}", "dp_rank")
    loads = facts.loads(info, time.time(), request.args.get("include", "all"), None if rank is None else int(rank))
    if request.args.get("format") == "prometheus":
        return Response(facts.loads_as_gauges(loads), content_type="text/plain; version=0.0.4; charset=utf-8")
    return loads


def _add_admin_routes(app: App) -> None:
    admin = Admin(app.serving)

    def add(path: str, methods: Iterable[str], order: Callable[[], Awaitable[Told]]) -> None:
        async def answer() -> Response:
            try:
                return _told(await order())
            except errors.TrnrtError as error:
                return _refusal(error, partial(general_error, request.path))

        app.add_url_rule(path, f"admin {path}", answer, methods=list(methods))

    async def with_body(run: BodyRoute) -> Told:
        data = await _read_body(request, app.serving)
        if len(data) > LARGE_BODY_BYTES:
            return await run(await app.serving.aside.read(partial(parse_object, data)))
        return await run(parse_object(data) if data else {})

    async def flush() -> Told:
        return await admin.flush_cache(read_flush_timeout_s(request.args.get("timeout")))

    add("/flush_cache", ("GET", "POST"), flush)
    for path, (methods, run) in body_routes(admin).items():
        add(path, methods, partial(with_body, run))


def _told(told: Told) -> Response:
    if told.is_text:
        return Response(str(told.value), told.status, content_type="text/plain; charset=utf-8")
    return Response(b"", told.status) if told.value is None else _json(told.status, told.value)


async def _on_http_exception(error: HTTPException) -> Response:
    """Give what Quart itself refuses our error bodies."""
    told: errors.RequestError
    if isinstance(error, NotFound):
        told = errors.NotFound(f"There is no {request.path} here.")
    elif isinstance(error, MethodNotAllowed):
        told = errors.MethodNotAllowed(f"{request.method} is not allowed for {request.path}.")
    else:
        told = errors.InvalidRequest(error.description or error.name)
    response = _refusal(told, cast(App, current_app).error_body(request.path))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["allow"] = ", ".join(sorted(error.valid_methods))
    return response


async def _on_exception(error: Exception) -> Response:
    """Log what nobody expected; the client learns only that it happened."""
    return _refusal(error, cast(App, current_app).error_body(request.path))


def _refusal(error: Exception, shape: ErrorBody) -> Response:
    return _refused(error, shape, _id_of(request))


def _refused(error: Exception, shape: ErrorBody, request_id: str) -> Response:
    status, told, headers = describe(error)
    response = _json(status, shape(told, status, request_id))
    response.headers.update(headers)
    return response


def _json(status: int, value: object) -> Response:
    return Response(orjson.dumps(value), status, content_type=JSON)


def _id_of(request: Request) -> str:
    return cast(str, request.scope["state"]["request_id"])


def _trace(request: Request, ratio: float | None) -> TraceContext | None:
    return trace_of(request.headers.getlist("traceparent"), request.headers.getlist("tracestate"), ratio)


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if SANE_REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
