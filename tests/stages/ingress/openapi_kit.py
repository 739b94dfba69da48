"""The document at /openapi.json for tests: its operations, what conforms to its schemas, values drawn of them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import orjson
import pytest
from attrs import evolve
from hypothesis import strategies as st

from stages.errors import RequestError
from stages.ingress.access import Access
from stages.ingress.admin import ANSWERS, BODIES
from stages.ingress.answers import FINISHES, deltas_of
from stages.ingress.app import App
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import find_dialects
from stages.ingress.info_answers import info_answers
from stages.ingress.openapi import document, rule_of
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.messages import Ended, Event, Submit, Usage
from stages.settings import IngressSettings
from tests.fakes import FAKE_MODEL
from tests.stages.ingress.dialects.kit import call_of
from tests.stages.ingress.http import fake_info

DIALECTS = find_dialects()
REFUSALS = ("not supported", "requires the server", "is not allowed", "is not a field of")
TYPES = {"null", "boolean", "integer", "number", "string", "array", "object"}
KEYWORDS = {
    "$ref", "additionalProperties", "anyOf", "default", "description", "enum", "examples", "items", "maxItems",
    "maxLength", "maximum", "minItems", "minLength", "minimum", "properties", "required", "type", "x-needs-flag",
    "x-not-served",
}  # fmt: skip


@cache
def the_app() -> App:
    return create_app(DIALECTS, Serving(None, IngressSettings()), fake_info(lambda: "ready"))  # type: ignore[arg-type]


def made(access: Access = Access()) -> dict[str, Any]:  # noqa: B008
    rules = [rule_of(rule.rule, rule.methods or (), rule.endpoint) for rule in the_app().url_map.iter_rules()]
    name, answers = FAKE_MODEL.served_model_name, {**info_answers(fake_info(lambda: "ready")), **ANSWERS}
    value = document(rules, DIALECTS, BODIES, access, answers=answers, version="1", model_name=name)
    return orjson.loads(orjson.dumps(value))  # type: ignore[no-any-return]


DOCUMENT = made()


def operations(value: Mapping[str, Any] = DOCUMENT) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in value["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def resolved(schema: Any) -> dict[str, Any]:
    if "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema  # type: ignore[no-any-return]


def body_of(operation: Mapping[str, Any]) -> dict[str, Any]:
    return resolved(operation["requestBody"]["content"]["application/json"]["schema"])


WITH_BODY = [(path, method, one) for path, method, one in operations() if "requestBody" in one]
OWNERS = {route.path: dialect for dialect in DIALECTS for route in dialect.routes}
PARSED = [(path, OWNERS[path], body_of(one)) for path, method, one in WITH_BODY if path in OWNERS and method == "post"]
on_every_body = pytest.mark.parametrize(("path", "dialect", "schema"), PARSED, ids=[path for path, _, _ in PARSED])


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Say whether a value is one of a schema, as far as the keywords of this document go."""
    schema = {**schema, **resolved(schema)}
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(is_kind(value, kind) for kind in kinds):
        return False
    if "enum" in schema and not any(orjson.dumps(value) == orjson.dumps(one) for one in schema["enum"]):
        return False
    if "anyOf" in schema and not any(conforms(value, one) for one in schema["anyOf"]):
        return False
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    if isinstance(value, list):
        fits = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return fits and all(conforms(item, schema.get("items", {})) for item in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if not set(schema.get("required", ())) <= set(value):
            return False
        if schema.get("additionalProperties") is False and not set(value) <= set(known):
            return False
        return all(conforms(item, known[name]) for name, item in value.items() if name in known)
    return True


def is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    classes = {"integer": int, "number": (int, float), "string": str, "array": list, "object": dict}
    return kind in classes and isinstance(value, classes[kind])  # type: ignore[arg-type]


def smallest(schema: dict[str, Any]) -> Any:
    """Return the least value of a schema."""
    schema = {**schema, **resolved(schema)}
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return next((one for one in schema["enum"] if one is not None), None)
    if "anyOf" in schema and "properties" not in schema:
        return smallest({**schema["anyOf"][0], **{key: schema[key] for key in schema if key.startswith("min")}})
    kind = schema.get("type", "null")
    kind = kind if isinstance(kind, str) else kind[0]
    if kind == "object":
        return {name: smallest(schema["properties"][name]) for name in schema.get("required", ())}
    if kind == "array":
        return [smallest(schema["items"])] * schema.get("minItems", 0)
    plain = {"null": None, "boolean": False, "string": "x", "integer": max(1, schema.get("minimum", 1)), "number": 1}
    return plain[kind]


def smallest_bodies(schema: dict[str, Any]) -> list[dict[str, Any]]:
    least = smallest(schema)
    alternatives = [one["required"] for one in schema.get("anyOf", [])] or [[]]
    return [{**least, **{name: smallest(schema["properties"][name]) for name in names}} for names in alternatives]


def values(schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Draw values of a schema."""
    schema = {**schema, **resolved(schema)}
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema and "properties" not in schema:
        bounds = {key: schema[key] for key in schema if key.startswith(("min", "max"))}
        return st.one_of([values({**arm, **bounds}, depth) for arm in schema["anyOf"]])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return st.one_of([of_kind(kind, schema, depth) for kind in kinds]) if kinds else ANYTHING


def of_kind(kind: str, schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    if kind == "object":
        return objects(schema, depth)
    if kind == "array":
        least = schema.get("minItems", 0)
        return st.lists(values(schema["items"], depth + 1), min_size=least, max_size=least + 2)
    low, high = schema.get("minimum"), schema.get("maximum")
    integers = st.integers(low, high)
    if low is None or low <= 1 <= (high or 1):
        integers |= st.integers(1 if low is None else max(low, -2), 4)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "integer": integers,
        "number": st.floats(low, high, allow_nan=False, allow_infinity=False) | st.sampled_from([1, 0.5]),
        "string": st.text(min_size=schema.get("minLength", 0), max_size=5) | st.sampled_from(["auto", "none", "abort"]),
    }[kind]


@st.composite
def objects(draw: st.DrawFn, schema: dict[str, Any], depth: int) -> dict[str, Any]:
    known = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    value = {name: draw(values(known[name], depth + 1)) for name in schema.get("required", ())}
    if "anyOf" in schema:
        (name,) = draw(st.sampled_from(schema["anyOf"]))["required"]
        value[name] = draw(values(known[name], depth + 1))
    if known:
        for name in draw(st.lists(st.sampled_from(sorted(known)), max_size=4 if depth == 0 else 2)):
            value[name] = draw(values(known[name], depth + 1))
    elif isinstance(more, dict):
        value |= draw(st.dictionaries(st.text(max_size=3), values(more, depth + 1), max_size=2))
    if "model" in known and draw(st.integers(0, 9)):
        value["model"] = known["model"]["examples"][0]
    return value


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def refusal(dialect: Dialect, path: str, body: dict[str, Any]) -> RequestError | None:
    try:
        dialect.parse(evolve(call_of(body), path=path), FAKE_MODEL)
    except RequestError as error:
        return error
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def telling(submit: Submit) -> Iterator[tuple[float, Event]]:
    """A script whose choices bring all that they may, but for an abort, which is a 500 in some APIs."""
    number = sum(submit.prompt_ids) + submit.key.choice
    parts, choice = (0, 1, 3)[number % 3], submit.key.choice
    deltas = list(deltas_of(submit, parts))[: submit.max_new_tokens]
    for count, delta in enumerate(deltas):
        yield 0.0, evolve(delta, choice=choice, usage=Usage(len(submit.prompt_ids), count + 1, number % 2))
    finishes = [finish for finish in FINISHES if finish.kind != "abort"]
    yield 0.0, Ended(choice, finishes[number % len(finishes)], Usage(len(submit.prompt_ids), len(deltas), number % 2))


def undeclared(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """Return the fields in a value that its schema does not list, where it lists any."""
    schema = {**schema, **resolved(schema)}
    arms = [arm for arm in schema.get("anyOf", ()) if conforms(value, arm)]
    if arms:
        return min((undeclared(value, arm, where) for arm in arms), key=len)
    if isinstance(value, list):
        return [one for item in value for one in undeclared(item, schema.get("items", {}), f"{where}[]")]
    known = schema.get("properties")
    if not isinstance(value, dict) or known is None:
        return []
    return [
        one
        for name, item in value.items()
        for one in (undeclared(item, known[name], f"{where}.{name}") if name in known else [f"{where}.{name}"])
    ]


def check_answer(path: str, method: str, status: int, content_type: str, body: bytes) -> None:
    """Check that an answer is one of those the document tells, and holds nothing that it does not tell."""
    told = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(status) in told, (path, status, body)
    kind = content_type.partition(";")[0]
    contents = told[str(status)].get("content", {})
    if not contents:
        assert body == b"", (path, body)
        return
    assert kind in contents, (path, status, content_type)
    content = contents[kind]
    if "x-event-schema" in content:
        for line in body.splitlines():
            data = line.removeprefix(b"data: ")
            if data.startswith(b"{"):
                check_value(path, orjson.loads(data), content["x-event-schema"])
    elif kind == "application/json":
        check_value(path, orjson.loads(body), content["schema"])


def check_value(path: str, value: Any, schema: dict[str, Any]) -> None:
    assert conforms(value, schema), (path, value)
    assert undeclared(value, schema) == [], (path, value)
