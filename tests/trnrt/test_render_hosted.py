"""A renderer in its engine's place: what is its own it answers, the rest the engine; and the engine is compared."""

from typing import Any

import pytest

from stages.errors import StartupError
from stages.ingress.forwarding import ADMIN_PATTERNS
from tests.fake_engine import Exchange
from tests.stages.ingress.http import ask, connected, eventually
from tests.trnrt.render_kit import MESSAGES, rendering, saying
from trnrt.supervise import first_cause

HOSTED = "--proxy-unhandled-routes"


async def named(exchange: Exchange) -> None:
    """Answer with the path and the body that came."""
    await exchange.refuse(200, {"path": exchange.path, "body": exchange.body})


async def test_what_the_renderer_has_it_answers_and_the_engine_the_rest() -> None:
    async with rendering(saying("Good day"), HOSTED) as run:
        run.engine.order = named
        async with connected(run.port) as client:
            for path in ("/health", "/metrics", "/get_model_info", "/v1/embeddings?a=b", "/v2/models"):
                assert (await client.get(path)).json == {"path": path, "body": None}
            assert (await client.get("/v1/models")).json["data"][0]["id"] == "demo"
            await client.send(b"GET /_sglang_renderer/ready HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 204 " in await client.until(b"\r\n\r\n")
            assert (await client.get("/tokenize")).status == 405
            assert (await client.get("/flush_cache", "POST")).status == 403
        reply = await ask(run.port, "/v1/chat/completions", {"messages": MESSAGES})
        assert reply.json["choices"][0]["message"]["content"] == "Good day"
        # The engine's own /generate, its frames and all.
        reply = await ask(run.port, "/generate", {"input_ids": [1, 2], "rid": "theirs"})
        assert reply.status == 200
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert run.engine.exchanges[-1].body == {"input_ids": [1, 2], "rid": "theirs"}


async def test_without_an_engine_only_what_needs_none_is_answered() -> None:
    async with rendering(saying("x"), HOSTED) as run:
        run.engine.is_up = False
        async with connected(run.port) as client:
            reply = await client.get("/health")
            assert (reply.status, reply.headers["content-type"]) == (502, "text/plain; charset=utf-8")
            assert (await client.get("/v1/models")).status == 200
        assert (await ask(run.port, "/tokenize", {"prompt": "a"})).status == 200


async def test_keys_are_kept_apart() -> None:
    async with rendering(saying("x"), HOSTED, "--api-key", "ours", "--engine-api-key", "engine") as run:
        seen: list[str | None] = []

        async def order(exchange: Exchange) -> None:
            seen.append(exchange.headers.get("authorization"))
            await exchange.refuse(200, {})

        run.engine.order = order
        async with connected(run.port) as client:
            assert (await client.get("/v2/models")).status == 401
            assert (await client.get("/v2/models", headers=["authorization: Bearer ours"])).status == 200
        assert seen == ["Bearer engine"]


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ((), 403),
        (("--proxy-deny", "none"), 200),
        (("--proxy-allow", "*,/flush_cache"), 200),
        (("--proxy-allow", "/v1/*"), 403),
        (("--proxy-deny", "/flush*"), 403),
    ],
)
async def test_flags_say_what_is_passed_on(flags: tuple[str, ...], status: int) -> None:
    async with rendering(saying("x"), HOSTED, *flags) as run, connected(run.port) as client:
        run.engine.order = named
        assert (await client.get("/flush_cache", "POST")).status == status
    assert "/flush_cache" in ADMIN_PATTERNS


def facts(**model: Any) -> Any:
    async def order(exchange: Exchange) -> None:
        if exchange.path == "/model_info":
            await exchange.refuse(200, {"model_path": "/models/demo", **model})
        else:
            await exchange.refuse(404, {})

    return order


async def test_a_strict_renderer_does_not_start_before_another_engine() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with rendering(saying("x"), "--strict-engine-match", order=facts(vocab_size=7)):
            pass
    cause = first_cause(caught.value)
    assert isinstance(cause, StartupError)
    assert "vocabulary is" in str(cause)
    assert "7 in the engine" in str(cause)


async def test_a_strict_renderer_starts_before_its_own_engine_or_none_and_ends_when_another_comes_up() -> None:
    async with rendering(saying("x"), "--strict-engine-match", order=facts()) as run:
        assert run.port
    with pytest.raises(BaseExceptionGroup) as caught:
        await _another_comes_up()
    assert isinstance(first_cause(caught.value), StartupError)


async def _another_comes_up() -> None:
    async with rendering(saying("x"), "--strict-engine-match", is_up=False) as run:
        assert (await ask(run.port, "/tokenize", {"prompt": "a"})).status == 200
        run.engine.order, run.engine.is_up = facts(vocab_size=7), True
        await eventually(lambda: False, 20)


async def test_a_renderer_that_is_not_strict_says_what_differs_and_serves(caplog: Any) -> None:
    async with rendering(saying("Good"), order=facts(vocab_size=7)) as run:
        await eventually(lambda: "vocabulary" in caplog.text)
        assert (await ask(run.port, "/v1/chat/completions", {"messages": MESSAGES})).status == 200


async def test_a_call_that_is_passed_on_has_its_line_in_the_access_log_with_its_status(caplog: Any) -> None:
    caplog.set_level("INFO")
    async with rendering(saying("x"), HOSTED, "--access-log") as run, connected(run.port) as client:
        run.engine.order = named
        assert (await client.get("/v2/models")).status == 200
        assert (await client.get("/start_profile", "POST")).status == 403
        await eventually(lambda: "/start_profile" in caplog.text and "/v2/models" in caplog.text)
    lines = [(record.getMessage(), vars(record).get("fields", {}).get("status")) for record in caplog.records]
    assert sorted(line for line in lines if "_profile" in line[0] or "/v2/" in line[0]) == [
        ("GET /v2/models", 200),
        ("POST /start_profile", 403),
    ]
