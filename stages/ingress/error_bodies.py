"""The general error shapes, from our error tree: OpenAI's nested, SGLang's flat, Anthropic's, Ollama's bare text."""

from http import HTTPStatus

from stages.errors import Aborted, QueueFull, RemoteFailure, RequestError, Unavailable

INTERNAL_ERROR_TEXT = "Internal server error"

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def message_of(error: Exception) -> str:
    """Return the text a client may read: the error's own when it is the client's to mend, else a generic one."""
    if isinstance(error, RequestError | Unavailable | Aborted | RemoteFailure):
        return error.message
    return INTERNAL_ERROR_TEXT


def openai_error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return OpenAI's nested error object with a string code or null."""
    param = error.param if isinstance(error, RequestError) else None
    return {"error": {"message": message_of(error), "type": _openai_type(status), "param": param, "code": _code(error)}}


def flat_error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return SGLang's flat error object, whose type is the status phrase for a 400 and the status as text above."""
    kind = HTTPStatus(status).phrase if status == HTTPStatus.BAD_REQUEST else str(status)
    return {"object": "error", "message": message_of(error), "type": kind, "param": None, "code": status}


def anthropic_error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return Anthropic's error object; it has no place for the field's name, so the message begins with that."""
    text = message_of(error)
    if isinstance(error, RequestError) and error.param and error.param not in text:
        text = f"{error.param}: {text}"
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": request_id or None}


def ollama_error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return Ollama's error object."""
    return {"error": message_of(error)}


def general_error(path: str, error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return the error body of what no dialect answered: in the shape of what is under that path, else SGLang's."""
    for root, shape in (("/v1/messages", anthropic_error), ("/v1", openai_error), ("/api", ollama_error)):
        if path == root or path.startswith(f"{root}/"):
            return shape(error, status, request_id)
    return flat_error(error, status, request_id)


def _openai_type(status: int) -> str:
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return "service_unavailable_error"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return "invalid_request_error"


def _code(error: Exception) -> str | None:
    if isinstance(error, QueueFull):
        return "server_is_overloaded"
    return error.code if isinstance(error, RequestError) else None
