"""The renderer end to end: what its engine gets, and what its clients do."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.fake_engine import Exchange, counting
from tests.scripted.server import one_name
from tests.stages.ingress.http import ask
from tests.trnrt.render_kit import MESSAGES, events, rendering, saying

CHAT: dict[str, Any] = {"messages": MESSAGES, "rid": "r1"}
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": TOOL}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


async def test_a_chat_is_answered_from_the_engines_tokens() -> None:
    async with rendering(saying("Good day")) as run:
        reply = await ask(run.port, "/v1/chat/completions", CHAT)
    choice = reply.json["choices"][0]
    assert (reply.status, choice["message"]["content"], choice["finish_reason"]) == (200, "Good day", "stop")
    assert run.engine.rids == ["r1-0"]


async def test_a_streamed_chat_tells_its_role_with_the_first_tokens() -> None:
    async with rendering(saying("Good day")) as run:
        reply = await ask(run.port, "/v1/chat/completions", {**CHAT, "stream": True})
    *chunks, done = events(reply.body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert ("".join(delta.get("content") or "" for delta in deltas), done) == ("Good day", None)


# --- what the engine gets ---------------------------------------------------------------------------------------------

BODIES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("/v1/chat/completions", {"messages": MESSAGES, **more})
        for more in (
            {},
            {"rid": "mine"},
            {"stream": True, "stream_options": {"include_usage": True}},
            {"temperature": 0, "seed": 7, "max_tokens": 5},
            {"temperature": 0.4, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "max_completion_tokens": 9, "min_tokens": 2},
            {"stop": ["END", "ND"], "stop_token_ids": [3], "stop_regex": ["a+"], "no_stop_trim": True},
            {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.5, "logit_bias": {"5": 2}},
            {"logprobs": True, "top_logprobs": 3},
            {"prompt_logprobs": 1},
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"regex": "[a-z]+"},
            {"ebnf": 'root ::= "a"'},
            {"tools": TOOLS},
            {"tools": TOOLS, "tool_choice": "required"},
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            {"tools": [{"type": "function", "function": {**TOOL, "strict": True}}], "parallel_tool_calls": False},
            {"tools": TOOLS, "tool_choice": "none"},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "high"},
            {"cache_salt": "s", "extra_key": "k", "priority": 3, "routing_key": "r"},
            {"bootstrap_host": "h", "bootstrap_port": 5, "bootstrap_room": 7, "data_parallel_rank": 2},
            {"custom_params": {"a": 1}, "thinking_token_budget": 12},
            {"messages": [*MESSAGES, {"role": "assistant", "content": "Go"}], "continue_final_message": True},
            {"ignore_eos": True, "skip_special_tokens": False},
        )
    ),
    *(
        ("/v1/completions", body)
        for body in (
            {"prompt": "Once"},
            {"prompt": ["Once", "Twice"], "n": 2},
            {"prompt": [5, 6, 7], "rid": "mine"},
            {"prompt": [[5, 6], [7]], "rid": ["a", "b"], "n": 2, "cache_salt": ["x", ""], "bootstrap_room": 4},
            {"prompt": "Once", "echo": True, "logprobs": 2, "max_tokens": 1},
            {"prompt": "Once", "response_format": {"type": "json_object"}, "stream": True},
        )
    ),
    *(
        ("/v1/responses", {"input": "Hello", **more})
        for more in ({}, {"max_output_tokens": 20, "instructions": "Be brief", "store": False}, {"stream": True})
    ),
    *(
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9, **more})
        for more in (
            {},
            {"system": "Be brief", "stop_sequences": ["END"]},
            {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000, "stream": True},
        )
    ),
]


async def test_what_is_rendered_is_what_the_engine_gets_to_the_last_byte() -> None:
    scored = [[-1.0, 1, None]] * 400
    parsers = ("--tool-call-parser", "glm47", "--reasoning-parser", "glm45")

    async def script(exchange: Exchange) -> None:
        count = len(exchange.body["input_ids"])
        tops = [[[-1.0, 1, None]]] * 400
        meta = {
            "output_token_logprobs": scored[:1],
            "output_top_logprobs": tops[:1],
            "input_token_logprobs": [[None, 1, None], *scored[: count - 1]],
            "input_top_logprobs": [None, *tops[: count - 1]],
        }
        await exchange.tokens([40], 1, {"type": "length"}, **(meta if exchange.body["return_logprob"] else {}))
        await exchange.done()

    async with rendering(script, *parsers) as run:
        for path, body in BODIES:
            del run.engine.exchanges[:]
            with one_name():
                reply = await ask(run.port, path, body)
                assert reply.status == 200, (path, body, reply.body)
                shown = await ask(run.port, f"{path}/render", body)
            assert shown.status == 200, (path, body, shown.body)
            rendered = shown.json if isinstance(shown.json, list) else [shown.json]
            assert [each["stream"] for each in rendered] == [body.get("stream", False)] * len(rendered)
            submitted = {exchange.body["rid"]: exchange.body for exchange in run.engine.exchanges}
            expected = {each["rid"]: {**each, "stream": True, "return_text_in_logprobs": False} for each in rendered}
            assert submitted == expected, (path, body)
            assert all(list(submitted[rid]) == list(expected[rid]) for rid in expected)


async def rendered(path: str, body: dict[str, Any], *flags: str) -> Any:
    async with rendering(None, *flags) as run:
        reply = await ask(run.port, f"{path}/render", body)
    assert reply.status == 200, reply.body
    return reply.json


async def test_a_chat_renders_as_one_object_and_completions_as_a_list_prompt_by_prompt() -> None:
    async with rendering() as run:
        assert (await ask(run.port, "/v1/chat/completions/render", {**CHAT, "n": 2})).status == 400
        many = (await ask(run.port, "/v1/completions/render", {"prompt": ["a", "b"], "n": 2, "rid": "r"})).json
    assert [one["rid"] for one in many] == ["r-0", "r-1", "r-2", "r-3"]
    assert many[0]["input_ids"] == many[1]["input_ids"] != many[2]["input_ids"] == many[3]["input_ids"]
    assert not any("text" in one for one in many)
    assert {one["sampling_params"]["max_new_tokens"] for one in many} == {16}


@pytest.mark.parametrize(
    ("rid", "n", "rids"),
    [
        ("r", 1, ["r-0", "r-1"]),
        (["a", "b"], 1, ["a", "b"]),
        (["a", "b"], 2, ["a-0", "a-1", "b-0", "b-1"]),
    ],
)
async def test_a_list_of_ids_names_each_prompt(rid: Any, n: int, rids: list[str]) -> None:
    shown = await rendered("/v1/completions", {"prompt": ["x", "y"], "n": n, "rid": rid})
    assert [one["rid"] for one in shown] == rids


async def test_fields_of_the_engine_pass_one_for_each_prompt() -> None:
    body = {
        "prompt": ["x", "y"],
        "cache_salt": ["s", ""],
        "extra_key": "k",
        "bootstrap_host": "h",
        "bootstrap_port": [1, None],
        "bootstrap_room": 7,
        "data_parallel_rank": 3,
        "custom_params": {"a": 1},
    }
    first, second = await rendered("/v1/completions", body)
    names = ("cache_salt", "extra_key", "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank")
    assert [first.get(name) for name in names] == ["s", "k", "h", 1, 7, 3]
    assert [second.get(name) for name in names] == [None, "k", "h", None, 8, 3]
    assert "cache_salt" not in second
    assert first["sampling_params"]["custom_params"] == {"a": 1}


async def test_all_25_parameters_of_sampling_are_always_there() -> None:
    shown = (await rendered("/v1/chat/completions", CHAT))["sampling_params"]
    assert len(shown) == 25
    assert (shown["n"], shown["max_new_tokens"], shown["top_k"], shown["stop_token_ids"]) == (1, None, 1 << 30, None)


async def test_a_stop_of_ids_is_stop_token_ids() -> None:
    for more, ids_of in (({}, [5, 7]), ({"stop_token_ids": [9]}, [9])):
        shown = (await rendered("/v1/chat/completions", {**CHAT, "stop": [7, 5], **more}))["sampling_params"]
        assert (shown["stop"], shown["stop_token_ids"]) == (None, ids_of)
    async with rendering() as run:
        assert (await ask(run.port, "/v1/chat/completions/render", {**CHAT, "stop": [5, "a"]})).status == 400


async def test_more_prompts_than_the_queue_holds_wait_and_all_are_answered() -> None:
    async with rendering(None, "--queue-capacity", "1", "--tokenizer-workers", "2") as run:
        told: list[int] = []

        async def one(number: int) -> None:
            reply = await ask(run.port, "/tokenize", {"prompt": "word " * number})
            assert reply.status == 200
            told.append(reply.json["count"])

        async with trio.open_nursery() as nursery:
            for number in range(1, 41):
                nursery.start_soon(one, number)
    assert len(told) == 40
    assert len(set(told)) == 40


async def test_greedy_is_written_as_one_token_of_choice() -> None:
    shown = (await rendered("/v1/chat/completions", {**CHAT, "temperature": 0}))["sampling_params"]
    assert (shown["temperature"], shown["top_k"]) == (1.0, 1)


async def test_openais_defaults_replace_the_models() -> None:
    shown = (await rendered("/v1/chat/completions", CHAT, "--sampling-defaults", "openai"))["sampling_params"]
    assert [shown[name] for name in ("temperature", "top_p", "top_k", "min_p")] == [1.0, 1.0, 1 << 30, 0.0]


async def test_a_required_call_is_told_to_the_engine_in_the_formats_own_words() -> None:
    body = {**CHAT, "tools": TOOLS, "tool_choice": "required"}
    shown = (await rendered("/v1/chat/completions", body, "--tool-call-parser", "hermes"))["sampling_params"]
    assert '"begin": "<tool_call>\\n{\\"name\\": \\"get_weather\\"' in shown["structural_tag"]
    shown = (await rendered("/v1/chat/completions", body, "--tool-call-parser", "pythonic"))["sampling_params"]
    assert shown["structural_tag"] is None
    assert '"minItems": 1' in shown["json_schema"]


async def test_hidden_states_are_rendered_where_they_are_enabled_and_never_answered() -> None:
    body = {**CHAT, "return_hidden_states": True}
    async with rendering(counting(1), "--enable-return-hidden-states") as run:
        shown = await ask(run.port, "/v1/chat/completions/render", body)
        assert (shown.status, shown.json["return_hidden_states"]) == (200, True)
        assert (await ask(run.port, "/v1/chat/completions", body)).status == 400
    async with rendering() as run:
        assert (await ask(run.port, "/v1/chat/completions/render", body)).status == 400


# --- the context ------------------------------------------------------------------------------------------------------


async def test_reserved_tokens_are_nobodys() -> None:
    async with rendering(None, "--context-length", "20", "--num-reserved-tokens", "4") as run:
        for tokens, wanted, status in ((15, 1, 200), (15, 2, 400), (16, 1, 400)):
            body = {"prompt": [5] * tokens, "max_tokens": wanted}
            assert (await ask(run.port, "/v1/completions/render", body)).status == status, (tokens, wanted)


async def test_what_is_too_long_is_cut_where_that_is_wanted() -> None:
    async with rendering(counting(1), "--context-length", "20", "--allow-auto-truncate") as run:

        async def shown(num_tokens: int, **more: Any) -> tuple[int, int]:
            body = {"prompt": list(range(5, 5 + num_tokens)), **more}
            (one,) = (await ask(run.port, "/v1/completions/render", body)).json
            assert one["input_ids"] == body["prompt"][:20]
            return len(one["input_ids"]), one["sampling_params"]["max_new_tokens"]

        assert await shown(30, max_tokens=4) == (20, 0)
        assert await shown(18, max_tokens=4) == (18, 2)
        assert await shown(10, max_tokens=4) == (10, 4)
        body = {"prompt": [5] * 19, "max_tokens": 4, "min_tokens": 2}
        assert (await ask(run.port, "/v1/completions/render", body)).status == 400
        reply = await ask(run.port, "/v1/completions", {"prompt": [5] * 30, "max_tokens": 4})
        assert (reply.status, reply.json["usage"]["prompt_tokens"]) == (200, 20)


# --- failures ---------------------------------------------------------------------------------------------------------


def refusing(status: int, value: object) -> Callable[[Exchange], Any]:
    async def script(exchange: Exchange) -> None:
        await exchange.refuse(status, value)

    return script


async def breaking(exchange: Exchange) -> None:
    """Say two tokens and then that something is wrong."""
    await exchange.tokens([40], 1)
    await exchange.tokens([41], 2)
    await exchange.frame({"error": {"message": "lost the device", "code": 502}})
    await exchange.done()


def told(status: int, message: str) -> dict[str, Any]:
    kind = "InternalServerError" if status >= 500 else "BadRequestError"
    return {"error": {"object": "error", "message": message, "type": kind, "param": None, "code": status}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_engine_that_refuses_is_quoted_with_its_status_or_as_one_error_of_a_stream(path: str) -> None:
    body: dict[str, Any] = CHAT if "chat" in path else {"prompt": "a", "echo": True}
    async with rendering(refusing(429, {"error": {"message": "busy"}})) as run:
        reply = await ask(run.port, path, body)
        assert (reply.status, reply.json) == (429, told(429, "busy"))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        reply = await ask(run.port, path, {**body, **options})
        assert (reply.status, events(reply.body)) == (200, [told(429, "busy"), None])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("with_usage", [False, True])
async def test_an_error_in_a_stream_follows_what_was_said_and_is_followed_by_usage(path: str, with_usage: bool) -> None:
    body: dict[str, Any] = CHAT if "chat" in path else {"prompt": "a"}
    async with rendering(breaking) as run:
        reply = await ask(run.port, path, body)
        assert (reply.status, reply.json) == (502, told(502, "lost the device"))
        options = {"stream": True, "stream_options": {"include_usage": with_usage}}
        reply = await ask(run.port, path, {**body, **options})
    *chunks, done = events(reply.body)
    at = chunks.index(told(502, "lost the device"))
    assert at >= 1
    assert done is None
    after = chunks[at + 1 :]
    assert [(chunk["choices"], chunk["usage"]["completion_tokens"]) for chunk in after] == ([([], 2)] * with_usage)


async def test_a_stream_tells_its_usage_unasked_where_that_is_the_default() -> None:
    async with rendering(saying("Good"), "--stream-response-default-include-usage") as run:
        for options, is_told in (({}, True), ({"stream_options": {"include_usage": False}}, False)):
            reply = await ask(run.port, "/v1/chat/completions", {**CHAT, "stream": True, **options})
            assert bool(events(reply.body)[-2].get("usage")) is is_told


async def test_an_engine_that_is_not_there_is_a_503() -> None:
    async with rendering(counting(1)) as run:
        run.engine.is_up = False
        reply = await ask(run.port, "/v1/chat/completions", CHAT)
    assert reply.status == 503
    assert "engine request failed" in reply.json["error"]["message"]


# --- the process ------------------------------------------------------------------------------------------------------


def test_torch_is_never_imported() -> None:
    code = (
        "import sys, trio, trnrt.__main__\n"
        "from stages.stats.stage import open_stats\n"
        "from trnrt.render import RenderServer, model_of, serve_render\n"
        "from trnrt.render_config import load_render_config\n"
        "config = load_render_config(['trnrt/models/demo_files', '--port', '0', '--engine-url', 'http://127.0.0.1:9',"
        " '--tool-call-parser', 'glm47', '--reasoning-parser', 'glm45'], {})\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        await nursery.start(serve_render, RenderServer(config, model_of(config), open_stats(), 0))\n"
        "        nursery.cancel_scope.cancel()\n"
        "trio.run(main)\n"
        "print(sorted({'torch', 'safetensors', 'transformers', 'xgrammar', 'llguidance'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (run.stdout, run.returncode) == ("[]\n", 0), run.stderr


@pytest.mark.parametrize(
    "last",
    [
        {"role": "user", "content": "Go on"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    ],
)
async def test_what_cannot_be_continued_is_answered_with_a_new_message(last: dict[str, Any]) -> None:
    plain = {"messages": [*MESSAGES, last], "rid": "r"}
    async with rendering(saying("Good day")) as run:
        for path in ("/v1/chat/completions/render", "/tokenize"):
            replies = [
                await ask(run.port, path, {**plain, "continue_final_message": wanted}) for wanted in (False, True)
            ]
            assert [reply.status for reply in replies] == [200, 200], replies[1].body
            assert replies[0].json == replies[1].json


async def test_completions_are_drawn_with_the_models_defaults_too() -> None:
    given = ("--resolved-sampling-params", '{"temperature": 0.3, "top_k": 7, "repetition_penalty": 1.1}')
    sizes = ("--context-length", "4096", "--vocab-size", "2560")
    (body,) = await rendered("/v1/completions", {"prompt": "Once"}, *given, *sizes)
    sampling = body["sampling_params"]
    assert (sampling["temperature"], sampling["top_k"], sampling["repetition_penalty"]) == (0.3, 7, 1.1)
    (asked,) = await rendered("/v1/completions", {"prompt": "Once", "temperature": 0.9}, *given, *sizes)
    assert asked["sampling_params"]["temperature"] == 0.9


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions/render",
            {"messages": MESSAGES, "logprobs": True, "top_logprobs": 255},
        ),
        ("/v1/completions/render", {"prompt": "Once", "logprobs": 255, "n": 255, "temperature": 100.5}),
        ("/v1/completions/render", {"prompt": ["a"] * 64, "n": 64}),
    ],
)
async def test_numbers_are_as_large_as_the_contract_lets_them_be(path: str, body: dict[str, Any]) -> None:
    async with rendering(None) as run:
        assert (await ask(run.port, path, body)).status == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"prompt": "Once", "n": 256}, "n must be between 1 and 255, got 256."),
        ({"prompt": "Once", "logprobs": 256}, "logprobs must be between 0 and 255, got 256."),
        ({"prompt": ["a"] * 65, "n": 64}, "65 prompts with n of 64 are more than 4096 choices."),
        ({"prompt": "Once", "temperature": -1}, "temperature must be a number not below 0, got -1."),
    ],
)
async def test_larger_numbers_are_refused_by_name(body: dict[str, Any], told: str) -> None:
    async with rendering(None) as run:
        reply = await ask(run.port, "/v1/completions/render", body)
    assert (reply.status, reply.json["error"]["message"]) == (400, told)


async def test_each_chunk_tells_its_own_choices_usage_where_that_is_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": [[5], [5, 6, 7]], "n": 2, "stream": True, "stream_options": options}
    async with rendering(counting(3)) as run:
        *chunks, last, done = events((await ask(run.port, "/v1/completions", body)).body)
    assert done is None
    prompts = [1, 1, 3, 3]
    for index, count in enumerate(prompts):
        own = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert {usage["prompt_tokens"] for usage in own} == {count}
        assert own[-1]["completion_tokens"] == 3
        assert all(usage["completion_tokens"] <= 3 for usage in own)
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (4, 12)
