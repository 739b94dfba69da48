"""A renderer's statistics: calls are counted though the engine is another's, of whose memory nothing is told."""

from typing import Any

from tests.stages.ingress.http import Reply, ask, connected
from tests.stages.stats.lint import read
from tests.trnrt.render_kit import MESSAGES, Rendering, rendering, saying

CHAT = {"messages": MESSAGES}


async def get(run: Rendering, path: str) -> Reply:
    async with connected(run.port) as client:
        return await client.get(path)


async def stats_of(run: Rendering) -> Any:
    return (await get(run, "/v1/stats")).json


async def test_a_call_is_counted_with_its_latencies_and_no_engine_is_told_of() -> None:
    async with rendering(saying("Paris it is."), "--enable-metrics") as run:
        await ask(run.port, "/v1/chat/completions", CHAT)
        await ask(run.port, "/v1/chat/completions", {**CHAT, "stream": True})
        await ask(run.port, "/v1/chat/completions/render", CHAT)
        told = await stats_of(run)
        exposed = read((await get(run, "/metrics")).body.decode())
    window = told["windows"]["last_1m"]
    assert (told["role"], told["engine"], told["worker"], told["model"]) == ("render", None, None, "demo")
    assert (window["calls"], window["outcomes"]) == (2, {"stop": 2})
    assert told["lost"] == {"records": 0, "log_lines": 0}
    assert window["time_to_first_token"]["count"] == window["end_to_end"]["count"] == 2
    assert window["completion_tokens"] == window["inter_token"]["count"] + 2 > 4
    assert [stage["name"] for stage in told["stages"]] == ["ingress", "prompt", "engine", "detokenizer", "stats"]
    prompt = next(stage for stage in told["stages"] if stage["name"] == "prompt")
    assert prompt["received"] == 3
    assert exposed.problems == []
    assert exposed.value("sglang:num_requests_total", is_streaming="True") == 1
    assert exposed.value("vllm:num_requests_running") == exposed.value("vllm:num_requests_waiting") == 0
    assert not any("token_usage" in name or "cache_usage" in name for name in exposed.types)


async def test_several_prompt_stages_are_one_line_that_adds_them_up() -> None:
    async with rendering(None, "--tokenizer-workers", "3") as run:
        for _ in range(7):
            await ask(run.port, "/v1/chat/completions/render", CHAT)
        told = await stats_of(run)
    (prompt,) = (stage for stage in told["stages"] if stage["name"] == "prompt")
    assert prompt["received"] == 7
    assert [stage["name"] for stage in told["stages"]] == ["ingress", "prompt", "detokenizer", "stats"]


async def test_metrics_are_the_engine_s_where_its_routes_are_passed_on_and_ours_were_not_asked_for() -> None:
    async with rendering(saying("x"), "--proxy-unhandled-routes") as run:
        assert not run.server.serving.http.requests  # type: ignore[union-attr]
        reply = await get(run, "/metrics")
        assert b"trnrt:" not in reply.body
        assert (await stats_of(run))["role"] == "render"
