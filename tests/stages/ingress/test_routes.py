"""The generation routes over real sockets, both modes: refusals, deadlines, aborts, and what the engine gets."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest
from attrs import evolve, frozen

from stages.ingress.dialects import find_dialects
from tests.fakes import FAKE_MODEL, Script, counting, silent
from tests.stages.ingress.http import Running, ask, connected, eventually, running

PRIORITY_REFUSED = "Using priority is disabled for this server. Please send a new request without a priority."
DEADLINE = "Request running timeout reached."


@frozen
class Api:
    """A route, a body for it, and where its errors and ends stand."""

    path: str
    body: dict[str, Any]

    def message(self, error: Any) -> str:
        """Return the text of an error body or frame."""
        return str((error if "message" in error else error["error"])["message"])

    def finish(self, answer: Any) -> str:
        """Return how the only choice of an answer or chunk ended."""
        if self.path == "/generate":
            return str(answer["meta_info"]["finish_reason"]["type"])
        if self.path == "/v1/responses":
            assert (answer["status"], answer["error"]["message"]) == ("failed", "Aborted")
            return "abort"
        return str(answer["choices"][0]["finish_reason"])


APIS = [
    Api("/generate", {"text": "hi"}),
    Api("/v1/completions", {"prompt": "hi"}),
    Api("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    Api("/v1/responses", {"input": "hi"}),
]
on_every_route = pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
in_both_modes = pytest.mark.parametrize("stream", [False, True])


def serving(script: Script, **model: Any) -> AbstractAsyncContextManager[Running]:
    return running(script, dialects=find_dialects(), model=evolve(FAKE_MODEL, **model))


def frames_of(body: bytes) -> list[Any]:
    if body.startswith(b"event: "):
        events = [orjson.loads(part.partition(b"\ndata: ")[2]) for part in body.split(b"\n\n")[:-1]]
        return [*events, events[-1]["response"]]
    *frames, done = [part.removeprefix(b"data: ") for part in body.split(b"\n\n")[:-1]]
    assert done == b"[DONE]"
    return [orjson.loads(frame) for frame in frames]


@on_every_route
@in_both_modes
async def test_a_priority_is_a_503_where_there_are_none_and_the_server_says_so(api: Api, stream: bool) -> None:
    async with serving(counting(1, 0), refuses_priority=True) as server:
        refused = await ask(server.port, api.path, {**api.body, "stream": stream, "priority": 0})
        assert (refused.status, api.message(refused.json)) == (503, PRIORITY_REFUSED)
        assert (await ask(server.port, api.path, {**api.body, "stream": stream})).status == 200
        assert len(server.engine.submits) == 1


async def test_generate_refuses_a_priority_in_sglangs_flat_shape() -> None:
    async with serving(silent, refuses_priority=True) as server:
        refused = await ask(server.port, "/generate", {"text": "hi", "priority": 1})
        assert refused.json == {
            "object": "error", "message": PRIORITY_REFUSED, "type": "503", "param": None, "code": 503,
        }  # fmt: skip


@on_every_route
async def test_a_deadline_is_a_503_in_sglangs_words(api: Api) -> None:
    async with serving(silent) as server:
        late = await ask(server.port, api.path, {**api.body, "request_timeout": 0.05})
        assert (late.status, api.message(late.json)) == (503, DEADLINE)
        await eventually(lambda: not server.engine.running)


@on_every_route
async def test_a_deadline_in_a_stream_is_its_last_frame(api: Api) -> None:
    async with serving(silent) as server:
        late = await ask(server.port, api.path, {**api.body, "request_timeout": 0.05, "stream": True})
        assert (late.status, api.message(frames_of(late.body)[-1])) == (200, DEADLINE)
        await eventually(lambda: not server.engine.running)


@on_every_route
@in_both_modes
async def test_an_aborted_request_is_a_200_that_ends_in_abort(api: Api, stream: bool) -> None:
    async with serving(silent) as server, connected(server.port) as client:
        await client.post(api.path, {**api.body, "stream": stream, "rid": "mine"})
        await eventually(lambda: len(server.engine.running) == 1)
        assert (await ask(server.port, "/abort_request", {"rid": "mine"})).status == 200
        reply = await client.reply()
        answer = frames_of(reply.body)[-1] if stream else reply.json
        assert (reply.status, api.finish(answer)) == (200, "abort")


@on_every_route
@in_both_modes
async def test_the_engine_gets_the_place_a_body_and_its_headers_ask_for(api: Api, stream: bool) -> None:
    body = {**api.body, "stream": stream, "priority": 7, "session_id": "s", "cache_salt": "a", "extra_key": "b"}
    async with serving(counting(1, 0)) as server:
        assert (await ask(server.port, api.path, body, ["X-SMG-Routing-Key: k"])).status == 200
        (submit,) = server.engine.submits
        assert (submit.priority, submit.session, submit.routing_key) == (7, "s", "k")
        assert submit.namespace == "1:ab"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["resp_1", "resp_1/cancel", "resp_1/input_items", "input_tokens", "compact"])
async def test_no_response_is_stored(method: str, path: str) -> None:
    async with serving(silent) as server, connected(server.port) as client:
        answer = await client.get(f"/v1/responses/{path}", method)
        name = path.partition("/")[0]
        assert answer.status == 404
        assert answer.json["error"]["message"] == (
            f"There is no response '{name}': this server stores none; send the whole input."
        )


@pytest.mark.parametrize("rank", ["--5", "5-", "9" * 5000, "%C2%B2", "", "0x1", "1.0"])
async def test_a_rank_that_is_no_integer_is_refused_by_name(rank: str) -> None:
    async with running(counting(1)) as server, connected(server.port) as client:
        reply = await client.get(f"/v1/loads?dp_rank={rank}")
        assert (reply.status, "dp_rank" in reply.json["error"]["message"]) == (400, True)
        assert len(reply.body) < 500
        assert (await client.get("/v1/loads?dp_rank=-1")).json["loads"] == []


@pytest.mark.parametrize("host", ["x", "a b", "exa<mple", "[::1", "x:y", "x:99999999", "\u00ff", "a/b"])
async def test_a_route_answers_past_the_web_frameworks_dispatch_as_through_it(host: str) -> None:
    async with serving(counting(2, 0)) as server:
        answers = []
        for path in ("/generate", "/generate/"):
            async with connected(server.port) as client:
                data = orjson.dumps({"text": "hi", "sampling_params": {"temperature": -1}})
                head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
                head += f"x-request-id: r\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
                await client.send(head.encode("latin-1") + data)
                told = await client.to_end()
                answers.append([line for line in told.split(b"\r\n") if not line.startswith(b"date:")])
        assert answers[0] == answers[1]
        assert answers[0]
