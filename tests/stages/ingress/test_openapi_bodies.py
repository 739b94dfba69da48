"""What the document says of bodies is what the parsers do."""

import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stages.ingress.dialect import Dialect
from tests.small_tokenizer import write_small_tokenizer
from tests.stages.ingress.http import ask, running
from tests.stages.ingress.openapi_kit import (
    DIALECTS,
    DOCUMENT,
    REFUSALS,
    WITH_BODY,
    body_of,
    check_answer,
    conforms,
    on_every_body,
    refusal,
    resolved,
    smallest,
    smallest_bodies,
    telling,
    values,
)


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


# A value of each field that a flag serves which asks for something.
ASKING: dict[str, Any] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty", "repeat_penalty"), 0.5),
    **dict.fromkeys(("guided_json", "json_schema", "structural_tag", "guided_grammar", "ebnf", "regex"), "{}"),
    "response_format": {"type": "json_object"},
    "text.format": {"type": "json_object"},
    "output_config.format": {"type": "json_schema", "schema": {}},
    "output_format": {"type": "json_schema", "schema": {}},
    "format": "json",
    "guided_choice": ["a"],
    "guided_regex": "a",
    "guided_json_object": True,
    "structured_outputs": {"regex": "a"},
    "logit_bias": {"1": 1},
    "allowed_token_ids": [1],
    "thinking_token_budget": 1,
    "max_thinking_tokens": 1,
    "custom_params": {"thinking_budget": 1},
}
LAUNCHED = "requires the server to be launched with "


@on_every_body
def test_a_field_marked_with_a_flag_is_refused_without_it(path: str, dialect: Dialect, schema: dict[str, Any]) -> None:
    (body, *_) = smallest_bodies(schema)
    for prefix, known in nested_properties(schema):
        for name, one in known.items():
            if "x-needs-flag" not in one:
                continue
            asking = ASKING.get(f"{prefix}.{name}" if prefix else name, ASKING.get(name))
            given_ = {name: asking} if prefix == "" else {prefix: {name: asking}}
            if name == "tool_choice":
                given_ = forcing(path)
            error = refusal(dialect, path, {**body, **given_})
            assert error is not None, (prefix, name)
            assert error.message.endswith(f"{LAUNCHED}{one['x-needs-flag']}."), (name, error.message)
            assert name in (error.param or "")


def forcing(path: str) -> dict[str, Any]:
    """A tool that must be called, in the form of a path's dialect."""
    if path.startswith("/v1/messages"):
        return {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}}
    tool = {"type": "function", "name": "f", "function": {"name": "f"}}
    return {"tools": [tool], "tool_choice": "required"}


def is_marked(schema: dict[str, Any], param: str, flag: str) -> bool:
    """Whether the field, or one it stands in, is marked with the flag."""
    first, *rest = param.split(".")
    return any(
        one.get("x-needs-flag") == flag
        for prefix, known in nested_properties(schema)
        for name, one in known.items()
        if (prefix, name) == ("", first) or (rest and (prefix, name) == (first, rest[0]))
    )


def nested_properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "", schema["properties"]
    for name, one in schema["properties"].items():
        for arm in one.get("anyOf", ()):
            if "$ref" in arm:
                yield name, resolved(arm)["properties"]


# What a field asks for besides itself.
WITH = {("/v1/responses", "top_logprobs"): {"include": ["message.output_text.logprobs"]}}


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
            within = refusal(dialect, path, {**body, **WITH.get((path, name), {}), name: bound})
            assert within is None or name not in (within.param or ""), name


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
        if LAUNCHED in error.message:
            assert is_marked(schema, error.param or "", error.message.partition(LAUNCHED)[2].rstrip(".")), error
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
    async with running(telling, dialects=DIALECTS, tokenizer=folder) as server:
        for path, _, operation in WITH_BODY:
            for body in data.draw(st.lists(values(body_of(operation)), min_size=2, max_size=2)):
                reply = await ask(server.port, path, body)
                assert reply.complete
                assert reply.status < 500 or reply.status == 503, (path, body, reply.body)
                assert b"Internal server error" not in reply.body, (path, body)
                check_answer(path, "post", reply.status, reply.headers.get("content-type", ""), reply.body)
