"""The whole application over real sockets: bodies, errors, headers, info routes, streams."""

from collections.abc import Iterable
from typing import Any

import pytest
import trio

from stages.messages import Delta, Ended, Finish, Submit, Usage
from tests.fakes import Step, counting, silent
from tests.stages.ingress.http import ask, connected, eventually, post_bytes, running

HELLO = {"prompts": ["hi"]}


async def test_a_post_is_answered_and_the_connection_is_kept() -> None:
    async with running(counting(2, 0)) as server, connected(server.port) as client:
        for _ in range(3):
            await client.post("/text", HELLO)
            reply = await client.reply()
            assert (reply.status, reply.json) == (200, {"texts": ["0 1 "]})
            assert reply.headers["content-type"] == "application/json"
            assert "server" not in reply.headers


async def test_a_stream_is_chunked_and_ends_properly_and_the_connection_is_kept() -> None:
    async with running(counting(3, 0.001)) as server, connected(server.port) as client:
        for _ in range(2):
            await client.post("/text", {**HELLO, "stream": True})
            reply = await client.reply()
            assert reply.complete
            assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert reply.headers["cache-control"] == "no-cache"
            assert reply.body.startswith(b"data: start\n\ndata: 0/0 0 \n\n")
            assert reply.body.endswith(b"data: 0/0 ended length\n\ndata: [DONE]\n\n")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running(counting(2, 0.001)) as server, connected(server.port) as client:
        await client.send(post_bytes("/text", HELLO) + post_bytes("/text", {**HELLO, "stream": True}))
        await client.post("/nowhere", {})
        assert (await client.reply()).json == {"texts": ["0 1 "]}
        assert (await client.reply()).body.endswith(b"data: [DONE]\n\n")
        assert (await client.reply()).status == 404


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with running(counting(1, 0)) as server, connected(server.port) as client:
        whole = post_bytes("/text", HELLO, ["expect: 100-continue"])
        head, _, body = whole.partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert b" 100 " in await client.until(b"\r\n\r\n")
        await client.send(body)
        assert (await client.reply()).status == 200


async def test_a_chunked_body_is_read_whole() -> None:
    async with running(counting(1, 0)) as server, connected(server.port) as client:
        await client.send(b"POST /text HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        await client.send(b'transfer-encoding: chunked\r\n\r\nd\r\n{"prompts": [\r\n2\r\n1]\r\n')
        await client.send(b"1\r\n}\r\n0\r\n\r\n")
        assert (await client.reply()).status == 200


async def test_an_event_without_frames_does_not_end_the_chunked_body() -> None:
    def script(submit: Submit) -> Iterable[Step]:
        yield 0.005, Delta(0, (1,), "a")
        yield 0.005, Delta(0, (2,), "")
        yield 0.005, Delta(0, (3,), "b")
        yield 0.005, Ended(0, Finish("stop"), Usage(1, 3))

    async with running(script) as server:
        reply = await ask(server.port, "/text", {**HELLO, "stream": True})
        assert reply.complete
        assert reply.body.endswith(b"data: 0/0 a\n\ndata: 0/0 b\n\ndata: 0/0 ended stop\n\ndata: [DONE]\n\n")


async def test_headers_and_first_frame_go_out_before_the_first_token() -> None:
    async with running(silent) as server, connected(server.port) as client:
        await client.post("/text", {**HELLO, "stream": True})
        assert b"200" in await client.until(b"data: start\n\n")


async def test_every_answer_names_its_request() -> None:
    async with running(counting(1, 0)) as server:
        replies = [
            await ask(server.port, "/text", HELLO, ["x-request-id: mine-1"]),
            await ask(server.port, "/text", {**HELLO, "stream": True}, ["x-request-id: mine-1"]),
            await ask(server.port, "/text", {}, ["x-request-id: mine-1"]),
            await ask(server.port, "/nowhere", {}, ["x-request-id: mine-1"]),
        ]
        async with connected(server.port) as client:
            replies.append(await client.get("/health", headers=["x-request-id: mine-1"]))
        assert {(reply.headers["x-request-id"], reply.headers["request-id"]) for reply in replies} == {
            ("mine-1", "mine-1")
        }


@pytest.mark.parametrize("given", [[], ["x-request-id: spaces in it"], [f"x-request-id: {'a' * 129}"]])
async def test_a_missing_or_strange_request_id_is_replaced(given: list[str]) -> None:
    async with running(counting(1, 0)) as server:
        first = (await ask(server.port, "/text", HELLO, given)).headers["x-request-id"]
        second = (await ask(server.port, "/text", HELLO, given)).headers["x-request-id"]
    assert len(first) == len(second) == 32
    assert first != second


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not valid JSON"),
        (b'{"prompts": NaN}', "not valid JSON"),
        (b'{"prompts": "\xff"}', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "128 levels"),
        (b'{"prompts": 7}', "prompts must be a list"),
    ],
)
async def test_a_bad_body_is_a_400_in_the_dialects_shape(body: bytes, message: str) -> None:
    async with running(silent) as server:
        reply = await ask(server.port, "/text", body)
    assert reply.status == 400
    assert message in reply.json["error"]["message"]
    assert reply.json["error"]["type"] == "invalid_request_error"


async def test_the_media_type_is_checked_only_where_the_dialect_demands_it() -> None:
    async with running(counting(1, 0)) as server:
        for header in ("content-type: text/plain", "content-type:"):
            assert (await ask(server.port, "/text", HELLO, [header])).status == 400
            assert (await ask(server.port, "/lax", HELLO, [header])).status == 200
        assert (await ask(server.port, "/text", HELLO, ["content-type: Application/JSON; charset=utf-8"])).status == 200


async def test_a_second_method_of_a_route_works_and_another_is_a_405_that_lists_them() -> None:
    async with running(counting(1, 0)) as server, connected(server.port) as client:
        await client.send(
            b"PUT /text HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n"
        )
        await client.send(b'{"prompts":[1]}')
        assert (await client.reply()).status == 200
        reply = await client.get("/text")
        assert reply.status == 405
        assert {"POST", "PUT"} <= set(reply.headers["allow"].split(", "))


async def test_unknown_paths_have_openais_shape_under_v1_and_sglangs_elsewhere() -> None:
    async with running(silent) as server, connected(server.port) as client:
        reply = await client.get("/v1/nowhere")
        assert (reply.status, reply.json) == (
            404,
            {
                "error": {
                    "message": "There is no /v1/nowhere here.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": None,
                }
            },
        )
        reply = await client.get("/nowhere")
        assert (reply.status, reply.json) == (
            404,
            {
                "object": "error",
                "message": "There is no /nowhere here.",
                "type": "404",
                "param": None,
                "code": 404,
            },
        )
        assert (await client.get("/v1/models", method="DELETE")).json["error"]["message"].startswith("DELETE")


async def test_health_follows_readiness_and_touches_no_engine() -> None:
    async with running(silent) as server, connected(server.port) as client:
        paths = ("/health", "/health_generate", "/ready", "/ping")
        for path in (*paths, *(f"/get_{path[1:]}" for path in paths)):
            server.readiness = "ready"
            reply = await client.get(path)
            assert (reply.status, reply.body) == (200, b"")
            assert (await client.get(path, method="HEAD")).status == 200
            server.readiness = "draining"
            assert (await client.get(path)).status == 503
            server.readiness = "starting"
            assert (await client.get(path)).status == 503
        assert server.engine.submits == []


async def test_head_of_the_root_answers() -> None:
    async with running(silent) as server, connected(server.port) as client:
        assert (await client.get("/", method="HEAD")).status == 200
        assert (await client.get("/")).json == "TrnRT is running"


@pytest.mark.parametrize(
    ("path", "check"),
    [
        ("/v1/models", lambda body: body["data"][0]["max_model_len"] == 4096),
        ("/v1/models/", lambda body: body["object"] == "list"),
        ("/v1/models/fake", lambda body: body["id"] == "fake"),
        ("/model_info", lambda body: body["model_type"] == "glm5_next" and body["is_generation"] is True),
        ("/get_model_info", lambda body: body["served_model_name"] == "fake"),
        ("/server_info", lambda body: body["max_total_num_tokens"] == 512 and body["schedule_policy"] == "fcfs"),
        ("/get_server_info", lambda body: body["internal_states"][0]["last_gen_throughput"] == 12.35),
        ("/version", lambda body: body == {"version": "0.1.0"}),
        ("/get_version", lambda body: body == {"version": "0.1.0"}),
        ("/get_load", lambda body: body == [{"dp_rank": 0, "num_reqs": 7, "num_waiting_reqs": 4, "num_tokens": 178}]),
        ("/v1/loads", lambda body: body["loads"][0]["token_usage"] == 0.25 and "memory" in body["loads"][0]),
        ("/v1/loads?include=core", lambda body: "memory" not in body["loads"][0]),
        ("/v1/loads?dp_rank=3", lambda body: body["loads"] == []),
    ],
)
async def test_info_routes_tell_what_their_names_say(path: str, check: Any) -> None:
    async with running(silent) as server, connected(server.port) as client:
        reply = await client.get(path)
        assert reply.status == 200
        assert check(reply.json), reply.json


async def test_loads_come_as_text_gauges_on_demand() -> None:
    async with running(silent) as server, connected(server.port) as client:
        reply = await client.get("/v1/loads?format=prometheus")
        assert reply.headers["content-type"].startswith("text/plain")
        assert b'sglang_token_usage{dp_rank="0"} 0.25\n' in reply.body


async def test_an_unknown_model_or_section_is_refused_by_name() -> None:
    async with running(silent) as server, connected(server.port) as client:
        reply = await client.get("/v1/models/org/other")
        assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (
            404,
            "model_not_found",
            "model",
        )
        assert reply.json["error"]["message"] == "The model 'org/other' does not exist"
        assert (await client.get("/v1/loads?include=core,nothing")).status == 400
        assert (await client.get("/v1/loads?dp_rank=x")).status == 400


async def test_an_unexpected_exception_in_a_handler_is_a_generic_500() -> None:
    def extend(app: Any) -> None:
        async def broken() -> None:
            raise ZeroDivisionError("secret")

        app.add_url_rule("/v1/broken", "broken", broken, methods=["GET"])

    async with running(silent, extend) as server, connected(server.port) as client:
        reply = await client.get("/v1/broken")
        assert (reply.status, reply.json["error"]["message"]) == (500, "Internal server error")
        assert b"secret" not in reply.body


async def test_a_hundred_streams_at_once_all_end_properly() -> None:
    async with running(counting(20, 0.002)) as server:
        replies = []

        async def one() -> None:
            replies.append(await ask(server.port, "/text", {**HELLO, "stream": True}))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(one)
        assert all(reply.complete and reply.body.endswith(b"[DONE]\n\n") for reply in replies)
        assert all(reply.body.count(b"data: 0/0 ") == 21 for reply in replies)
        await eventually(lambda: not server.engine.running)
