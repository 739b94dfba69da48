"""The document at /openapi.json: it is what is served, and what it says of bodies is what the parsers do."""

import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import orjson
import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stages.errors import RequestError
from stages.ingress.access import OPEN_PREFIXES, Access
from stages.ingress.admin import BODIES, admin_paths
from stages.ingress.app import App, create_app
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import find_dialects
from stages.ingress.openapi import document, rule_of
from stages.ingress.respond import Serving
from stages.settings import IngressSettings
from tests.fakes import FAKE_MODEL, counting
from tests.small_tokenizer import write_small_tokenizer
from tests.stages.ingress.dialects.kit import call_of
from tests.stages.ingress.http import ask, connected, fake_info, running

DIALECTS = find_dialects()
REFUSALS = ("not supported", "requires the server", "is not allowed", "is not a field of")
TYPES = {"null", "boolean", "integer", "number", "string", "array", "object"}
KEYWORDS = {
    "$ref", "additionalProperties", "anyOf", "default", "description", "enum", "examples", "items", "maxItems",
    "maxLength", "maximum", "minItems", "minLength", "minimum", "properties", "required", "type", "x-not-served",
}  # fmt: skip


@cache
def the_app() -> App:
    return create_app(DIALECTS, Serving(None, IngressSettings()), fake_info(lambda: "ready"))  # type: ignore[arg-type]


def made(access: Access = Access()) -> dict[str, Any]:  # noqa: B008
    rules = [rule_of(rule.rule, rule.methods or (), rule.endpoint) for rule in the_app().url_map.iter_rules()]
    value = document(rules, DIALECTS, BODIES, access, version="1", model_name=FAKE_MODEL.served_model_name)
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


# ---------------------------------------------------------------------------------------------------------------------
# What is served is what is told
# ---------------------------------------------------------------------------------------------------------------------


async def test_every_route_served_is_told_and_every_route_told_is_served() -> None:
    async with running(counting(1, 0.0), dialects=DIALECTS) as server, connected(server.port) as client:
        reply = await client.get("/openapi.json")
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        told = {(path, method.upper()) for path, method, _ in operations(reply.json)}
        served = {
            (re.sub("<path:(.*)>", r"{\1}", rule.rule), method)
            for rule in server.app.url_map.iter_rules()
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        }
        assert told == served
        for path, method in sorted(told):
            reply = await client.get(path.replace("{model_id}", "fake"), method, ["content-length: 0"])
            # Responses are not kept, so that every id is one nobody has.
            assert reply.status not in (404, 405) or path == "/v1/responses/{response_id}", (method, path)


def test_a_document_is_made_of_a_server_without_dialects_too() -> None:
    assert document([], (), {}, Access(), version="1", model_name="m")["paths"] == {}


def test_every_route_of_every_dialect_says_what_its_body_holds() -> None:
    assert [(dialect.name, route.path) for dialect in DIALECTS for route in dialect.routes if route.form is None] == []
    assert set(BODIES) < {path for path, _, _ in WITH_BODY}


async def test_the_document_needs_the_key_and_says_so_and_names_no_scheme_without_one() -> None:
    async with running(counting(1, 0.0), api_key="right") as server, connected(server.port) as client:
        assert (await client.get("/openapi.json")).status == 401
        told = (await client.get("/openapi.json", headers=["x-api-key: right"])).json
        assert told["paths"]["/openapi.json"]["get"]["security"] == [{"bearer": []}, {"header": []}]
    assert "securitySchemes" not in DOCUMENT["components"]


@pytest.mark.parametrize("keys", [(None, None), ("a", None), ("a", "b"), (None, "b")])
async def test_an_operation_needs_a_key_exactly_where_the_server_asks_for_it(keys: tuple[str | None, ...]) -> None:
    api_key, admin_api_key = keys
    access = Access(api_key, admin_api_key, admin_paths=frozenset(admin_paths()))
    told = made(access)
    given = {"bearer": api_key, "header": api_key, "admin_bearer": admin_api_key, "admin_header": admin_api_key}
    headers = {True: "x-api-key: {}", False: "authorization: Bearer {}"}
    async with running(counting(1, 0.0), dialects=DIALECTS, api_key=api_key, admin_api_key=admin_api_key) as server:
        async with connected(server.port) as client:
            for path, method, operation in operations(told):
                real = path.replace("{model_id}", "fake")
                bare = await client.get(real, method.upper(), ["content-length: 0"])
                assert (bare.status == 401) == ("security" in operation) == ("401" in operation["responses"]), path
                needs_admin_key = admin_api_key is not None and path in admin_paths()
                needs_key = api_key is not None and not path.startswith(OPEN_PREFIXES)
                assert ("security" in operation) == (needs_key or needs_admin_key), path
                for name in (name for scheme in operation.get("security", ()) for name in scheme):
                    key = headers[name.endswith("header")].format(given[name])
                    reply = await client.get(real, method.upper(), [key, "content-length: 0"])
                    assert reply.status != 401, (path, name)
    used = {name for _, _, one in operations(told) for scheme in one.get("security", ()) for name in scheme}
    assert used == set(told["components"].get("securitySchemes", {}))


# ---------------------------------------------------------------------------------------------------------------------
# The form of the document
# ---------------------------------------------------------------------------------------------------------------------


def test_the_document_has_the_form_of_openapi_3_1() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    for path, method, operation in operations():
        assert path.startswith("/")
        assert method in {"get", "post", "put", "delete"}
        assert set(operation["tags"]) <= tags
        in_path = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert "200" in operation["responses"]
        for status, answer in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status)
            assert answer["description"]
            for media in answer.get("content", {}).values():
                check_schema(media.get("schema", {}))
        for parameter in operation.get("parameters", ()):
            check_schema(parameter["schema"])
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        check_schema(schema)
        assert set(schema.get("required", ())) <= set(schema["properties"])


def check_schema(schema: Any) -> None:
    assert set(schema) <= KEYWORDS
    if "$ref" in schema:
        assert schema["$ref"].removeprefix("#/components/schemas/") in DOCUMENT["components"]["schemas"]
    kinds = schema.get("type", [])
    assert set([kinds] if isinstance(kinds, str) else kinds) <= TYPES
    assert len(schema.get("enum", [0])) > 0
    if "default" in schema:
        assert conforms(schema["default"], schema)
    if isinstance(schema.get("additionalProperties"), dict):
        check_schema(schema["additionalProperties"])
    nested = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for one in [*nested, schema["items"]] if "items" in schema else nested:
        check_schema(one)


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


# ---------------------------------------------------------------------------------------------------------------------
# Bodies
# ---------------------------------------------------------------------------------------------------------------------


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


def refusal(dialect: Dialect, path: str, body: dict[str, Any]) -> RequestError | None:
    try:
        dialect.parse(evolve(call_of(body), path=path), FAKE_MODEL)
    except RequestError as error:
        return error
    return None


@on_every_body
def test_the_least_body_of_a_schema_is_taken(path: str, dialect: Dialect, schema: dict[str, Any]) -> None:
    for body in smallest_bodies(schema):
        assert conforms(body, schema)
        assert refusal(dialect, path, body) is None, body


@on_every_body
def test_a_body_without_what_is_required_is_refused(path: str, dialect: Dialect, schema: dict[str, Any]) -> None:
    for body in smallest_bodies(schema):
        for name in schema.get("required", ()):
            error = refusal(dialect, path, {key: item for key, item in body.items() if key != name})
            assert error is not None
            assert (error.status, error.param) == (400, name)
    if schema.get("anyOf"):
        assert refusal(dialect, path, smallest(schema)) is not None


@on_every_body
def test_a_field_marked_as_not_served_is_refused_by_name_but_for_the_values_it_may_have(
    path: str, dialect: Dialect, schema: dict[str, Any]
) -> None:
    (body, *_) = smallest_bodies(schema)
    for prefix, known in nested_properties(schema):
        for name, one in known.items():
            if "x-not-served" not in one:
                continue
            for value in one["enum"]:
                given = {name: value} if not prefix else {prefix: {name: value}}
                assert refusal(dialect, path, {**body, **given}) is None, (name, value)
            refused = [
                refusal(dialect, path, {**body, **({name: value} if not prefix else {prefix: {name: value}})})
                for value in ("x", 2, 0.5, ["x"], [2], [["x"]], {"5": 1.0}, True, False)
                if not any(orjson.dumps(value) == orjson.dumps(passing) for passing in one["enum"])
            ]
            named = [error for error in refused if error is not None and name in (error.param or "")]
            assert any(says in error.message for error in named for says in REFUSALS), name
            assert all(error is None or error.status == 400 for error in refused)


def nested_properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "", schema["properties"]
    for name, one in schema["properties"].items():
        for arm in one.get("anyOf", ()):
            if "$ref" in arm:
                yield name, resolved(arm)["properties"]


@on_every_body
def test_ends_of_ranges_are_where_the_schema_says(path: str, dialect: Dialect, schema: dict[str, Any]) -> None:
    (body, *_) = smallest_bodies(schema)
    for name, one in schema["properties"].items():
        for keyword, step in (("minimum", -1), ("maximum", 1)):
            bound = one.get(keyword)
            if bound is None or abs(bound) >= 2**63 - 1 or "x-not-served" in one:
                continue
            beyond = refusal(dialect, path, {**body, name: bound + step})
            assert beyond is not None, name
            assert name in (beyond.param or "")
            within = refusal(dialect, path, {**body, name: bound})
            assert within is None or name not in (within.param or ""), name


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


@on_every_body
@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_body_of_the_schema_is_understood_or_refused_in_the_shape_the_document_gives(
    path: str, dialect: Dialect, schema: dict[str, Any], data: st.DataObject
) -> None:
    body = data.draw(values(schema))
    assert conforms(body, schema)
    error = refusal(dialect, path, body)
    if error is not None:
        told = DOCUMENT["paths"][path]["post"]["responses"][str(error.status)]["content"]["application/json"]
        shape = orjson.loads(orjson.dumps(dialect.error(error, error.status, "r")))
        assert conforms(shape, told["schema"]), shape


@pytest.fixture
def _log_level() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_tokenizer(tmp_path_factory.mktemp("model")))


# Without shrinking: every example is a server of its own.
@pytest.mark.usefixtures("_log_level")
@given(st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
async def test_no_body_of_the_schemas_makes_a_running_server_fail(folder: str, data: st.DataObject) -> None:
    async with running(counting(2, 0.0), dialects=DIALECTS, tokenizer=folder) as server:
        for path, _, operation in WITH_BODY:
            for body in data.draw(st.lists(values(body_of(operation)), min_size=2, max_size=2)):
                reply = await ask(server.port, path, body)
                assert reply.complete
                assert str(reply.status) in operation["responses"], (path, body, reply.body)
                assert reply.status < 500 or reply.status == 503, (path, body, reply.body)
                assert b"Internal server error" not in reply.body, (path, body)
