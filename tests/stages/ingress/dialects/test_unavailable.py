"""A 503 on every dialect: refused at the queue, or let go from it later."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from stages.ingress.dialect import Dialect
from stages.ingress.dialects import find_dialects
from stages.ingress.dialects.ollama_common import NDJSON
from stages.ingress.respond import Serving, respond
from stages.messages import Ended, Finish, Submit, Usage
from stages.settings import IngressSettings
from tests.fakes import FakeWire, Step, fake_services, silent
from tests.stages.ingress.dialects.kit import MODEL, call_of, parse

BODIES: dict[str, dict[str, Any]] = {
    "anthropic_messages": {"model": "glm", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "ollama_chat": {"model": "glm", "messages": [{"role": "user", "content": "hi"}]},
    "ollama_generate": {"model": "glm", "prompt": "hi"},
    "openai_chat": {"model": "glm", "messages": [{"role": "user", "content": "hi"}]},
    "openai_completions": {"model": "glm", "prompt": "hi"},
    "openai_responses": {"model": "glm", "input": "hi"},
    "sglang_generate": {"text": "hi"},
}
DIALECTS = [dialect for dialect in find_dialects() if dialect.name in BODIES]
LET_GO = ["The request is aborted by a higher priority request.", "Request waiting timeout reached."]

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def message_in(body: Any) -> str:
    told = body.get("error", body)
    if isinstance(told, str):
        return told
    message: str = told["message"]
    return message


async def answer(dialect: Dialect, script: Any, *, stream: bool, max_choices: int = 9) -> FakeWire:
    wire = FakeWire()
    async with fake_services(script, max_choices=max_choices) as fakes:
        parsed = parse(dialect, {**BODIES[dialect.name], "stream": stream})
        await respond(parsed, dialect, call_of({}).request_id, Serving(fakes.services, IngressSettings()), wire)
    assert wire.ended
    return wire


def let_go(message: str) -> Any:
    def script(submit: Submit) -> Iterable[Step]:
        yield 1.0, Ended(submit.key.choice, Finish("abort", message=message, status=503), Usage(2, 0))

    return script


def test_every_dialect_that_generates_is_here() -> None:
    assert MODEL.served_model_name == "glm"
    assert len(DIALECTS) == len(BODIES)


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_says_so_and_when_to_come_again(dialect: Dialect, stream: bool, autojump_clock: Any) -> None:
    wire = await answer(dialect, silent, stream=stream, max_choices=0)
    assert wire.status == 503
    assert wire.headers["x-trnrt-queue-full"] == "1"
    assert 1 <= int(wire.headers["retry-after"]) <= 5
    assert message_in(wire.json) == "The request queue is full."


@every_dialect
@pytest.mark.parametrize("message", LET_GO)
async def test_one_let_go_from_the_queue_is_told_why_but_not_that_the_queue_is_full(
    dialect: Dialect, message: str, autojump_clock: Any
) -> None:
    wire = await answer(dialect, let_go(message), stream=False)
    assert wire.status == 503
    assert "x-trnrt-queue-full" not in wire.headers
    assert 1 <= int(wire.headers["retry-after"]) <= 5
    assert message_in(wire.json) == message


@every_dialect
@pytest.mark.parametrize("message", LET_GO)
async def test_a_stream_that_has_begun_ends_with_the_reason(
    dialect: Dialect, message: str, autojump_clock: Any
) -> None:
    wire = await answer(dialect, let_go(message), stream=True)
    assert wire.status == 200
    is_lines = dialect.stream_type == NDJSON
    start = "{" if is_lines else "data: {"
    *_, last = [line.removeprefix("data: ") for line in wire.text.split("\n") if line.startswith(start)]
    value = orjson.loads(last)
    if "response" in value:
        assert value["type"] == "response.failed"
        value = value["response"]
    elif not is_lines and value.get("type") != "error":
        assert wire.text.endswith(f"{last}\n\ndata: [DONE]\n\n")
    if "meta_info" in value:
        value = value["meta_info"]["finish_reason"]
        assert (value["type"], value["status_code"]) == ("abort", 503)
    assert message_in(value) == message
