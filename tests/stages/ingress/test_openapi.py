"""The document at /openapi.json: it is what is served, and it has the form of OpenAPI."""

import re
from typing import Any

import pytest

from stages.ingress.access import OPEN_PREFIXES, Access
from stages.ingress.admin import BODIES, admin_paths
from stages.ingress.openapi import NEVER_ANSWERED, document
from tests.fakes import counting
from tests.stages.ingress.http import connected, running
from tests.stages.ingress.openapi_kit import DIALECTS, DOCUMENT, KEYWORDS, TYPES, WITH_BODY, conforms, made, operations

# ---------------------------------------------------------------------------------------------------------------------
# What is served is what is told
# ---------------------------------------------------------------------------------------------------------------------


def asked(path: str) -> str:
    """A path that is answered soon."""
    return path.replace("{model_id}", "fake") + ("?limit=1" if path.endswith("/stream") else "")


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
            reply = await client.get(asked(path), method, ["content-length: 0"])
            # Responses are not kept, so that every id is one nobody has.
            assert reply.status not in (404, 405) or path == "/v1/responses/{response_id}", (method, path)


def test_a_document_is_made_of_a_server_without_dialects_too() -> None:
    assert document([], (), {}, Access(), answers={}, version="1", model_name="m")["paths"] == {}


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
                real = asked(path)
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
        assert "200" in operation["responses"] or path in NEVER_ANSWERED
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
        assert set(schema.get("required", ())) <= set(schema.get("properties", ()))


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
