"""The general error shapes, from our error tree: OpenAI's nested one, SGLang's flat one and Ollama's bare text."""

from http import HTTPStatus

from stages.errors import QueueFull, RequestError, Unavailable

INTERNAL_ERROR_TEXT = "Internal server error"


def message_of(error: Exception) -> str:
    """Return the text a client may read: the error's own when it is the client's to mend, else a generic one."""
    if isinstance(error, RequestError | Unavailable):
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


def ollama_error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return Ollama's error object."""
    return {"error": message_of(error)}


def general_error(path: str, error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return the error body of a path no dialect owns: OpenAI's shape under /v1, Ollama's under /api, else SGLang's."""
    shapes = {"v1": openai_error, "api": ollama_error}
    return shapes.get(path.split("/")[1] if "/" in path else "", flat_error)(error, status, request_id)


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
