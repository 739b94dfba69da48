"""What servers of these APIs have been reported to get wrong, each as the truth it breaks, in every API that has it."""

import json
from copy import deepcopy
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.messages import Finish, Submit
from tests.scripted.apis import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER, Api
from tests.scripted.asking import LENGTH, STOP, answers, calls_of, end_of, first, reasoning_of, text_of
from tests.scripted.script import DECODING, END, END_OF_TEXT, SCHEMA, Script, call, encoded, script
from tests.scripted.server import by_choice, scripted_server
from tests.stages.ingress.dialects.anthropic_kit import events_of
from tests.stages.ingress.dialects.responses_kit import numbered, read

over_every_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
WITH_TOOLS = [api for api in APIS if api.tools]
over_tools = pytest.mark.parametrize("api", WITH_TOOLS, ids=lambda api: api.name)
over_reasoning = pytest.mark.parametrize("api", [api for api in APIS if api.is_parsed], ids=lambda api: api.name)
in_both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
CUTS = [[1], [2], [7], [1000]]
AWKWARD = "🧑‍🚀𠮷é한글"
# The ids of single bytes, which make any text without any merged token.
BYTE_IDS = {piece[0]: token_id for token_id, piece in enumerate(DECODING.vocabulary.pieces) if len(piece) == 1}


def bytewise(text: str) -> tuple[int, ...]:
    """The ids of a text, a token a byte."""
    return tuple(BYTE_IDS[byte] for byte in text.encode())


def both_modes(api: Api, scripts: list[Script], cuts: list[list[int]] = CUTS, **ask: Any) -> list[Any]:
    """The answers to one body, whole and streamed, cut in each way."""
    return answers(api, *((api.ask(stream=stream, **ask), scripts, cut) for stream in (False, True) for cut in cuts))


# --- choices and tools ---


async def test_of_several_streamed_choices_each_is_what_its_seed_alone_gives(autojump_clock: Any) -> None:
    texts = ["hm</think>" + call(s="Paris"), "</think>Both: " + call(s="a") + call(i="5"), "</think>no call"]

    def by_seed(submit: Submit) -> Script:
        return script(texts[submit.seed % 3])

    async with scripted_server(by_seed) as server:
        body = CHAT.ask(stream=True, n=3)
        together = CHAT.answer(await server.post(CHAT.path, {**body, "seed": 1}))["choices"]
        for index in range(3):
            alone = CHAT.answer(await server.post(CHAT.path, {**CHAT.ask(stream=True), "seed": 1 + index}))
            (choice,) = alone["choices"]
            mine = together[index]
            ids = [one.pop("id") for one in mine["message"].get("tool_calls", ())]
            assert all(one.pop("id") for one in choice["message"].get("tool_calls", ()))
            assert {**mine, "index": 0} == choice
            assert len(set(ids)) == len(ids)


@over_tools
def test_streamed_arguments_are_whole_json_of_the_schemas_types_and_equal_the_whole_answers(api: Api) -> None:
    text = "</think>" + call(s="123", i="5", o='{"a":[1,"x\\"y"]}', l="[]") + call(s='Smithh"', i="x")
    for answer in both_modes(api, [script(text)]):
        assert calls_of(answer) == [
            ("f", {"s": "123", "i": 5, "o": {"a": [1, 'x"y']}, "l": []}),
            ("f", {"s": 'Smithh"', "i": "x"}),
        ]


@over_tools
@settings(max_examples=25)
@given(
    arguments=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "s": st.text(st.sampled_from('ab"\\{}\n🧑‍🚀é'), min_size=1, max_size=6),
                "i": st.integers(-(2**70), 2**70),
                "o": st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, "x", None, [True]]), max_size=2),
                "l": st.lists(st.sampled_from([0, "é", {}]), max_size=2),
            },
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_arguments_a_model_writes_are_what_a_client_reads(api: Api, arguments: list[dict[str, Any]]) -> None:
    written = [
        call(**{name: value if name == "s" else json.dumps(value) for name, value in one.items()}) for one in arguments
    ]
    for answer in both_modes(api, [script("</think>" + "".join(written))], [[1], [5]]):
        assert calls_of(answer) == [("f", one) for one in arguments]


@over_tools
def test_every_call_has_a_block_and_an_id_of_its_own(api: Api) -> None:
    for answer in both_modes(api, [script("</think>" + call(s="Paris") + call(s="Rome") + call())]):
        assert calls_of(answer) == [("f", {"s": "Paris"}), ("f", {"s": "Rome"}), ("f", {})]
        assert len(set(call_ids(answer))) == 3


def call_ids(answer: Any) -> list[str]:
    """The ids a client would answer the calls by."""
    choice = first(answer)
    if "output" in choice:
        return [item["call_id"] for item in choice["output"] if "call_id" in item]
    if isinstance(choice.get("content"), list):
        return [block["id"] for block in choice["content"] if block["type"] == "tool_use"]
    return [one["id"] for one in choice["message"]["tool_calls"]]


async def test_messages_streams_one_block_a_call_with_indices_that_rise(autojump_clock: Any) -> None:
    async with scripted_server(by_choice([script("</think>" + call(s="Paris") + call(s="Rome"))])) as server:
        events = events_of((await server.post(MESSAGES.path, MESSAGES.ask(stream=True))).body)
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [(start["index"], start["content_block"]["type"]) for start in starts] == [(0, "tool_use"), (1, "tool_use")]


# --- ends ---


@pytest.mark.parametrize(
    ("api", "n"),
    [pytest.param(api, n, id=f"{api.name}-{n}") for api in APIS for n in ((1, 2) if api.several else (1,))],
)
async def test_two_hundred_streams_cut_anywhere_end_once_each_and_properly(
    api: Api, n: int, autojump_clock: Any
) -> None:
    texts = ["hm</think>Hi " + call(s="Pa🧑‍🚀ris", i="5") + call(), "</think>" + call(s="x") + " and more é", "hm"]
    scripts = [script(text + " tail" * 40, Finish("length")) for text in texts]
    async with scripted_server(by_choice([]), model=api.model, gap_s=0.001, prefill_s=0.001) as server:
        for number in range(200):
            server.engine.script_of = by_choice([scripts[(number + choice) % 3] for choice in range(n)])
            server.engine.cuts = [1 + number % 3]
            # The reader demands one end of every choice, and the one terminator last.
            budget = 1 + number % 40
            answer = api.answer(await server.post(api.path, api.ask(stream=True, budget=budget, n=n)))
            assert end_of(answer) == LENGTH.get(api.name, "length")


@over_every_api
@in_both_modes
@pytest.mark.parametrize("after_s", [0.5, 4.5], ids=["before the first token", "in the middle"])
async def test_an_abort_is_told_as_one_and_not_as_an_ordinary_end(
    api: Api, stream: bool, after_s: float, autojump_clock: Any
) -> None:
    async with scripted_server(by_choice([script("hm</think>Hello there, how are you?")]), model=api.model) as server:
        async with trio.open_nursery() as nursery:
            told: list[Any] = []

            async def ask() -> None:
                told.append(api.answer(await server.post(api.path, api.ask(stream=stream))))

            nursery.start_soon(ask)
            await trio.sleep(after_s)
            (submit,) = server.engine.submits
            status = (await server.post("/abort_request", {"rid": submit.key.request_id})).status
        assert status == 200
        assert not server.engine.running
    if api in (MESSAGES, RESPONSES):
        assert told[0].message in ("The request was aborted.", "Aborted")
    else:
        assert end_of(told[0]) == "abort"


# --- stop strings and text ---


@over_reasoning
def test_stop_strings_are_not_looked_for_in_reasoning(api: Api) -> None:
    text = "What is the answer? The answer is four.</think>It is 4, the answer."
    for answer in both_modes(api, [script(text, end=END_OF_TEXT)], stop=["answer"]):
        assert reasoning_of(answer) == "What is the answer? The answer is four."
        assert text_of(answer) == "It is 4, the "


@over_every_api
def test_nothing_of_a_stop_string_is_shown_and_what_was_held_back_for_one_is(api: Api) -> None:
    text = ("</think>" if api.is_parsed else "") + "alpha END beta"
    for stop, shown in (["END"], "alpha "), (["beta!!"], "alpha END beta"), (["ND b", "alpha E!"], "alpha E"):
        for answer in both_modes(api, [script(text, end=END_OF_TEXT)], stop=stop):
            assert text_of(answer) == shown


@over_every_api
@settings(max_examples=25)
@given(
    text=st.text(st.sampled_from("ab🧑‍🚀é"), max_size=14),
    stop=st.text(st.sampled_from("ab🚀é"), min_size=1, max_size=4),
    finish=st.sampled_from([None, Finish("length")]),
)
def test_the_text_ends_where_the_stop_string_first_begins(api: Api, text: str, stop: str, finish: Finish) -> None:
    ids = ((*encoded("</think>"),) if api.is_parsed else ()) + bytewise(text)
    scripts = [Script((*ids, *(() if finish else (END,))), finish)]
    for answer in both_modes(api, scripts, [[1], [3]], stop=[stop]):
        assert text_of(answer) == text.partition(stop)[0]


@over_every_api
def test_no_character_is_broken_though_every_token_is_one_byte(api: Api) -> None:
    think, text = bytewise(AWKWARD * 3), bytewise(AWKWARD * 10)
    ids = (*think, *encoded("</think>"), *text)
    if api.tools:
        opening, closing = encoded("<tool_call>f<arg_key>s</arg_key><arg_value>"), encoded("</arg_value></tool_call>")
        ids += (*opening, *text, *closing)
    for answer in both_modes(api, [Script((*ids, END))]):
        assert "\ufffd" not in str(answer)
        assert text_of(answer).count(AWKWARD) == 10 + 3 * (not api.is_parsed)
        if api.is_parsed:
            assert reasoning_of(answer) == AWKWARD * 3
        if api.tools:
            assert calls_of(answer) == [("f", {"s": AWKWARD * 10})]


# --- logprobs ---

LOGPROBS = {
    "chat": {"logprobs": True, "top_logprobs": 20},
    "completions": {"logprobs": 20},
    "generate": {"return_logprob": True, "top_logprobs_num": 20},
    "generate-incremental": {"return_logprob": True, "top_logprobs_num": 20},
    "ollama-chat": {"logprobs": True, "top_logprobs": 20},
    "ollama-generate": {"logprobs": True, "top_logprobs": 20},
}


@pytest.mark.parametrize("api", [api for api in APIS if api.name in LOGPROBS], ids=lambda api: api.name)
@in_both_modes
def test_a_logprob_of_minus_infinity_is_told_by_a_number(api: Api, stream: bool) -> None:
    masked = Script((8, 16, 17, END))  # the first two of these are masked, as are half of all alternatives
    (answer,) = answers(api, ({**api.ask(stream=stream), **LOGPROBS[api.name]}, [masked], [1]))
    found = numbers(first(answer))
    assert min(found) == -9999.0
    assert found.count(-9999.0) > 4 * 9


def numbers(value: Any) -> list[float]:
    """Every float in a value."""
    if isinstance(value, float):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for one in inner for number in numbers(one)]


# --- Responses ---

FUNCTION = {"type": "function", "name": "f", "parameters": SCHEMA}
PATCH = {"type": "custom", "name": "patch"}
MIXED = "hm</think>Now: " + call(s="1") + call("patch", input='+a "b" \\ 🧑‍🚀\n') + "done"


async def events_of_response(text: str, finish: Finish | None = None, **body: Any) -> list[Any]:
    async with scripted_server(by_choice([script(text, finish)])) as server:
        sent = {"input": "x", "tools": [FUNCTION, PATCH], "stream": True, **body}
        return numbered((await server.post(RESPONSES.path, sent)).body)


async def test_the_ids_of_a_streams_events_are_those_of_the_final_response(autojump_clock: Any) -> None:
    events = await events_of_response(MIXED)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    final = read(events)
    assert [item["type"] for item in done] == [
        "reasoning", "message", "function_call", "custom_tool_call", "message",
    ]  # fmt: skip
    assert done == final["output"]
    assert len({item["id"] for item in done}) == len(done)
    assert done[3]["input"] == '+a "b" \\ 🧑‍🚀\n'
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.done" in kinds
    assert "response.custom_tool_call_input.done" in kinds
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}


@pytest.mark.parametrize("finish", [None, Finish("length"), Finish("abort"), Finish("error")], ids=str)
async def test_every_event_has_its_number_and_its_type_in_its_data(finish: Finish | None, autojump_clock: Any) -> None:
    # `numbered` demands 0, 1, 2, ... and the type of the line.
    assert len(await events_of_response(MIXED, finish)) > 10


# --- Messages ---


@in_both_modes
@pytest.mark.parametrize("cached_tokens", [0, 7])
async def test_a_messages_input_tokens_are_those_count_tokens_counts(
    stream: bool, cached_tokens: int, autojump_clock: Any
) -> None:
    body = {**MESSAGES.ask(stream=stream), "system": "You are brief."}
    async with scripted_server(by_choice([script("</think>Hi")]), cached_tokens=cached_tokens) as server:
        counted = (await server.post("/v1/messages/count_tokens", body)).json["input_tokens"]
        exchange = await server.post(MESSAGES.path, body)
    usages = [MESSAGES.answer(exchange)["usage"]]
    if stream:
        usages.append(events_of(exchange.body)[0]["message"]["usage"])
    for usage in usages:
        assert usage["cache_read_input_tokens"] == cached_tokens
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted > 10


def test_a_stop_sequence_that_matched_is_named() -> None:
    text = "</think>1 2 3 4 5 6"
    for answer in both_modes(MESSAGES, [script(text, end=END_OF_TEXT)], stop=["5"]):
        assert (answer["stop_reason"], answer["stop_sequence"], text_of(answer)) == ("stop_sequence", "5", "1 2 3 4 ")
    for answer in both_modes(MESSAGES, [script(text, end=END_OF_TEXT)], stop=["7"]):
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.name)
def test_what_matched_is_named_by_both_of_its_names(api: Api) -> None:
    for answer in both_modes(api, [script("</think>1 2 3 4 5 6", end=END_OF_TEXT)], stop=["5", "9"]):
        assert (first(answer)["stop_reason"], first(answer)["matched_stop"]) == ("5", "5")


CACHED = {"cache_control": {"type": "ephemeral"}}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=9; cch=0a1b2;"}
BRIEF = {"type": "text", "text": "You are brief.", **CACHED}
CLAUDE_CODE: dict[str, Any] = {
    "model": "glm-5.3-flash-demo",
    "max_tokens": 7000,
    "temperature": 1,
    "stream": True,
    "system": [BILLING, BRIEF],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look.", **CACHED}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "0a1b"},
                {"type": "tool_use", "id": "toolu_1", "name": "mcp__files__look", "input": {"at": 1}, **CACHED},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": False,
                    "content": [
                        {"type": "text", "text": "a file"},
                        {"type": "tool_reference", "tool_name": "mcp__files__look"},
                    ],
                    **CACHED,
                }
            ],
        },
        {"role": "system", "content": "Remember the rules."},
        {"role": "user", "content": "And?"},
    ],
    "tools": [
        {
            "name": "mcp__files__look",
            "description": "look",
            "input_schema": {"type": "object", "properties": {"at": {"type": "integer"}}},
            "defer_loading": True,
            "eager_input_streaming": True,
            "strict": True,
            "allowed_callers": ["direct"],
            "input_examples": [{"at": 1}],
            **CACHED,
        }
    ],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 9}},
    "metadata": {"user_id": "user_1_session_2"},
    "service_tier": "auto",
    "speed": "fast",
    "inference_geo": "eu",
    "container": None,
    "diagnostics": {"previous_message_id": "msg_1"},
    "mcp_servers": [],
    "betas": ["context-management-2025-06-27"],
    "fallbacks": [],
    "compaction": None,
    "user_profile_id": "u",
    "workspace_id": "w",
    "thread": {"id": "t"},
    "billing_policy": "x",
    **CACHED,
}
BETAS = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,advisor-tool-2026-03-01,x-9"


async def test_a_body_with_everything_claude_code_sends_is_answered(autojump_clock: Any) -> None:
    headers = {"anthropic-beta": BETAS, "anthropic-version": "2099-01-01", "x-app": "cli", "x-api-key": "k"}
    async with scripted_server(by_choice([script("hm</think>Hi", end=END_OF_TEXT)])) as server:
        exchange = await server.post("/v1/messages?beta=true", CLAUDE_CODE, headers)
        assert text_of(MESSAGES.answer(exchange)) == "Hi"
        billed = server.engine.submits[0].prompt_ids
        later = {
            **CLAUDE_CODE,
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=ffff;"}, CLAUDE_CODE["system"][1]],
        }
        await server.post("/v1/messages?beta=true", later, headers)
        counted = await server.post("/v1/messages/count_tokens?beta=true", CLAUDE_CODE, headers)
    # A hash that changes with every request would ruin the prefix cache.
    assert server.engine.submits[1].prompt_ids == billed
    assert counted.json == {"input_tokens": len(billed)}


KEYS = st.text(st.sampled_from("abcdefgh_"), min_size=3, max_size=9).map(lambda name: f"zz_{name}")
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.just(0.5), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@over_every_api
@settings(max_examples=25)
@given(data=st.data())
def test_fields_of_releases_to_come_are_ignored_wherever_they_stand(api: Api, data: st.DataObject) -> None:
    body = deepcopy(api.ask(stream=data.draw(st.booleans())))
    body |= {
        name: deepcopy(value)
        for name, value in CLAUDE_CODE.items()
        if api is MESSAGES and name in ("messages", "tools")
    }
    if api in (CHAT, RESPONSES):
        body["input" if api is RESPONSES else "messages"] = [{**USER, "content": [{"type": "text", "text": "x"}]}]
        if api is RESPONSES:
            body["input"][0]["content"][0]["type"] = "input_text"
    # SGLang takes nothing unknown in sampling_params.
    places = [place for place in objects(body) if place[1] != "sampling_params"]
    at, _ = data.draw(st.sampled_from(places))
    at.update(data.draw(st.dictionaries(KEYS, ANYTHING, min_size=1, max_size=2)))
    (answer,) = answers(api, (body, [script("</think>Hi", end=END_OF_TEXT)], [1]))
    assert end_of(answer) == STOP.get(api.name, "stop")


def objects(value: Any, name: str = "") -> list[tuple[dict[str, Any], str]]:
    """Every object in a value, with the name it stands under, but those of a tool's schema or a call's input."""
    if isinstance(value, list):
        return [found for item in value for found in objects(item, name)]
    if not isinstance(value, dict):
        return []
    inner = [found for key, item in value.items() if not is_clients(key, item) for found in objects(item, key)]
    return [(value, name), *inner]


def is_clients(key: str, value: Any) -> bool:
    """Whether an object under that key is the client's own, whatever it holds."""
    return key in ("parameters", "input_schema") or (key == "input" and isinstance(value, dict))
