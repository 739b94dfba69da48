"""Routes of dialects: a body is read, parsed off the loop where it is large, and answered by `respond`."""

import logging
import secrets
import time
from collections.abc import Sequence
from functools import partial

import trio
from quart import Request, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge, RequestTimeout

from stages import errors
from stages.calls import current_call
from stages.ingress.app import Answering, App, GenerationResponse
from stages.ingress.body import LARGE_BODY_BYTES, check_media_type, parse_object
from stages.ingress.dialect import Call, Dialect, Lookup, Parsed, Route
from stages.ingress.replies import id_of, on_exception, on_http_exception, refused
from stages.ingress.respond import Serving, answer_lookup, respond
from stages.trail import Trail

log = logging.getLogger("trnrt.ingress")


def bare_app(dialects: Sequence[Dialect], serving: Serving) -> App:
    """Return the application that serves `dialects` and nothing else."""
    app = App(serving)
    for dialect in dialects:
        for route in dialect.routes:
            _add_generation_route(app, dialect, route)
    app.register_error_handler(HTTPException, on_http_exception)
    app.register_error_handler(Exception, on_exception)
    return app


def _add_generation_route(app: App, dialect: Dialect, route: Route) -> None:
    async def generate(request: Request) -> Response | Answering:
        request_id = id_of(request)
        trail = _trail(request_id, route.path, dialect, app.serving.services.model.served_model_name)
        try:
            parsed = await _parse(request, dialect, app.serving, trail.arrived_s)
        except Exception as error:
            response = refused(error, dialect.error, request_id)
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
    data = await read_body(request, serving)
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


async def read_body(request: Request, serving: Serving) -> bytes:
    """Return a whole body; raises RequestError for one that is too large or too slow."""
    settings = serving.settings
    try:
        return await request.get_data(cache=False, as_text=False, parse_form_data=False)
    except RequestEntityTooLarge:
        limit = settings.max_request_bytes
        raise errors.BodyTooLarge(f"The request body is larger than {limit} bytes (--max-request-bytes).") from None
    except RequestTimeout:
        raise errors.BodyTooSlow(f"The request body did not arrive within {settings.body_timeout_s:g} s.") from None
