"""What holds for every dialect in the folder."""

from pathlib import Path

import orjson
import pytest

import stages.ingress.dialects as folder
from stages.errors import BodyTooLarge, ContextOverflow, Draining, EngineFailure, InvalidRequest, NotFound, QueueFull
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import find_dialects

ERRORS = [
    (InvalidRequest("bad", "field"), 400),
    (ContextOverflow("long", prompt_tokens=9, requested_tokens=None, context_tokens=8), 400),
    (NotFound("none"), 404),
    (BodyTooLarge("large"), 413),
    (EngineFailure("/secret/path"), 500),
    (QueueFull(), 503),
    (Draining(), 503),
]


def test_the_folder_is_searched_and_no_two_dialects_share_a_name_or_a_route() -> None:
    found = find_dialects()
    assert [dialect.name for dialect in found] == [
        "anthropic_count_tokens",
        "anthropic_messages",
        "ollama_chat",
        "ollama_generate",
        "ollama_show",
        "openai_chat",
        "openai_completions",
        "openai_responses",
        "sglang_generate",
        "sglang_parsing",
        "tokenize",
    ]
    routes = [(method, route.path) for dialect in found for route in dialect.routes for method in route.methods]
    assert len(set(routes)) == len(routes)


@pytest.mark.parametrize("dialect", find_dialects(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: getattr(type(value), "__name__", None))
def test_every_error_has_a_body_that_is_json_and_keeps_secrets(dialect: Dialect, error: Exception, status: int) -> None:
    text = orjson.dumps(dialect.error(error, status, "r")).decode()
    assert "error" in text
    assert "secret" not in text


def test_dialects_are_core() -> None:
    for path in Path(folder.__path__[0]).glob("*.py"):
        lines = path.read_text().splitlines()
        for module in ("trio", "time", "threading", "secrets", "random", "datetime"):
            assert not [line for line in lines if line.startswith((f"import {module}", f"from {module} "))], path.name
