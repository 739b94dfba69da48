"""Which routes a renderer has in which mode, and what it refuses how."""

from typing import Any

import jsonschema
import orjson
import pytest

from stages.ingress.render_app import create_render_app
from tests.fake_engine import Exchange, counting
from tests.stages.ingress.http import Reply, ask, connected
from tests.trnrt.render_kit import MESSAGES, Rendering, rendering
from trnrt.render import _facts

ALWAYS = {
    ("POST", "/detokenize"),
    ("POST", "/parse_function_call"),
    ("POST", "/separate_reasoning"),
    ("POST", "/tokenize"),
    ("POST", "/v1/chat/completions/render"),
    ("POST", "/v1/chat/completions/derender"),
    ("POST", "/v1/completions/derender"),
    ("POST", "/v1/completions/render"),
    ("POST", "/v1/detokenize"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/messages/render"),
    ("POST", "/v1/responses/render"),
    ("POST", "/v1/tokenize"),
    ("GET", "/_sglang_renderer/ready"),
    ("GET", "/health"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/<path:model_id>"),
}
# Of these, what a renderer that passes calls on leaves to its engine.
THE_ENGINES = {("GET", "/health"), ("GET", "/openapi.json"), ("POST", "/generate"), ("PUT", "/generate")}
WITH_ENGINE = {
    ("GET", "/api/tags"),
    ("GET", "/api/version"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/show"),
    ("POST", "/generate"),
    ("PUT", "/generate"),
    ("POST", "/invocations"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/responses"),
}
OWN_FIGURES = {("GET", "/dashboard"), ("GET", "/v1/stats"), ("GET", "/v1/stats/stream")}
CHAT: dict[str, Any] = {"messages": MESSAGES}


def routes_of(run: Rendering) -> set[tuple[str, str]]:
    assert run.server.serving is not None
    rules = create_render_app(run.server.serving, _facts(run.server)).url_map.iter_rules()
    return {(method, rule.rule) for rule in rules for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}


async def get(port: int, path: str, method: str = "GET") -> Reply:
    async with connected(port) as client:
        return await client.get(path, method)


def error_of(reply: Reply) -> dict[str, Any]:
    """Return an error of the contract's one shape; its code is the status."""
    assert set(reply.json) == {"error"}
    error: dict[str, Any] = reply.json["error"]
    assert set(error) == {"object", "message", "type", "param", "code"}
    kind = "InternalServerError" if reply.status >= 500 else "BadRequestError"
    assert (error["object"], error["type"], error["param"], error["code"]) == ("error", kind, None, reply.status)
    return error


async def test_without_an_engine_nothing_is_generated() -> None:
    async with rendering() as run:
        assert routes_of(run) == ALWAYS
        for _, path in sorted(WITH_ENGINE):
            assert (await ask(run.port, path, CHAT)).status == 404, path
        health = await get(run.port, "/health")
        assert (health.status, health.body) == (200, b"")


async def test_before_an_engine_every_dialect_is_served() -> None:
    async with rendering(counting(1)) as run:
        assert routes_of(run) == ALWAYS | WITH_ENGINE


async def test_in_the_engines_place_the_rest_is_the_engines() -> None:
    async with rendering(counting(1), "--proxy-unhandled-routes") as run:
        assert routes_of(run) == (ALWAYS | WITH_ENGINE) - THE_ENGINES


async def test_the_document_lists_all_routes_and_what_they_really_answer() -> None:
    async with rendering(counting(1)) as run:
        document = (await get(run.port, "/openapi.json")).json
        paths = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        assert paths - OWN_FIGURES == {
            (method, path.replace("<path:model_id>", "{model_id}")) for method, path in ALWAYS | WITH_ENGINE
        }
        frame = {"output_ids": [40], "meta_info": {"finish_reason": {"type": "stop"}}}
        for path, body in (
            ("/v1/chat/completions/render", CHAT),
            ("/v1/chat/completions/render", {**CHAT, "stop": ["a"], "regex": "a", "seed": 3, "cache_salt": "s"}),
            ("/v1/completions/render", {"prompt": ["a", "b"], "stop_regex": "a", "logit_bias": {"5": 1.5}}),
            ("/v1/responses/render", {"input": "a"}),
            ("/v1/messages/render", {**CHAT, "max_tokens": 4}),
            ("/v1/chat/completions/derender", {"request": CHAT, "outputs": [frame]}),
            ("/v1/completions/derender", {"request": {"prompt": "a", "stream": True}, "outputs": [frame]}),
            ("/v1/chat/completions", CHAT),
            ("/tokenize", CHAT),
        ):
            reply = await ask(run.port, path, body)
            assert reply.status == 200, reply.body
            answered = document["paths"][path]["post"]["responses"]
            schema = {**answered["200"]["content"]["application/json"]["schema"], "components": document["components"]}
            jsonschema.validate(reply.json, schema)
            refused = await ask(run.port, path, {"stream": 5, "tokens": 5, "prompt": 5, "messages": 5, "outputs": 5})
            schema = {**answered["400"]["content"]["application/json"]["schema"], "components": document["components"]}
            jsonschema.validate(refused.json, schema)


async def test_the_engines_health_is_its_status_and_503_without_one() -> None:
    async def teapot(exchange: Exchange) -> None:
        await exchange.refuse(418, b"short and stout")

    async with rendering(counting(1)) as run:
        run.engine.order = teapot
        reply = await get(run.port, "/health")
        assert (reply.status, reply.body) == (418, b"")
        run.engine.is_up = False
        run.server.engine and run.server.engine.client.close()
        assert (await get(run.port, "/health")).status == 503


async def test_the_ready_route_asks_no_engine_and_needs_no_key() -> None:
    async with rendering(counting(1), "--api-key", "sesame") as run:
        run.engine.is_up = False
        async with connected(run.port) as client:
            await client.send(b"GET /_sglang_renderer/ready HTTP/1.1\r\nhost: x\r\n\r\n")
            reply = await client.reply(has_body=False)
            # The connection goes on after a head without a body.
            assert (await client.get("/health")).status == 503
        assert (reply.status, reply.headers["x-sglang-renderer"]) == (204, "ready")
        assert "content-length" not in reply.headers
        run.server.phase = "draining"
        assert (await get(run.port, "/_sglang_renderer/ready")).status == 503
        assert (await get(run.port, "/v1/models")).status == 401
        assert (await ask(run.port, "/v1/chat/completions", CHAT)).status == 401
        assert (await ask(run.port, "/tokenize", {"prompt": "a"}, ["authorization: Bearer sesame"])).status == 200


async def test_models_are_listed_without_asking_the_engine() -> None:
    async with rendering(counting(1)) as run:
        run.engine.is_up = False
        assert [model["id"] for model in (await get(run.port, "/v1/models")).json["data"]] == ["demo"]
        assert (await get(run.port, "/v1/models/demo")).json["max_model_len"] == 8192
        assert (await get(run.port, "/v1/models/other")).status == 404


async def test_another_method_on_a_path_of_ours_is_a_405() -> None:
    async with rendering(counting(1)) as run:
        for path in ("/v1/chat/completions", "/v1/completions/render", "/tokenize"):
            reply = await get(run.port, path)
            assert error_of(reply)["code"] == 405
            assert "POST" in reply.headers["allow"]
        assert (await ask(run.port, "/v1/models", {})).status == 405
        assert (await get(run.port, "/nowhere")).status == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"messages": [', "JSON"),
        (b"[]", "object"),
        ({}, "Messages"),
        ({**CHAT, "n": "two"}, "n"),
        ({**CHAT, "model": "other"}, "The model `other` does not exist"),
        ({**CHAT, "model": "default"}, "The model `default` does not exist"),
        ({**CHAT, "zeta": 1, "alpha": 2}, r"unsupported request field(s): alpha, zeta"),
        ({**CHAT, "session_id": "s"}, "unsupported request field(s): session_id"),
        ({**CHAT, "lora_path": "l"}, "lora_path"),
        ({**CHAT, "image_data": ["x"]}, "image_data"),
        ({**CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({**CHAT, "n": 0}, "n must be"),
        ({**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tool"),
        ({**CHAT, "functions": [{"name": "f"}]}, "functions"),
        ({**CHAT, "audio": {"voice": "x"}}, "audio"),
        ({**CHAT, "temperature": -1}, "temperature"),
        ({**CHAT, "logit_bias": {"x": 1}}, "logit_bias"),
        ({**CHAT, "return_meta_info": True}, "return_meta_info"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
        ({**CHAT, "max_tokens": 9000}, "9012"),
        ({**CHAT, "bootstrap_room": "x"}, "bootstrap_room"),
        ({**CHAT, "cache_salt": ["a", "b"]}, "cache_salt"),
    ],
)
async def test_a_bad_chat_is_a_400_that_names_the_field(body: object, words: str, bad: Rendering) -> None:
    for path in ("/v1/chat/completions", "/v1/chat/completions/render"):
        for stream in (False, True):
            sent = {**body, "stream": stream} if isinstance(body, dict) else body
            reply = await ask(bad.port, path, sent)
            assert reply.status == 400, reply.body
            assert words in error_of(reply)["message"]
    assert bad.engine.exchanges == []


@pytest.fixture
async def bad() -> Any:
    async with rendering(counting(1)) as run:
        yield run


async def test_a_body_of_another_type_or_too_large_is_refused() -> None:
    async with rendering(counting(1), "--max-request-bytes", "1000") as run:
        reply = await ask(run.port, "/v1/chat/completions", orjson.dumps(CHAT), ["content-type: text/plain"])
        assert (reply.status, error_of(reply)["code"]) == (400, 400)
        reply = await ask(run.port, "/v1/completions/render", {"prompt": "x" * 1000})
        assert (reply.status, error_of(reply)["code"]) == (413, 413)


async def test_what_others_send_without_a_wish_is_taken() -> None:
    ignored = {"store": True, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k"}
    async with rendering(counting(1)) as run:
        assert (await ask(run.port, "/v1/chat/completions", {**CHAT, **ignored, "model": "demo"})).status == 200
        unset = {"zeta": None, "session_id": None}
        assert (await ask(run.port, "/v1/chat/completions", {**CHAT, **unset})).status == 200


async def test_unknown_fields_may_be_allowed() -> None:
    async with rendering(counting(1), "--allow-unknown-fields") as run:
        assert (await ask(run.port, "/v1/chat/completions", {**CHAT, "zeta": 1})).status == 200
        assert (await ask(run.port, "/v1/chat/completions", {**CHAT, "session_params": {"id": "s"}})).status == 400


async def test_ids_beyond_the_vocabulary_are_named() -> None:
    async with rendering() as run:
        for path in ("/detokenize", "/v1/detokenize"):
            for tokens in ([-1], [[1], [10**6]]):
                reply = await ask(run.port, path, {"tokens": tokens})
                assert reply.status == 400
                assert "out-of-vocabulary" in error_of(reply)["message"]
            assert (await ask(run.port, path, {"tokens": ["a"]})).status == 400
            assert (await ask(run.port, path, {"tokens": []})).json["text"] == ""
            assert (await ask(run.port, path, {"tokens": [[], [5]]})).json["text"][0] == ""


async def test_tokenizing_a_chat_counts_what_rendering_makes() -> None:
    async with rendering() as run:
        told = (await ask(run.port, "/tokenize", {**CHAT, "max_completion_tokens": 5})).json
        made = (await ask(run.port, "/v1/chat/completions/render", CHAT)).json
        assert (told["tokens"], told["count"], told["max_model_len"]) == (made["input_ids"], len(told["tokens"]), 8192)
        assert (await ask(run.port, "/tokenize", {"prompt": ""})).json["count"] == 0
        both = await ask(run.port, "/tokenize", {"prompt": "a", **CHAT})
        assert "Exactly one of 'prompt' or 'messages'" in error_of(both)["message"]


async def test_tokenizing_a_chat_takes_what_is_no_field_of_its_own() -> None:
    others = {
        "temperature": 99,
        "n": 0,
        "session_id": "s",
        "custom_params": {"a": 1},
        "max_completion_tokens": 0,
        "x": 1,
    }
    async with rendering(None) as run:
        plain = await ask(run.port, "/tokenize", {"messages": MESSAGES})
        reply = await ask(run.port, "/v1/tokenize", {"messages": MESSAGES, **others})
        wrong = await ask(run.port, "/tokenize", {"messages": MESSAGES, "reasoning_effort": True})
    assert (reply.status, reply.json) == (200, plain.json)
    assert wrong.status == 400
