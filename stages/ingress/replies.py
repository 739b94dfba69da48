"""Answers that are one JSON value, refusals above all, those of Quart too."""

from typing import cast

import orjson
from quart import Request, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from stages import errors
from stages.ingress.app import JSON, App
from stages.ingress.dialect import ErrorBody
from stages.ingress.respond import describe


def json_reply(status: int, value: object) -> Response:
    """Return a JSON answer."""
    return Response(orjson.dumps(value), status, content_type=JSON)


def refused(error: Exception, shape: ErrorBody, request_id: str) -> Response:
    """Return the answer that tells an error, in `shape`."""
    status, told, headers = describe(error)
    response = json_reply(status, shape(told, status, request_id))
    response.headers.update(headers)
    return response


def refusal(error: Exception, shape: ErrorBody) -> Response:
    """Return the refusal of the request in hand."""
    return refused(error, shape, id_of(request))


async def on_http_exception(error: HTTPException) -> Response:
    """Give what Quart itself refuses our error bodies."""
    told: errors.RequestError
    if isinstance(error, NotFound):
        told = errors.NotFound(f"There is no {request.path} here.")
    elif isinstance(error, MethodNotAllowed):
        told = errors.MethodNotAllowed(f"{request.method} is not allowed for {request.path}.")
    else:
        told = errors.InvalidRequest(error.description or error.name)
    response = refusal(told, cast(App, current_app).error_body(request.path))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["allow"] = ", ".join(sorted(error.valid_methods))
    return response


async def on_exception(error: Exception) -> Response:
    """Log what nobody expected; the client learns only that it happened."""
    return refusal(error, cast(App, current_app).error_body(request.path))


def id_of(request: Request) -> str:
    """Return the id that the connection gave a request."""
    return cast(str, request.scope["state"]["request_id"])
