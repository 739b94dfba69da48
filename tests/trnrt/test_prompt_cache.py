"""--prompt-cache-mb in both roles: the same prompts, and figures where operators look."""

from typing import Any

import pytest
import trio

from stages.errors import ConfigError
from stages.ingress.info import server_info
from tests.stages.ingress.http import ask, connected
from tests.stages.stats.lint import read
from tests.trnrt.render_kit import rendering, saying
from tests.trnrt.test_served_conversation import post, serving
from trnrt.config import load_config
from trnrt.render_config import load_render_config
from trnrt.running import open_prompt_cache
from trnrt.serve import _info

TURN = [{"role": "user", "content": "What is the weather in Paris?"}]
NEXT = [*TURN, {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And tomorrow?"}]


def test_there_is_none_unless_it_is_asked_for() -> None:
    assert open_prompt_cache(load_config([], {})) is None
    cache = open_prompt_cache(load_config(["--prompt-cache-mb", "3"], {}))
    assert cache is not None
    assert (cache.max_bytes, cache.audit_share) == (3 * 2**20, 0.01)


def test_the_environment_names_it_too() -> None:
    environ = {"TRNRT_PROMPT_CACHE_MB": "2", "TRNRT_PROMPT_CACHE_AUDIT": "0.5"}
    for config in (load_config([], environ), load_render_config(["model"], environ)):
        cache = open_prompt_cache(config)
        assert cache is not None
        assert (cache.max_bytes, cache.audit_share) == (2 * 2**20, 0.5)


@pytest.mark.parametrize("flag", [("--prompt-cache-audit", "1.5"), ("--prompt-cache-mb", "9000000000")])
def test_what_is_too_much_is_refused_by_name(flag: tuple[str, str]) -> None:
    for load, rest in ((load_config, []), (load_render_config, ["model"])):
        with pytest.raises(ConfigError, match=f"^{flag[0]}: must be at most"):
            load([*flag, *rest], {})  # type: ignore[operator]


async def rendered(port: int, messages: list[dict[str, str]]) -> Any:
    return (await ask(port, "/v1/chat/completions/render", {"messages": messages})).json


async def test_a_renderer_s_stages_share_one_and_render_as_without() -> None:
    async with rendering(None) as run:
        expected = [(await rendered(run.port, turn))["input_ids"] for turn in (TURN, NEXT)]
    flags = ("--prompt-cache-mb", "1", "--prompt-cache-audit", "0", "--tokenizer-workers", "2", "--enable-metrics")
    async with rendering(saying("x"), *flags) as run:
        for turn, ids in ((TURN, expected[0]), (NEXT, expected[1]), (NEXT, expected[1])):
            assert (await rendered(run.port, turn))["input_ids"] == ids
        async with connected(run.port) as client:
            told = (await client.get("/v1/stats")).json["prompt_cache"]
            exposed = read((await client.get("/metrics")).body.decode())
        counted = run.server.stats.counters.totals
    assert (told["is_on"], told["reason"], told["hits"], told["misses"]) == (True, None, 2, 1)
    assert told["found_tokens"] > len(expected[1])
    assert exposed.value("trnrt:prompt_cache_prompts_total", result="hit") == 2
    assert counted["prompt_cache_hits"] == 2


async def test_without_one_nothing_is_told_of_it() -> None:
    async with rendering(None) as run, connected(run.port) as client:
        assert (await client.get("/v1/stats")).json["prompt_cache"] is None


async def test_serve_counts_a_conversation_s_hits_and_server_info_shows_them() -> None:
    async with serving(prompt_cache_mb=1) as server:
        usage = []
        for turn in (TURN, NEXT):
            answer = await post(server, "/v1/chat/completions", {"messages": turn, "max_tokens": 2})
            usage.append(answer["usage"]["prompt_tokens"])
        told: Any = server_info(_info(server))["prompt_cache"]
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert (told["is_on"], told["hits"], told["misses"], told["audits"], told["mismatches"]) == (True, 1, 1, 1, 0)
    assert told["found_tokens"] + told["encoded_tokens"] == sum(usage)
