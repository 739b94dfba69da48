"""The renderer's contract for OpenAI's routes, over the dialects that serve them: refusals, errors, first frames; core.

Nobody may be misled by a field that was passed over, so unknown ones are refused by name. Errors have one shape, with
the status as their code. A choice's role is told with its first tokens, not before: an engine that refuses a stream
leaves one error in it, and nothing that looks like an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from attrs import evolve, fields

from stages.errors import InvalidRequest, NotFound
from stages.ingress.dialect import BodyForm, Call, Collected, Dialect, Encoder, Lookup, Parsed
from stages.ingress.dialects.common import DONE, frame
from stages.ingress.error_bodies import message_of
from stages.messages import Event, Prompt
from stages.settings import ModelSettings

# What OpenAI's own API takes for its billing, storage and telemetry, which changes no answer.
IGNORED = frozenset(
    ("model", "store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_retention", "verbosity")
)


def strict(dialect: Dialect, *, allows_unknown: bool = False) -> Dialect:
    """Return a dialect held to the contract; with allows_unknown it passes over fields that it does not know."""
    known = {route.path: _known(route.form) for route in dialect.routes if route.form is not None}

    def parse(call: Call, model: ModelSettings) -> Parsed | Lookup:
        if not allows_unknown and call.path in known:
            _refuse_unknown(call.body, known[call.path])
        try:
            parsed = dialect.parse(call, model)
        except NotFound as error:  # a model of another name
            raise InvalidRequest(error.message, error.param, error.code) from None
        return evolve(parsed, encoder=LateEncoder(parsed.encoder)) if isinstance(parsed, Parsed) else parsed

    return evolve(dialect, parse=parse, error=strict_error)


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
    return frozenset((*names, *form.refused, *IGNORED))


def _refuse_unknown(body: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(body.keys() - known):
        raise InvalidRequest(f"unsupported request field(s): {', '.join(unknown)}", unknown[0], "unsupported_parameter")
