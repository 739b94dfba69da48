"""Every route and every kind of failure: its status, its API's shape, words that say what is wrong, nothing of ours."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

import orjson
import pytest
from attrs import field, frozen

from stages.errors import EngineFailure
from stages.ingress.admin import BODIES
from stages.ingress.dialects import find_dialects
from stages.settings import IngressSettings
from tests.scripted.script import script
from tests.scripted.server import Exchange, by_choice, scripted_server

MESSAGES = [{"role": "user", "content": "x"}]
GENERIC = "Internal server error"


@frozen(eq=False)
class Path:
    """A route with a good body, one field of it that must be an integer, and one of another type."""

    path: str
    body: dict[str, Any]
    integer: str
    typed: tuple[str, Any]
    has_model: bool = True
    json_only: bool = True
    # Whether the prompt stage is asked.
    is_rendered: bool = True


PATHS = [
    Path("/v1/chat/completions", {"messages": MESSAGES}, "max_tokens", ("temperature", "hot")),
    Path("/invocations", {"messages": MESSAGES}, "n", ("stream", "yes")),
    Path("/v1/completions", {"prompt": "x"}, "max_tokens", ("stop", 5)),
    Path("/v1/responses", {"input": "x"}, "max_output_tokens", ("tools", {})),
    Path("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, "top_k", ("stop_sequences", "x")),
    Path("/v1/messages/count_tokens", {"messages": MESSAGES}, "top_k", ("tools", "x")),
    Path("/generate", {"text": "x"}, "priority", ("stream", 1), has_model=False, json_only=False),
    Path("/tokenize", {"prompt": "x"}, "prompt", ("return_token_strs", 1)),
    Path("/v1/tokenize", {"messages": MESSAGES}, "max_tokens", ("return_token_strs", "x")),
    Path("/detokenize", {"tokens": [1]}, "tokens", ("skip_special_tokens", 1)),
    Path("/v1/detokenize", {"tokens": [[1]]}, "tokens", ("skip_special_tokens", "x")),
    Path("/parse_function_call", {"text": "x"}, "text", ("tools", {}), has_model=False, json_only=False),
    Path("/separate_reasoning", {"text": "x"}, "text", ("return_blocks", 1), has_model=False, json_only=False),
    Path("/api/chat", {"messages": MESSAGES}, "top_logprobs", ("options", []), json_only=False),
    Path("/api/generate", {"prompt": "x"}, "top_logprobs", ("think", 5), json_only=False),
    Path("/api/show", {"model": "glm-5.3-flash-demo"}, "model", ("model", 5), json_only=False, is_rendered=False),
]
ADMIN = [
    Path("/abort_request", {}, "rid", ("abort_all", "x"), has_model=False, json_only=False, is_rendered=False),
    Path("/pause_generation", {}, "mode", ("mode", 5), has_model=False, json_only=False, is_rendered=False),
    Path(
        "/continue_generation",
        {},
        "torch_empty_cache",
        ("torch_empty_cache", 5),
        has_model=False,
        json_only=False,
        is_rendered=False,
    ),
    Path("/configure_logging", {}, "log_level", ("log_level", 5), False, False, False),
    Path("/open_session", {}, "capacity_of_str_len", ("timeout", "x"), False, False, False),
    Path("/close_session", {"session_id": "s"}, "session_id", ("session_id", 5), False, False, False),
]
every_route = pytest.mark.parametrize("route", [*PATHS, *ADMIN], ids=lambda route: route.path)


@frozen(eq=False)
class Fault:
    """A request that goes wrong and what is answered, with `words` in its text."""

    status: int
    words: str
    data: bytes | None = None
    settings: dict[str, Any] = field(factory=dict)
    headers: dict[str, str] = field(factory=dict)


DEEP = b'{"zz":' + b"[" * 200 + b"]" * 200 + b"}"
BODIES_GONE_WRONG = {
    "malformed": Fault(400, "not valid JSON", b'{"text": '),
    "empty": Fault(400, "not valid JSON", b" "),
    "trailing junk": Fault(400, "not valid JSON", b"{} x"),
    "invalid UTF-8": Fault(400, "not valid JSON", b'{"text": "\xff"}'),
    "NaN": Fault(400, "not valid JSON", b'{"text": NaN}'),
    "Infinity": Fault(400, "not valid JSON", b'{"text": -Infinity}'),
    "no object": Fault(400, "must be a JSON object", b"[]"),
    "null": Fault(400, "must be a JSON object", b"null"),
    "too deep": Fault(400, "128 levels", DEEP),
    "too large": Fault(413, "--max-request-bytes", b" " * 99, settings={"max_request_bytes": 50}),
}


async def answered(
    route: Path, data: object, method: str = "POST", settings: Mapping[str, Any] | None = None, **more: Any
) -> Exchange:
    """The refusal of one call; nothing was generated."""
    headers, path = more.pop("headers", None), more.pop("path", route.path)
    ingress = IngressSettings(**(settings or {}))
    async with scripted_server(by_choice([script("</think>Hi")]), settings=ingress, **more) as server:
        exchange = await server.post(path, data, headers, method)
        assert not server.engine.submits
        assert not server.serving.live_ids
    assert exchange.has_ended
    return exchange


def check(exchange: Exchange, path: str, status: int, words: str) -> None:
    """Demand a status, the shape of what serves the path, the words, and nothing of ours."""
    assert exchange.status == status, exchange.body
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.headers["x-request-id"]
    assert ("retry-after" in exchange.headers) == (status == 503)
    text = exchange.body.decode()
    assert not any(secret in text for secret in ("Traceback", "secret", 'File "', "KeyError", "stages."))
    message = message_in(path, exchange.json, status)
    assert words in message, message


def message_in(path: str, value: Any, status: int) -> str:
    """The text of an error body, of exactly the shape of the path's API."""
    if path.startswith("/v1/messages"):
        assert value.keys() == {"type", "error", "request_id"}
        assert value["type"] == "error"
        assert value["error"].keys() == {"type", "message"}
        assert value["error"]["type"] == ANTHROPIC_TYPES[status]
        return str(value["error"]["message"])
    if path.startswith("/api/"):
        assert value.keys() == {"error"}
        return str(value["error"])
    if path == "/generate" and status == 400:
        # SGLang's two: a plain string of its first check, an object of its second.
        (error,) = value.values()
        return str(error["message"] if isinstance(error, dict) else error)
    if path.startswith(("/v1/", "/invocations", "/tokenize", "/detokenize")):
        error = value["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == OPENAI_TYPES.get(status, "invalid_request_error")
        assert isinstance(error["code"], str | None)
        if "tokenize" not in path:
            assert value.keys() == {"error"}
            return f"{error['param']}: {error['message']}"
        assert value["message"] == error["message"]
    assert (value["object"], value["code"]) == ("error", status)
    return str(value["message"])


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}
OPENAI_TYPES = {500: "server_error", 503: "service_unavailable_error"}


def test_every_route_that_takes_a_body_is_here() -> None:
    routes = [route.path for dialect in find_dialects() for route in dialect.routes]
    assert sorted([*routes, *BODIES]) == sorted(route.path for route in [*PATHS, *ADMIN])


@every_route
@pytest.mark.parametrize("name", BODIES_GONE_WRONG)
async def test_a_body_that_is_no_sane_object_is_refused_before_anything_else(
    route: Path, name: str, autojump_clock: Any
) -> None:
    fault = BODIES_GONE_WRONG[name]
    check(await answered(route, fault.data, settings=fault.settings), route.path, fault.status, fault.words)


@every_route
async def test_a_body_that_does_not_come_is_a_408(route: Path, autojump_clock: Any) -> None:
    check(await answered(route, None, settings={"body_timeout_s": 3.0}), route.path, 408, "within 3 s")


@pytest.mark.parametrize("route", PATHS, ids=lambda route: route.path)
@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
async def test_another_media_type_is_a_400_where_the_api_demands_json(
    route: Path, media_type: str, autojump_clock: Any
) -> None:
    sent = {"content-type": media_type}
    if route.json_only:
        check(await answered(route, route.body, headers=sent), route.path, 400, "Unsupported Media Type")
    else:
        async with scripted_server(by_choice([script("Hi")])) as server:
            assert (await server.post(route.path, route.body, sent)).status == 200


@every_route
async def test_a_value_of_the_wrong_type_is_a_400_that_names_its_field(route: Path, autojump_clock: Any) -> None:
    name, value = route.typed
    check(await answered(route, {**route.body, name: value}), route.path, 400, name)


@every_route
@pytest.mark.parametrize("value", [2**63, 2**64, 2**65, -(2**64), 10**400, 1.5])
async def test_an_integer_beyond_64_bits_is_a_400_that_names_its_field(
    route: Path, value: float, autojump_clock: Any
) -> None:
    data = orjson.dumps({**route.body, route.integer: "NUMBER"}).replace(b'"NUMBER"', str(value).encode())
    exchange = await answered(route, data)
    check(exchange, route.path, 400, "" if value == 10**400 else route.integer)


@every_route
async def test_a_number_of_any_size_in_a_field_nobody_knows_is_ignored(route: Path, autojump_clock: Any) -> None:
    data = orjson.dumps({**route.body, "zz_new": "NUMBER"}).replace(b'"NUMBER"', str(2**65).encode())
    async with scripted_server(by_choice([script("Hi")])) as server:
        assert (await server.post(route.path, data)).status == 200


@pytest.mark.parametrize("route", [route for route in PATHS if route.has_model], ids=lambda route: route.path)
async def test_a_model_that_is_not_served_is_a_404_that_names_it(route: Path, autojump_clock: Any) -> None:
    check(await answered(route, {**route.body, "model": "gpt-9"}), route.path, 404, "gpt-9")


@every_route
async def test_another_path_is_a_404_that_names_it(route: Path, autojump_clock: Any) -> None:
    path = f"{route.path}/nowhere"
    words = "There is no response" if path.startswith("/v1/responses/") else f"There is no {path} here."
    async with scripted_server(by_choice([])) as server:
        exchange = await server.post(path, route.body)
    # Nothing serves it, so it has the shape of what is around it: that of a path of no API but the root's.
    around = next((root for root in ("/v1/messages/", "/v1/", "/api/") if path.startswith(root)), "/")
    check(exchange, f"{around}elsewhere", 404, words)


@every_route
@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
async def test_another_method_is_a_405_that_names_those_there_are(
    route: Path, method: str, autojump_clock: Any
) -> None:
    for path in (route.path, f"{route.path}/"):
        exchange = await answered(route, route.body, method, path=path)
        check(exchange, path, 405, f"{method} is not allowed for {path}.")
        assert "POST" in exchange.headers["allow"].split(", ")


rendered = pytest.mark.parametrize("route", [one for one in PATHS if one.is_rendered], ids=lambda route: route.path)


@rendered
async def test_a_full_queue_of_prompts_is_the_503_of_a_full_queue(route: Path, autojump_clock: Any) -> None:
    exchange = await answered(route, route.body, max_prompts=0)
    check(exchange, route.path, 503, "The request queue is full.")
    assert exchange.headers["x-trnrt-queue-full"] == "1"


@rendered
async def test_a_prompt_stage_that_fails_is_a_500_in_general_words(route: Path, autojump_clock: Any) -> None:
    exchange = await answered(route, route.body, prompt_of=lambda work: EngineFailure("/secret/path"))
    check(exchange, route.path, 500, GENERIC)


@rendered
async def test_a_prompt_that_takes_too_long_is_a_503(route: Path, autojump_clock: Any) -> None:
    exchange = await answered(route, route.body, settings={"request_timeout_s": 9.0}, prompt_of=lambda work: None)
    check(exchange, route.path, 503, "Request running timeout reached.")


@every_route
async def test_a_mistake_of_our_own_is_a_500_in_general_words(route: Path, autojump_clock: Any) -> None:
    mistake = KeyError("/secret/path")
    with (
        mock.patch("stages.ingress.generation.parse_object", side_effect=mistake),
        mock.patch("stages.ingress.routes.parse_object", side_effect=mistake),
    ):
        check(await answered(route, route.body), route.path, 500, GENERIC)


@every_route
async def test_a_call_without_its_key_is_a_401(route: Path, autojump_clock: Any) -> None:
    keys = {"api_key": "k", "admin_api_key": "a"}
    exchange = await answered(route, route.body, settings=keys)
    assert exchange.status == 401
    assert exchange.headers["www-authenticate"] == "Bearer"
    if route.path.startswith("/v1"):
        check(exchange, route.path, 401, "Unauthorized")
    else:
        assert exchange.json == {"error": "Unauthorized"}


INFO = ["/", "/health", "/v1/models", "/model_info", "/server_info", "/version", "/get_load", "/v1/loads", "/api/tags"]


@pytest.mark.parametrize("path", [*INFO, "/api/version", "/openapi.json", "/v1/models/x", "/ready"])
async def test_a_post_to_what_only_tells_is_a_405_that_says_so(path: str, autojump_clock: Any) -> None:
    async with scripted_server(by_choice([])) as server:
        exchange = await server.post(path, {})
    check(exchange, path, 405, f"POST is not allowed for {path}.")
    assert "GET" in exchange.headers["allow"]
