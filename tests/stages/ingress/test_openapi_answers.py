"""Every answer of a running server is one of those the document tells: by schemathesis and by our own rules."""

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
import schemathesis
import trio
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from stages.ingress.answers import answers_of
from stages.ingress.json_schema import schema_of
from stages.ingress.openapi import STREAM_OF
from tests.small_tokenizer import write_small_tokenizer
from tests.stages.ingress.http import ask, running
from tests.stages.ingress.openapi_kit import DIALECTS, DOCUMENT, check_answer, conforms, operations, telling, undeclared

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
# What streams for ever is left to tests of its own.
ALL = [(path, method) for path, method, _ in operations() if path not in STREAM_OF]


def test_the_document_is_one_by_the_rules_of_openapi_3_1() -> None:
    OPENAPI_31_VALIDATOR.validate(DOCUMENT)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_route_has_samples_and_those_show_an_answer(dialect: Any) -> None:
    for route in dialect.routes:
        shown = answers_of(dialect, route, "fake")
        assert shown.whole, route.path
        responses = DOCUMENT["paths"][route.path]["post"]["responses"]
        assert "application/json" in responses["200"]["content"]
        told = {kind for kind, content in responses["200"]["content"].items() if "x-event-schema" in content}
        assert told == ({dialect.stream_type.partition(";")[0]} if shown.events else set())


def test_a_schema_of_values_takes_those_and_nothing_that_lacks_or_adds_a_field() -> None:
    values = [
        {"id": "a", "parts": [{"type": "x", "n": 1}, {"type": "y"}], "ratio": 1, "map": {"k": 1}},
        {"id": None, "parts": [], "ratio": 0.5, "more": [[1], []]},
    ]
    schema = schema_of(values, frozenset({"map"}))
    assert all(conforms(value, schema) and not undeclared(value, schema) for value in values)
    assert not conforms({"id": "a", "parts": []}, schema)
    assert not conforms({**values[0], "parts": [{"type": "x"}]}, schema)
    assert not conforms({**values[0], "parts": [{"type": "z"}]}, schema)
    assert undeclared({**values[0], "extra": 1, "map": {"other": 2}}, schema) == [".extra"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a thread of its own, for a client that blocks."""
    folder = str(write_small_tokenizer(tmp_path_factory.mktemp("model")))
    started: Queue[tuple[int, trio.lowlevel.TrioToken, trio.Event]] = Queue()

    async def serve() -> None:
        stop = trio.Event()
        async with running(telling, dialects=DIALECTS, tokenizer=folder, within_s=600) as server:
            started.put((server.port, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    port, token, stop = started.get(timeout=60)
    yield f"http://127.0.0.1:{port}"
    token.run_sync_soon(stop.set)
    thread.join()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), ALL, ids=[f"{method} {path}" for path, method in ALL])
def test_whatever_schemathesis_sends_is_answered_as_the_document_says(
    path: str, method: str, mode: GenerationMode, address: str
) -> None:
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
        return  # there is nothing to be wrong

    @seed(1)
    @settings(max_examples=4, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(base_url=address, timeout=30)
        case.validate_response(response, checks=CHECKS)
        content_type = (response.headers.get("content-type") or [""])[0]
        check_answer(path, method, response.status_code, content_type, response.content)

    check()


async def test_an_answer_of_a_stream_is_told_event_by_event() -> None:
    async with running(telling, dialects=DIALECTS) as server:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("/v1/responses", {"input": "a"}),
            ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "model": "fake"}),
            ("/generate", {"text": "a"}),
            ("/api/generate", {"prompt": "a", "model": "fake"}),
        ):
            for more in range(15):
                reply = await ask(server.port, path, {**body, "stream": True, "cache_salt": str(more)})
                check_answer(path, "post", reply.status, reply.headers["content-type"], reply.body)
