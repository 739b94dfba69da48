"""Turns the bytes of a request body into one JSON object, or a RequestError that says what is wrong; core."""

from typing import Any

import orjson

from stages.errors import InvalidRequest

MAX_DEPTH = 128


def check_media_type(content_type: str) -> None:
    """Demand application/json, parameters allowed; raises InvalidRequest (400, as the servers we follow do)."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest("Unsupported Media Type: Only 'application/json' is allowed")


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; raises InvalidRequest for anything else, NaN and deep nesting included."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise InvalidRequest(f"The request body is nested deeper than {MAX_DEPTH} levels.")
    return value


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
