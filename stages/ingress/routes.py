"""All routes of the server: dialects, its own facts, orders of its operators, statistics, its OpenAPI document."""

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache, partial

import orjson
import trio
from quart import Request, Response, request

from stages import errors
from stages.ingress import info as facts
from stages.ingress import ollama
from stages.ingress.admin import ANSWERS, BODIES, Admin, BodyRoute, Told, body_routes, read_flush_timeout_s
from stages.ingress.app import JSON, Answering, App, GenerationResponse
from stages.ingress.body import LARGE_BODY_BYTES, parse_object
from stages.ingress.dashboard import page
from stages.ingress.dialect import Dialect
from stages.ingress.error_bodies import general_error
from stages.ingress.generation import bare_app, read_body
from stages.ingress.info import Info
from stages.ingress.info_answers import RUNNING, info_answers
from stages.ingress.openapi import document, rule_of
from stages.ingress.replies import id_of, json_reply, refusal, refused
from stages.ingress.respond import Serving
from stages.ingress.stats_routes import MetricsFeed, StatsFeed, encoded, read_limit
from stages.stats.stage import Stats, open_stats

SANE_RANK = re.compile(r"-?[0-9]{1,18}")


def create_app(dialects: Sequence[Dialect], serving: Serving, info: Info, stats: Stats | None = None) -> App:
    """Return the application that serves `dialects`, the info routes, the admin routes and statistics."""
    app = bare_app(dialects, serving)
    _add_info_routes(app, info)
    _add_admin_routes(app)
    add_stats_routes(app, stats or open_stats())
    add_document(app, dialects, info)
    return app


def _add_info_routes(app: App, info: Info) -> None:
    def add(paths: Iterable[str], body: Callable[..., object], methods: Iterable[str] = ("GET",)) -> None:
        async def answer(**arguments: str) -> Response:
            try:
                value = body(**arguments)
                return value if isinstance(value, Response) else json_reply(200, value)
            except errors.RequestError as error:
                return refusal(error, partial(general_error, request.path))

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
                return refusal(error, partial(general_error, request.path))

        app.add_url_rule(path, f"admin {path}", answer, methods=list(methods))

    async def with_body(run: BodyRoute) -> Told:
        data = await read_body(request, app.serving)
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
    return Response(b"", told.status) if told.value is None else json_reply(told.status, told.value)


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
            return refused(error, partial(general_error, request.path), id_of(request))
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
