"""The renderer's contract for OpenAI's routes, over the dialects that serve them: refusals, errors, first frames; core.

Nobody may be misled by a field that was passed over, so unknown ones are refused by name. Errors have one shape, with
the status as their code. A choice's role is told with its first tokens, not before: an engine that refuses a stream
leaves one error in it, and nothing that looks like an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from typing import Any

from attrs import evolve, fields

from stages.errors import InvalidRequest
from stages.ingress.dialect import BodyForm, Call, Collected, Dialect, Encoder, Lookup, Parsed
from stages.ingress.dialects.common import DONE, frame
from stages.ingress.dialects.passing import ENGINE_ONLY, PASSED
from stages.ingress.error_bodies import message_of
from stages.messages import Event, Prompt
from stages.settings import ModelSettings

# What OpenAI's own API takes for its billing, storage and telemetry, which changes no answer.
IGNORED = frozenset(("store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_retention"))
# What is the engine's, and cannot be asked of one through its tokens.
REFUSED = frozenset(
    (
        "session_id",
        "session_params",
        "conversation_id",
        "lora_path",
        "custom_logit_processor",
        "image_data",
        "video_data",
        "audio_data",
        "mm_hashes",
    )
)


def strict(dialect: Dialect, *, allows_unknown: bool = False, tells_usage: bool = False) -> Dialect:
    """Return a dialect held to the contract.

    With allows_unknown it passes over fields that it does not know, with tells_usage streams tell their usage unasked.
    """
    known = {route.path: _known(route.form) for route in dialect.routes if route.form is not None}

    def parse(call: Call, model: ModelSettings) -> Parsed | Lookup:
        if call.path in known:
            _refuse(call.body, REFUSED)
            if not allows_unknown:
                _refuse(call.body, call.body.keys() - known[call.path])
        if tells_usage and call.body.get("stream") is True:
            call = evolve(call, body=_with_usage(call.body))
        if _are_ids(call.body.get("stop")):
            call = evolve(call, body=_with_stop_ids(call.body))
        if call.body.get("continue_final_message") is True and not _can_be_continued(call.body.get("messages")):
            call = evolve(call, body={**call.body, "continue_final_message": False})
        name = call.body.get("model")
        if isinstance(name, str) and name not in ("", model.served_model_name):
            raise InvalidRequest(f"The model `{name:.200}` does not exist.", "model", "model_not_found")
        parsed = dialect.parse(call, model)
        return evolve(parsed, encoder=LateEncoder(parsed.encoder)) if isinstance(parsed, Parsed) else parsed

    return evolve(dialect, parse=parse, error=strict_error)


def only(dialect: Dialect, names: AbstractSet[str]) -> Dialect:
    """Return a dialect that gets to see these fields of a body and no others."""

    def parse(call: Call, model: ModelSettings) -> Parsed | Lookup:
        body = {name: value for name, value in call.body.items() if name in names}
        return dialect.parse(evolve(call, body=body), model)

    return evolve(dialect, parse=parse)


def strict_error(error: Exception, status: int, request_id: str = "") -> dict[str, object]:
    """Return the contract's error object."""
    kind = "InternalServerError" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "BadRequestError"
    told = {"object": "error", "message": message_of(error), "type": kind, "param": None, "code": status}
    return {"error": told}


class LateEncoder:
    """An encoder whose first frames go out with the first event that is one of an answer."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner
        self._first = inner.start()
        self.event: Callable[[int, Prompt, Event], list[bytes]] = self._with_first

    def _with_first(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        frames = self._inner.event(ask_index, prompt, event)
        self.event = self._inner.event
        return self._first + frames

    def start(self) -> list[bytes]:
        """Return no frames."""
        return []

    def finish(self) -> list[bytes]:
        """Return the last frames."""
        return self._inner.finish()

    def failed(self, error: Exception) -> list[bytes]:
        """Return the error, and after an answer that had begun what ends one: its usage, where it was asked for."""
        status = getattr(error, "status", HTTPStatus.INTERNAL_SERVER_ERROR)
        told = frame(strict_error(error, int(status)))
        return [told, *self._inner.finish()] if self.event != self._with_first else [told, DONE]

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole answer."""
        return self._inner.body(collected)


def _known(form: BodyForm) -> frozenset[str]:
    names = {field.alias for each in form.classes for field in fields(each)}
    return frozenset((*names, *form.refused, *IGNORED, *PASSED, *ENGINE_ONLY))


def _refuse(body: Mapping[str, Any], names: AbstractSet[str]) -> None:
    if found := sorted(name for name in body.keys() & names if body[name] is not None):
        raise InvalidRequest(f"unsupported request field(s): {', '.join(found)}", found[0], "unsupported_parameter")


def _with_usage(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    return {**body, "stream_options": {"include_usage": True, **(options if isinstance(options, dict) else {})}}


def _can_be_continued(messages: object) -> bool:
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "assistant" or last.get("tool_calls"):
        return False
    return isinstance(last.get("content"), str | list)


def _are_ids(stop: object) -> bool:
    return isinstance(stop, list) and bool(stop) and all(type(one) is int for one in stop)


def _with_stop_ids(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body whose stop was ids, which are stop_token_ids unless there are some."""
    ids = body["stop"] if body.get("stop_token_ids") is None else body["stop_token_ids"]
    return {**body, "stop": None, "stop_token_ids": ids}
