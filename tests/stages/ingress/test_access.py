"""Who may call what: keys, web pages, prefixes, TLS and Unix sockets, on a real server."""

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from stages.errors import StartupError
from stages.ingress.access import Access
from stages.ingress.admin import admin_paths
from stages.ingress.dialects import find_dialects
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.ingress.server import bind, check_certificate
from stages.settings import IngressSettings
from tests.fakes import counting
from tests.stages.ingress.http import Client, ask, connected, running

HERE = Path(__file__).parent
SCRIPT = counting(3, 0.0)
CERTIFICATE, KEY = str(HERE / "tls_certificate.pem"), str(HERE / "tls_key.pem")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        (["authorization: Bearer right"], 200),
        (["authorization: bearer  right "], 200),
        (["x-api-key: right"], 200),
        (["authorization: Bearer wrong"], 401),
        (["authorization: Basic right"], 401),
        (["authorization: right"], 401),
        (["authorization: Bearer wrong", "x-api-key: right"], 200),
        (["x-api-key: admin"], 401),
    ],
)
async def test_with_a_key_a_call_needs_it(headers: Sequence[str], status: int) -> None:
    async with running(SCRIPT, api_key="right", admin_api_key="admin") as server, connected(server.port) as client:
        reply = await client.get("/v1/models", headers=headers)
        assert reply.status == status
        if status == 401:
            assert reply.json["error"]["code"] == "invalid_api_key"
            assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
async def test_a_key_that_comes_twice_is_refused_whichever_of_the_two_is_right(name: str) -> None:
    prefix = "Bearer " if name == "authorization" else ""
    right, wrong, other_case = (f"{name}: {prefix}right", f"{name}: {prefix}wrong", f"{name.title()}: {prefix}right")
    async with running(SCRIPT, dialects=find_dialects(), api_key="right") as server:
        for pair in ([right, wrong], [wrong, right], [right, other_case]):
            reply = await ask(server.port, "/v1/responses", {}, pair)
            assert reply.status == 400
            assert reply.json["error"]["message"] == f"The header {name} came more than once."
            assert (await ask(server.port, "/generate", {}, pair)).status == 400
        async with connected(server.port) as client:
            assert (await client.get("/health", headers=[right, wrong])).status == 200
    async with running(SCRIPT) as server, connected(server.port) as client:
        # Where no key is asked for, none is looked at.
        assert (await client.get("/v1/models", headers=[right, wrong])).status == 200


async def test_a_refusal_has_the_shape_of_its_route_and_is_given_before_the_body_is_read() -> None:
    async with running(SCRIPT, api_key="right") as server, connected(server.port) as client:
        await client.send(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.json) == (401, {"error": "Unauthorized"})
        assert not server.engine.submits


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/messages/count_tokens", "authentication_error"),
        ("/v1/tokenize", "invalid_request_error"),
        ("/v1/responses", "invalid_request_error"),
        ("/v1/nothing", "invalid_request_error"),
        ("/tokenize", None),
        ("/api/chat", None),
        ("/api/tags", None),
        ("/configure_logging", None),
    ],
)
async def test_every_api_is_refused_in_a_shape_its_clients_know(path: str, kind: str | None) -> None:
    async with running(SCRIPT, dialects=find_dialects(), api_key="right") as server:
        reply = await ask(server.port, path, {})
    assert reply.status == 401
    if kind is None:
        assert reply.json == {"error": "Unauthorized"}
    else:
        assert (reply.json["error"]["type"], reply.json["error"]["message"]) == (kind, "Unauthorized")


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready"])
async def test_health_needs_no_key(path: str) -> None:
    async with running(SCRIPT, api_key="right") as server, connected(server.port) as client:
        assert (await client.get(path)).status == 200


async def test_with_an_admin_key_the_other_opens_admin_routes_no_more() -> None:
    async with running(SCRIPT, api_key="right", admin_api_key="admin") as server:
        for path in admin_paths():
            assert (await ask(server.port, path, {}, ["authorization: Bearer right"])).status == 401
        assert (await ask(server.port, "/abort_request", {}, ["authorization: Bearer admin"])).status == 200
    async with running(SCRIPT, api_key="right") as server:
        assert (await ask(server.port, "/abort_request", {}, ["authorization: Bearer right"])).status == 200
    async with running(SCRIPT, admin_api_key="admin") as server, connected(server.port) as client:
        assert (await client.get("/v1/models")).status == 200
        assert (await ask(server.port, "/abort_request/", {})).status == 401


def test_every_admin_route_that_is_served_is_an_admin_path() -> None:
    app = create_app((), Serving(None, IngressSettings()), None)  # type: ignore[arg-type]
    assert {rule.rule for rule in app.url_map.iter_rules() if rule.endpoint.startswith("admin ")} == set(admin_paths())
    access = Access("key", "admin", admin_paths=frozenset(admin_paths()))
    for path in admin_paths():
        access.check("POST", path, [("x-api-key", "admin")])


async def test_a_web_page_may_read_every_answer_by_default() -> None:
    async with running(SCRIPT) as server, connected(server.port) as client:
        for path, status in (("/v1/models", 200), ("/nothing", 404)):
            reply = await client.get(path, headers=["origin: https://page.example"])
            assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, "*")
        assert "access-control-allow-origin" not in (await client.get("/v1/models")).headers


async def test_a_stream_may_be_read_by_a_web_page_too() -> None:
    async with running(SCRIPT) as server:
        body = {"prompts": ["a"], "stream": True}
        reply = await ask(server.port, "/text", body, ["origin: https://page.example"])
        assert reply.headers["access-control-allow-origin"] == "*"


async def test_a_preflight_is_answered_without_a_key_and_a_plain_options_is_not_a_preflight() -> None:
    async with running(SCRIPT, api_key="right") as server, connected(server.port) as client:
        asked = [
            "origin: https://page.example",
            "access-control-request-method: POST",
            "access-control-request-headers: authorization, x-own",
        ]
        reply = await client.get("/text", "OPTIONS", asked)
        assert reply.status == 200
        assert reply.headers["access-control-allow-methods"] == "POST"
        assert reply.headers["access-control-allow-headers"] == "authorization, x-own"
        assert "access-control-allow-methods" not in (await client.get("/text", "OPTIONS")).headers


async def test_only_the_origins_that_are_allowed_may_read() -> None:
    allowed = ("https://ours.example", "http://localhost:3000")
    async with running(SCRIPT, allowed_origins=allowed) as server, connected(server.port) as client:
        reply = await client.get("/v1/models", headers=["origin: https://ours.example"])
        assert (reply.headers["access-control-allow-origin"], reply.headers["vary"]) == (
            "https://ours.example",
            "Origin",
        )
        other = ["origin: https://other.example", "access-control-request-method: POST"]
        assert "access-control-allow-origin" not in (await client.get("/v1/models", headers=other)).headers
        assert (await client.get("/text", "OPTIONS", other)).status == 403


async def test_paths_are_found_with_and_without_what_a_proxy_leaves_before_them() -> None:
    async with running(SCRIPT, root_path="/models/flash") as server, connected(server.port) as client:
        assert (await client.get("/models/flash/v1/models")).status == 200
        assert (await client.get("/v1/models")).status == 200
        assert (await client.get("/models/flashy/v1/models")).status == 404


async def test_the_key_is_needed_behind_a_prefix_too() -> None:
    async with running(SCRIPT, root_path="/health", api_key="right") as server, connected(server.port) as client:
        assert (await client.get("/health/v1/models")).status == 401


ODD_SPELLINGS = [
    "//{}",
    "/{}/",
    "/{}//",
    "/%66{}",
    "/{}%00",
    "/{};x",
    "/{}?x=1",
    "/health/../{}",
    "/health%2f..%2f{}",
    "/nope",
]


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE"])
@pytest.mark.parametrize("spelling", [*ODD_SPELLINGS, "http://x/{}", "*"])
async def test_no_spelling_of_a_path_gets_round_the_admin_key(spelling: str, method: str) -> None:
    name = "lush_cache" if "%66" in spelling else "flush_cache"
    async with running(SCRIPT, api_key="right", admin_api_key="admin") as server:
        for headers in ([], ["authorization: Bearer right"]):
            async with connected(server.port) as client:
                await client.send(
                    "\r\n".join([f"{method} {spelling.format(name)} HTTP/1.1", "host: x", *headers, "", ""]).encode()
                )
                assert (await client.reply(has_body=method != "HEAD")).status in (401, 404, 405)
        assert not server.engine.orders


async def test_https_serves_the_same() -> None:
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    async with running(SCRIPT, ssl_certfile=CERTIFICATE, ssl_keyfile=KEY) as server:
        plain = await trio.open_tcp_stream("127.0.0.1", server.port)
        async with trio.SSLStream(plain, trusted, server_hostname="localhost", https_compatible=True) as stream:
            client = Client(stream)  # type: ignore[arg-type]
            assert (await client.get("/v1/models")).status == 200
            await client.post("/text", {"prompts": ["a"], "stream": True})
            reply = await client.reply()
            assert reply.complete
            assert (await client.get("/health")).status == 200


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        (CERTIFICATE, None, "one of them is missing"),
        (None, KEY, "one of them is missing"),
        ("/nowhere.pem", KEY, "--ssl-certfile: there is no file /nowhere.pem"),
        (CERTIFICATE, "/nowhere.pem", "--ssl-keyfile: there is no file /nowhere.pem"),
        (KEY, CERTIFICATE, "cannot be used"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_told_before_anything_listens(
    certificate: str | None, key: str | None, text: str
) -> None:
    with pytest.raises(StartupError, match=text):
        check_certificate(IngressSettings(ssl_certfile=certificate, ssl_keyfile=key))


def exists(path: str) -> bool:
    return Path(path).exists()


async def test_a_unix_socket_serves_takes_over_what_was_left_behind_and_is_gone_at_the_end(tmp_path: Path) -> None:
    path = str(tmp_path / "trnrt.sock")
    for _ in range(2):
        async with running(SCRIPT, unix_socket=path):
            async with await trio.open_unix_socket(path) as stream:
                assert (await Client(stream).get("/v1/models")).status == 200
            with pytest.raises(StartupError, match=r"--uds .*trnrt\.sock: cannot listen there"):
                bind(IngressSettings(unix_socket=path))
        assert not exists(path)
        bind(IngressSettings(unix_socket=path)).close()  # as a server that was killed leaves it
        assert exists(path)


def test_a_file_in_the_way_of_a_unix_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(StartupError, match="cannot listen there"):
        bind(IngressSettings(unix_socket=str(path)))
    assert path.read_text() == "mine"
