"""Turns the bytes of a request body into one JSON object, or a RequestError that says what is wrong; core."""

from typing import Any

import orjson

from stages.errors import InvalidRequest
from stages.ingress.pieces import InvalidJson, NestedTooDeep, parse_in_pieces

MAX_DEPTH = 128
# What is larger is read off the event loop, which a body of this size holds for up to 5 ms (many small messages).
LARGE_BODY_BYTES = 64 * 1024
# What a whole context could need, and what can be freed within some 50 ms: that is never done in pieces. Brackets and
# commas within strings count too, which is known without reading.
MAX_BRACKETS = 1_000_000
MAX_COMMAS = 4_000_000


def check_media_type(content_type: str) -> None:
    """Demand application/json, parameters allowed; raises InvalidRequest (400, as the servers we follow do)."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest("Unsupported Media Type: Only 'application/json' is allowed")


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; raises InvalidRequest for anything else, NaN and deep nesting included."""
    value = _parse_large(data) if len(data) > LARGE_BODY_BYTES else _parse(data)
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    return value


def _parse(data: bytes) -> object:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from None
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise _too_deep()
    return value


def _parse_large(data: bytes) -> object:
    for what, count, most in (
        ("opening brackets", data.count(b"{") + data.count(b"["), MAX_BRACKETS),
        ("commas", data.count(b","), MAX_COMMAS),
    ):
        if count > most:
            raise InvalidRequest(f"The request body has more than {most} {what}.")
    try:
        return parse_in_pieces(data, MAX_DEPTH)
    except InvalidJson as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from None
    except NestedTooDeep:
        raise _too_deep() from None


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"The request body is nested deeper than {MAX_DEPTH} levels.")


def _is_deeper_than(value: object, max_depth: int) -> bool:
    """Say whether containers nest deeper than max_depth, one level of the tree at a time."""
    level: list[object] = [value]
    for _ in range(max_depth):
        level = [child for container in level for child in _children(container) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(container: object) -> list[object]:
    if isinstance(container, dict):
        return list(container.values())
    return container if isinstance(container, list) else []
