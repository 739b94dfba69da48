"""The OpenAPI 3.1 document of what is served: made of the application's own routes and the wire classes; core.

A route is in it because the application has it, so the two cannot differ. What a body may hold comes from the route's
form, what an error looks like from the dialect's own error function, who needs a key from Access.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import attrs
from attrs import field, frozen

from stages.errors import (
    BodyTooLarge,
    BodyTooSlow,
    EngineFailure,
    InvalidRequest,
    NotFound,
    QueueFull,
    Unauthorized,
    Unavailable,
)
from stages.ingress.access import Access
from stages.ingress.answers import Shown, answers_of
from stages.ingress.dialect import BodyForm, Dialect, ErrorBody
from stages.ingress.dialects.sglang_sampling import ContractError
from stages.ingress.error_bodies import general_error
from stages.ingress.json_schema import Schema, Schemas, schema_of

JSON = "application/json"
DESCRIPTION = (
    "Where a field has no type here, its dialect reads it. Fields that are not listed are ignored, unless the schema "
    "says otherwise; null is an absent field."
)

_LOADS: Mapping[str, Schema] = {
    "include": {"type": "string", "default": "all"},
    "dp_rank": {"type": "integer"},
    "format": {"type": "string", "enum": ["json", "prometheus"], "default": "json"},
}
QUERY: Mapping[str, Mapping[str, Schema]] = {
    "/flush_cache": {"timeout": {"type": "number", "minimum": 0, "default": 0}},
    "/v1/loads": _LOADS,
    "/get_loads": _LOADS,
    "/v1/stats/stream": {"limit": {"type": "integer", "minimum": 1}},
}
# What a route answers with, where it is not JSON alone.
MEDIA_TYPES: Mapping[str, tuple[str, ...]] = {
    "/flush_cache": ("text/plain",),
    "/v1/loads": (JSON, "text/plain"),
    "/get_loads": (JSON, "text/plain"),
    "/metrics": ("text/plain", "application/openmetrics-text"),
    "/dashboard": ("text/html",),
}
# Routes whose answer is a stream of what another answers.
STREAM_OF: Mapping[str, str] = {"/v1/stats/stream": "/v1/stats"}
# Fields that are objects whose keys are data, of routes that no dialect answers.
DATA_KEYED: Mapping[str, frozenset[str]] = {"/v1/stats": frozenset({"outcomes", "unavailable", "lost"})}
# Routes that are there to say that there is nothing.
NEVER_ANSWERED = frozenset({"/v1/responses/{response_id}"})

_SAMPLES: Mapping[int, tuple[Exception, ...]] = {
    400: (
        InvalidRequest("It is wrong.", "field", "invalid_value"),
        InvalidRequest("It is wrong."),
        ContractError("It has the wrong type.", "field"),  # where a dialect has a shape of its own for it
    ),
    401: (Unauthorized(),),
    404: (NotFound("There is none.", "model", "model_not_found"), NotFound("There is none.")),
    408: (BodyTooSlow("It did not arrive."),),
    413: (BodyTooLarge("It is too large."),),
    500: (EngineFailure("a stage failed"),),
    503: (QueueFull(), Unavailable("Come again.")),
}


@frozen
class Rule:
    """A route as the application has it: `{name}` parts in its path, and the kind of thing that answers."""

    path: str
    methods: tuple[str, ...]
    kind: str


@frozen(eq=False)
class Operation:
    """One method of one route, as far as it is described."""

    rule: Rule
    method: str
    form: BodyForm | None
    error: ErrorBody
    stream_type: str | None = None
    answers: Shown = field(factory=Shown)
    data_keyed: frozenset[str] = frozenset()

    @property
    def parameters(self) -> list[Schema]:
        """Return what stands in the path, and what may stand behind it."""
        in_path = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", self.rule.path)
        ]
        query = QUERY.get(self.rule.path, {})
        return in_path + [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]

    @property
    def is_generation(self) -> bool:
        """Say whether a dialect answers."""
        return self.rule.kind not in ("info", "admin", "health")

    def statuses(self) -> set[int]:
        """Return the statuses of errors but for a missing key."""
        if self.rule.kind == "health":
            return set()
        if self.is_generation or self.rule.kind == "admin":
            return {400, 408, 413, 500, 503} | (
                {404} if self.is_generation and _has_field(self.form, "model") else set()
            )
        found = {404} if "{" in self.rule.path else set()
        return found | ({400} if self.rule.path in QUERY else set())


def rule_of(pattern: str, methods: Iterable[str], endpoint: str) -> Rule:
    """Return the rule of an application's own pattern, its endpoint being its kind and its path."""
    path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", pattern)
    return Rule(path, tuple(sorted(set(methods) - {"OPTIONS", "HEAD"})), endpoint.rsplit(" ", 1)[0])


def document(
    rules: Iterable[Rule],
    dialects: Sequence[Dialect],
    admin_bodies: Mapping[str, type],
    access: Access,
    *,
    answers: Mapping[str, Sequence[object]],
    version: str,
    model_name: str,
    root_path: str = "",
) -> dict[str, Any]:
    """Return the document of a server with these rules; `answers` are examples by path, of what no dialect answers.

    A path with none of them there answers nothing but errors.
    """
    schemas = Schemas(model_name)
    paths: dict[str, dict[str, Any]] = {}
    for rule in sorted(rules, key=lambda rule: rule.path):
        for method in rule.methods:
            operation = _operation(rule, method, dialects, admin_bodies, answers, model_name)
            paths.setdefault(rule.path, {})[method.lower()] = _describe(operation, schemas, access)
    components: dict[str, Any] = {"schemas": dict(sorted(schemas.components.items()))}
    if schemes := _schemes(access):
        components["securitySchemes"] = schemes
    return {
        "openapi": "3.1.0",
        "info": {"title": "TrnRT", "version": version, "description": DESCRIPTION},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": components,
        "tags": [{"name": kind} for kind in sorted({rule.kind for rule in rules})],
    }


def _operation(
    rule: Rule,
    method: str,
    dialects: Sequence[Dialect],
    admin_bodies: Mapping[str, type],
    answers: Mapping[str, Sequence[object]],
    model_name: str,
) -> Operation:
    has_body = method in ("POST", "PUT", "PATCH")
    for dialect in dialects:
        for route in dialect.routes:
            if route.path == rule.path:
                form = route.form if has_body else None
                stream_type = dialect.stream_type.partition(";")[0] if _has_field(form, "stream") else None
                shown = answers_of(dialect, route, model_name)
                return Operation(rule, method, form, dialect.error, stream_type, shown, route.data_keyed)
    body = admin_bodies.get(rule.path) if has_body else None
    path = STREAM_OF.get(rule.path, rule.path)
    values = list(answers.get(path, ()))
    is_stream = path != rule.path
    return Operation(
        rule,
        method,
        BodyForm((body,)) if body else None,
        _general(rule.path),
        "text/event-stream" if is_stream else None,
        Shown(events=values) if is_stream else Shown(values),
        DATA_KEYED.get(path, frozenset()),
    )


def _describe(operation: Operation, schemas: Schemas, access: Access) -> dict[str, Any]:
    rule = operation.rule
    name = f"{operation.method.lower()}_{_slug(rule.path)}"
    described: dict[str, Any] = {"operationId": name, "tags": [rule.kind]}
    if operation.parameters:
        described["parameters"] = operation.parameters
    if operation.form is not None:
        schema = schemas.body(operation.form)
        is_required = operation.is_generation or schemas.has_required(operation.form)
        described["requestBody"] = {"required": is_required, "content": {JSON: {"schema": schema}}}
    needed = _needed(rule.path, operation.method, access)
    if needed:
        described["security"] = [{name: []} for name in needed]
    described["responses"] = _responses(operation, schemas, needs_key=bool(needed))
    return described


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def _responses(operation: Operation, schemas: Schemas, *, needs_key: bool) -> dict[str, Any]:
    path, shown = operation.rule.path, operation.answers
    answers: dict[str, Any] = {}
    if operation.rule.kind == "health":
        answers = {"200": {"description": "It takes requests."}, "503": {"description": "It takes none now."}}
    elif shown.whole or path in MEDIA_TYPES or path in STREAM_OF:
        answers["200"] = {"description": "The answer.", "content": _content(operation, schemas)}
    elif path not in NEVER_ANSWERED:
        answers["200"] = {"description": "It is done."}
    for status in sorted(operation.statuses() | ({401} if needs_key else set())):
        answers[str(status)] = _error(operation, status)
    if path == "/flush_cache":
        answers["400"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    return answers


def _content(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    """Return the media types of an answer and what they hold: of a stream, what the data of each of its events is."""
    path, shown = operation.rule.path, operation.answers
    content: dict[str, Any] = {one: {"schema": {"type": "string"}} for one in MEDIA_TYPES.get(path, ()) if one != JSON}
    if shown.whole:
        whole = schema_of(shown.whole, operation.data_keyed)
        content = {JSON: {"schema": schemas.add(f"answers.{_slug(path)}", whole)}, **content}
    if operation.stream_type is not None and shown.events:
        events = schemas.add(f"events.{_slug(path)}", schema_of(shown.events, operation.data_keyed))
        content[operation.stream_type] = {"x-event-schema": events}
    return content


def _error(operation: Operation, status: int) -> dict[str, Any]:
    bodies = [operation.error(sample, status, "request") for sample in _SAMPLES[status]]
    if status == HTTPStatus.UNAUTHORIZED and not re.match(r"/v1(/|$)", operation.rule.path):
        bodies = [{"error": "Unauthorized"}]
    schema = schema_of(bodies)
    told: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": schema}}}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        told["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return told


def _general(path: str) -> ErrorBody:
    return lambda error, status, request_id: general_error(path, error, status, request_id)


# ---------------------------------------------------------------------------------------------------------------------
# Keys
# ---------------------------------------------------------------------------------------------------------------------


def _needed(path: str, method: str, access: Access) -> tuple[str, ...]:
    """Return the names of the schemes of which a call needs one; none where it is open."""
    try:
        access.check(method, path, ())
    except Unauthorized:
        return ("admin_bearer", "admin_header") if access.needs_admin_key(path) else ("bearer", "header")
    return ()


def _schemes(access: Access) -> dict[str, Any]:
    keys = (("", access.api_key), ("admin_", access.admin_api_key))
    schemes: dict[str, Any] = {}
    for prefix, key in keys:
        if key is not None:
            schemes[f"{prefix}bearer"] = {"type": "http", "scheme": "bearer"}
            schemes[f"{prefix}header"] = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    return schemes


def _slug(path: str) -> str:
    return re.sub(r"\W+", "_", path).strip("_") or "root"


def _has_field(form: BodyForm | None, name: str) -> bool:
    return form is not None and any(hasattr(attrs.fields(cls), name) for cls in form.classes)
