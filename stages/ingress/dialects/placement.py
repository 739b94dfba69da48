"""Fields that say where a request stands in the queue and in the prefix cache, the same in every dialect.

Sessions are made by their first request, so an id is never unknown: a conversation_id, or OpenAI's prompt_cache_key,
names one as well as session_id does. What SGLang's session_params add to an id (continue the text of an earlier
request, cut it, replace it) would change the prompt, and is refused by name.
"""

import math
from collections.abc import Sequence

import attrs
from attrs import frozen

from stages.errors import InvalidRequest
from stages.ingress.dialect import Call
from stages.messages import Ask

ROUTING_KEY_HEADER = "x-smg-routing-key"
MAX_NAME_CHARACTERS = 1024


@frozen(kw_only=True)
class SessionParams:
    """SGLang's session_params; all but the id must ask for nothing."""

    id: str | None = None
    rid: str | None = None
    offset: int | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


@frozen(kw_only=True)
class PlacementFields:
    """The fields; a wire class of a request's body inherits them."""

    priority: int | None = None
    cache_salt: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    routing_key: str | None = None
    session_id: str | None = None
    session_params: SessionParams | None = None
    conversation_id: str | None = None
    prompt_cache_key: str | None = None
    request_timeout: float | None = None


def place(asks: Sequence[Ask], body: PlacementFields, call: Call) -> tuple[Ask, ...]:
    """Return the asks with what `body` and `call` say of their place; raises InvalidRequest naming the field."""
    salts = _one_each("cache_salt", body.cache_salt, len(asks))
    keys = _one_each("extra_key", body.extra_key, len(asks))
    session, timeout_s = _session(body), _timeout_s(body)
    header = call.headers.get(ROUTING_KEY_HEADER)
    routing_key = _name(ROUTING_KEY_HEADER, header) or _name("routing_key", body.routing_key)
    return tuple(
        attrs.evolve(
            ask,
            priority=body.priority,
            namespace=_namespace(salt, key),
            session=session,
            routing_key=routing_key,
            timeout_s=timeout_s,
        )
        for ask, salt, key in zip(asks, salts, keys, strict=True)
    )


def _namespace(salt: str, key: str) -> str:
    """Return one name of both, "" of none; the length in front keeps ("ab", "c") and ("a", "bc") apart."""
    return f"{len(salt)}:{salt}{key}" if salt or key else ""


def _one_each(name: str, value: str | list[str] | None, num_asks: int) -> list[str]:
    values = value if isinstance(value, list) else [value or ""] * num_asks
    if len(values) != num_asks:
        raise InvalidRequest(f"The length of {name} should be equal to the batch size.", name, "invalid_value")
    for one in values:
        _name(name, one)
    return values


def _session(body: PlacementFields) -> str | None:
    params = body.session_params
    if params is None or params == SessionParams():
        named = _name("session_id", body.session_id)
        return (
            named or _name("conversation_id", body.conversation_id) or _name("prompt_cache_key", body.prompt_cache_key)
        )
    if body.session_id:
        raise InvalidRequest("session_id and session_params cannot both be given.", "session_params", "invalid_value")
    for field in ("rid", "offset", "replace", "drop_previous_output"):
        if getattr(params, field):
            text = f"session_params.{field} is not supported by this server; send the whole prompt."
            raise InvalidRequest(text, f"session_params.{field}", "unsupported_parameter")
    if not params.id:
        raise InvalidRequest("session_params.id is required.", "session_params.id", "invalid_value")
    return _name("session_params.id", params.id)


def _name(field: str, value: str | None) -> str | None:
    """Return a name, None for an empty one; raises InvalidRequest for one too long to carry around."""
    if value is not None and len(value) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(f"{field} must have at most {MAX_NAME_CHARACTERS} characters.", field, "invalid_value")
    return value or None


def _timeout_s(body: PlacementFields) -> float | None:
    seconds = body.request_timeout
    if seconds is not None and not 0 < seconds < math.inf:
        text = f"request_timeout must be a positive number of seconds, got {seconds}."
        raise InvalidRequest(text, "request_timeout", "invalid_value")
    return seconds
