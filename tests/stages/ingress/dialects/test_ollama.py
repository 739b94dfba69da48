"""Ollama's dialects: what bodies mean, what is refused, and lines that fold to the whole answer."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import ContextOverflow, Draining, EngineFailure, InvalidRequest, QueueFull, Unavailable
from stages.ingress.dialect import Dialect, Lookup, Parsed
from stages.ingress.dialects import find_dialects, ollama_chat, ollama_generate, ollama_show
from stages.ingress.dialects.ollama_common import API_VERSION
from stages.ingress.respond import Serving, respond
from stages.messages import Ask, Chat, Delta, Ended, Event, Finish, Limits, Sampling, Submit, ToolCallDelta, Usage
from stages.settings import IngressSettings
from tests.fakes import FakeWire, Step, fake_services, silent
from tests.stages.ingress.dialects.kit import (
    EOS,
    MODEL,
    PROMPT,
    Events,
    Script,
    Token,
    call_of,
    one_by_one,
    refusal,
    scripts,
    splits,
    whole,
)
from tests.stages.ingress.http import ask, connected, eventually, running

HELLO: dict[str, Any] = {"model": "glm", "messages": [{"role": "user", "content": "Hello"}]}
ONCE: dict[str, Any] = {"model": "glm", "prompt": "Once"}
TOOL = {"type": "function", "function": {"name": "tool_0", "parameters": {"type": "object", "properties": {}}}}
BODIES = [(ollama_chat.DIALECT, HELLO), (ollama_generate.DIALECT, ONCE)]
on_both = pytest.mark.parametrize(("dialect", "base"), BODIES, ids=["chat", "generate"])
PLAIN = Script((Token(3, b"Hi", -0.5, text="Hi"),), Finish("stop", EOS))


def parsed(dialect: Dialect, body: dict[str, Any], **more: Any) -> Parsed:
    result = dialect.parse(call_of(body, **more), MODEL)
    assert isinstance(result, Parsed)
    return result


def ask_of(dialect: Dialect, body: dict[str, Any], **more: Any) -> Ask:
    (asked,) = parsed(dialect, {**body, **more}).asks
    return asked


def lines_of(dialect: Dialect, body: dict[str, Any], events: Events, **more: Any) -> list[Any]:
    encoder = parsed(dialect, body, **more).encoder
    out = encoder.start()
    for ask_index, event in events:
        out += encoder.event(ask_index, PROMPT, event)
    out += encoder.finish()
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in out)
    return [orjson.loads(line) for line in out]


def folded(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a client joins from the lines, in the form of the whole answer."""
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    joined = dict(lines[-1])
    logprobs = [entry for line in lines for entry in line.get("logprobs", ())]
    if logprobs:
        joined["logprobs"] = logprobs
    said = [line.get("message", line) for line in lines]
    thinking = "".join(one.get("thinking", "") for one in said)
    more: dict[str, Any] = {"thinking": thinking} if thinking else {}
    if "response" in joined:
        return {**joined, "response": "".join(one["response"] for one in said), **more}
    calls = [call for one in said for call in one.get("tool_calls", ())]
    if calls:
        more["tool_calls"] = calls
    joined["message"] = {"role": "assistant", "content": "".join(one["content"] for one in said), **more}
    return joined


# -- requests ---------------------------------------------------------------------------------------------------------


@on_both
def test_a_bare_request_streams_with_the_models_own_sampling_to_the_end_of_the_context(
    dialect: Dialect, base: dict[str, Any]
) -> None:
    asked = ask_of(dialect, base)
    assert asked.sampling == MODEL.default_sampling
    assert asked.limits == Limits(may_shrink=True)
    assert (asked.stream, asked.logprobs, asked.num_choices) == (True, False, 1)
    assert asked.form.parse_reasoning
    assert not asked.form.parse_tools
    assert not ask_of(dialect, base, stream=False).stream


@on_both
def test_options_become_sampling_and_limits(dialect: Dialect, base: dict[str, Any]) -> None:
    options = {
        "temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 7, "num_predict": 9, "stop": ["END", "\n"],
        "num_ctx": 8192, "num_gpu": 1, "num_keep": 4, "repeat_last_n": 64, "mirostat_tau": 5.0, "repeat_penalty": 1.0,
        "presence_penalty": 0, "frequency_penalty": 0.0, "typical_p": 1, "mirostat": 0, "surprise": {"a": 1},
    }  # fmt: skip
    asked = ask_of(dialect, base, options=options, logprobs=True, top_logprobs=3, keep_alive="5m")
    assert asked.sampling == Sampling(temperature=0.0, top_k=5, top_p=0.5, min_p=0.1, seed=7)
    assert asked.limits == Limits(9, stop=("END", "\n"), may_shrink=True)
    assert (asked.logprobs, asked.num_top_logprobs) == (True, 3)
    assert ask_of(dialect, base, options={"stop": "END"}).limits.stop == ("END",)


@on_both
def test_no_limit_no_seed_and_no_top_k_have_their_own_numbers(dialect: Dialect, base: dict[str, Any]) -> None:
    for num_predict in (-2, -1, 0):
        assert ask_of(dialect, base, options={"num_predict": num_predict}).limits.max_new_tokens is None
    assert ask_of(dialect, base, options={"seed": -1}).sampling.seed is None
    assert ask_of(dialect, base, options={"seed": 0}).sampling.seed == 0
    assert ask_of(dialect, base, options={"top_k": 0}).sampling.top_k == 0
    assert ask_of(dialect, base, options={"top_k": -1}).sampling.top_k == 0


@on_both
def test_nulls_are_absent_fields(dialect: Dialect, base: dict[str, Any]) -> None:
    names = [
        "stream", "think", "options", "format", "keep_alive", "logprobs", "top_logprobs", "template", "images",
        "context", "suffix", "system", "raw", "tools",
    ]  # fmt: skip
    assert ask_of(dialect, base, **dict.fromkeys(names)) == ask_of(dialect, base)
    options = dict.fromkeys(["temperature", "seed", "stop", "num_predict", "repeat_penalty"])
    assert ask_of(dialect, base, options=options) == ask_of(dialect, base)


@on_both
@pytest.mark.parametrize(
    ("think", "switches"),
    [
        (None, {}),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("low", {"enable_thinking": True, "reasoning_effort": "low"}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_think_becomes_the_templates_switches(
    dialect: Dialect, base: dict[str, Any], think: Any, switches: dict[str, Any]
) -> None:
    prompt = ask_of(dialect, base, think=think).prompt
    assert isinstance(prompt, Chat)
    assert prompt.template == switches


def test_messages_become_neutral() -> None:
    call = {"function": {"name": "f", "arguments": {"a": [1, "é"]}}}
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi", "images": []},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call, {"id": "c", "function": {"name": "g"}}]},
        {"role": "tool", "content": "18C", "tool_name": "f"},
        {"role": "tool", "content": "19C", "tool_call_id": "c"},
        {"role": "assistant", "content": "So", "tool_calls": []},
    ]
    prompt = ask_of(ollama_chat.DIALECT, {"messages": messages, "tools": [TOOL]}).prompt
    assert isinstance(prompt, Chat)
    assert prompt.messages == (
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "call_0", "name": "f", "arguments": {"a": [1, "é"]}},
                {"id": "c", "name": "g", "arguments": {}},
            ],
        },
        {"role": "tool", "content": "18C"},
        {"role": "tool", "content": "19C", "tool_call_id": "c"},
        {"role": "assistant", "content": "So"},
    )
    assert [tool.name for tool in prompt.tools] == ["tool_0"]


def test_generate_is_a_chat_of_system_and_prompt_or_the_raw_text() -> None:
    chat = ask_of(ollama_generate.DIALECT, ONCE, system="Be brief").prompt
    assert isinstance(chat, Chat)
    assert chat.messages == ({"role": "system", "content": "Be brief"}, {"role": "user", "content": "Once"})
    raw = ask_of(ollama_generate.DIALECT, ONCE, raw=True)
    assert raw.prompt == "Once"
    assert not raw.form.parse_reasoning


@on_both
@pytest.mark.parametrize("name", ["glm", "glm:latest", "/models/glm", "", None])
def test_the_model_has_its_name_with_or_without_the_tag(dialect: Dialect, base: dict[str, Any], name: Any) -> None:
    (*_, last) = lines_of(dialect, {**base, "model": name}, one_by_one([(0, 0, PLAIN)]))
    assert last["model"] == (name or "glm:latest")


@on_both
def test_another_model_is_a_404_in_ollamas_words(dialect: Dialect, base: dict[str, Any]) -> None:
    error = refusal(dialect, {**base, "model": "llama3:8b"})
    assert (error.status, dialect.error(error, 404, "r")) == (404, {"error": "model 'llama3:8b' not found"})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"format": "json"}, "format"),
    ({"format": {"type": "object"}}, "format"),
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"suffix": "x"}, "suffix"),
    ({"images": ["aGk="]}, "images"),
    ({"context": [1, 2]}, "context"),
    ({"think": "hardly"}, "think"),
    ({"think": 1}, "think"),
    ({"stream": "yes"}, "stream"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"options": []}, "options"),
    ({"options": {"temperature": -1}}, "options.temperature"),
    ({"options": {"temperature": "0.7"}}, "options.temperature"),
    ({"options": {"top_p": 0}}, "options.top_p"),
    ({"options": {"min_p": 1.5}}, "options.min_p"),
    ({"options": {"top_k": 1.5}}, "options.top_k"),
    ({"options": {"stop": [""]}}, "options.stop"),
    ({"options": {"stop": ["x"] * 33}}, "options.stop"),
    ({"options": {"stop": [1]}}, "options.stop.0"),
    ({"options": {"repeat_penalty": 1.1}}, "options.repeat_penalty"),
    ({"options": {"presence_penalty": 0.5}}, "options.presence_penalty"),
    ({"options": {"frequency_penalty": 0.5}}, "options.frequency_penalty"),
    ({"options": {"mirostat": 1}}, "options.mirostat"),
    ({"options": {"typical_p": 0.7}}, "options.typical_p"),
    ({"options": {"tfs_z": 0.7}}, "options.tfs_z"),
]


@on_both
@pytest.mark.parametrize(("more", "param"), REFUSED)
def test_what_is_wrong_or_not_served_is_refused_by_name(
    dialect: Dialect, base: dict[str, Any], more: dict[str, Any], param: str
) -> None:
    error = refusal(dialect, {**base, **more})
    assert (error.status, error.param) == (400, param)
    assert param.split(".")[0] in dialect.error(error, 400, "r")["error"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("x", "messages.0"),
        ({"content": "x"}, "messages.0.role"),
        ({"role": "developer", "content": "x"}, "messages.0.role"),
        ({"role": "user", "content": ["x"]}, "messages.0.content"),
        ({"role": "user", "content": "x", "images": ["aGk="]}, "messages.0.images"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
         "messages.0.tool_calls.0.function.arguments"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages.0.tool_calls.0.function"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named_by_its_path(message: Any, param: str) -> None:
    assert refusal(ollama_chat.DIALECT, {"messages": [message]}).param == param


def test_a_server_without_parsers_says_what_the_model_does_not_support() -> None:
    model = evolve(MODEL, reasoning_parser=None, tool_call_parser=None)
    assert refusal(ollama_chat.DIALECT, {**HELLO, "think": True}, model).message == '"glm" does not support thinking'
    assert refusal(ollama_chat.DIALECT, {**HELLO, "tools": [TOOL]}, model).message == '"glm" does not support tools'


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (ollama_chat.DIALECT, {"model": "glm"}),
        (ollama_chat.DIALECT, {"model": "glm", "messages": [], "keep_alive": 0}),
        (ollama_generate.DIALECT, {"model": "glm"}),
        (ollama_generate.DIALECT, {"model": "glm", "prompt": "", "keep_alive": -1}),
    ],
)
def test_a_call_that_only_loads_the_model_is_answered_without_generating(dialect: Dialect, body: Any) -> None:
    lookup = dialect.parse(call_of(body), MODEL)
    assert isinstance(lookup, Lookup)
    answer: Any = lookup.body([])
    assert (lookup.works, answer["done"], answer["done_reason"], answer["model"]) == ((), True, "load", "glm")


# -- answers ----------------------------------------------------------------------------------------------------------


def times() -> Any:
    """A clock of 0.0, 0.5, 1.0, ... seconds, one tick a look."""
    instants = iter(range(10_000))
    return lambda: next(instants) / 2


@on_both
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_lines_fold_to_the_whole_answer_however_the_events_come(
    dialect: Dialect, base: dict[str, Any], data: st.DataObject
) -> None:
    body = {**base, "logprobs": True, "top_logprobs": 2}
    script = data.draw(scripts(chat=True))
    events = data.draw(splits([(0, 0, script)], logprobs=True))
    answer = whole(dialect, body, events)
    assert folded(lines_of(dialect, body, events)) == answer
    assert whole(dialect, body, one_by_one([(0, 0, script)], logprobs=True)) == answer


def test_an_answer_has_thinking_text_calls_reason_and_counts() -> None:
    pieces = (
        ToolCallDelta(0, "f"),
        ToolCallDelta(0, None, '{"n": 123456789012345678901, '),
        ToolCallDelta(0, None, '"x": 5.10}'),
    )
    script = Script(
        (
            Token(2, b"hm", -1, reasoning="hm"),
            Token(3, b"Hi", -1, text="Hi"),
            *(Token(4, b"", -1, tool_calls=(piece,)) for piece in pieces),
            Token(5, b"", -1, tool_calls=(ToolCallDelta(1, "g"), ToolCallDelta(1, None, "{}"))),
        ),
        Finish("stop", EOS),
    )
    encoder = parsed(ollama_chat.DIALECT, {**HELLO, "tools": [TOOL]}).encoder
    lines = [line for _, event in one_by_one([(0, 0, script)]) for line in encoder.event(0, PROMPT, event)]
    assert b'"arguments":{"n": 123456789012345678901, "x": 5.10}' in lines[2]
    messages = [orjson.loads(line.replace(b"123456789012345678901", b"1"))["message"] for line in lines]
    assert [(message.get("thinking"), message["content"]) for message in messages] == [
        ("hm", ""), (None, "Hi"), (None, ""), (None, ""), (None, ""),
    ]  # fmt: skip
    assert [[call["function"]["name"] for call in message.get("tool_calls", ())] for message in messages] == [
        [], [], ["f"], ["g"], [],
    ]  # fmt: skip
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    last = orjson.loads(lines[-1])
    assert (last["done"], last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == (True, "stop", 3, 6)


def test_a_call_that_was_cut_off_is_left_out_and_the_reason_says_why() -> None:
    script = Script((Token(4, b"", -1, tool_calls=(ToolCallDelta(0, "f", '{"a"'),)),), Finish("length"))
    for answer in (
        whole(ollama_chat.DIALECT, HELLO, one_by_one([(0, 0, script)])),
        folded(lines_of(ollama_chat.DIALECT, HELLO, one_by_one([(0, 0, script)]))),
    ):
        assert (answer["message"], answer["done_reason"]) == ({"role": "assistant", "content": ""}, "length")


@on_both
def test_durations_are_nanoseconds_that_add_up(dialect: Dialect, base: dict[str, Any]) -> None:
    script = Script(PLAIN.tokens * 4, PLAIN.finish)
    (*_, last) = lines_of(dialect, base, one_by_one([(0, 0, script)]), elapsed_s=times())
    parts = [last[name] for name in ("load_duration", "prompt_eval_duration", "eval_duration")]
    assert last["total_duration"] == sum(parts)
    assert all(isinstance(part, int) for part in parts)
    assert last["total_duration"] % 500_000_000 == 0
    assert parts[1] == 0
    assert parts[2] > 0


@on_both
def test_instants_are_text_in_utc(dialect: Dialect, base: dict[str, Any]) -> None:
    lines = lines_of(dialect, base, one_by_one([(0, 0, PLAIN)]), elapsed_s=lambda: 1.25)
    assert {line["created_at"] for line in lines} == {"2023-11-14T22:13:21.250000Z"}


@on_both
def test_a_failure_in_a_stream_is_one_line_that_keeps_secrets(dialect: Dialect, base: dict[str, Any]) -> None:
    encoder = parsed(dialect, base).encoder
    assert encoder.failed(Draining()) == [b'{"error":"The server is shutting down."}\n']
    assert encoder.failed(EngineFailure("/secret")) == [b'{"error":"Internal server error"}\n']


@on_both
@pytest.mark.parametrize(
    ("finish", "error"),
    [
        (Finish("error", message="x"), EngineFailure),
        (Finish("abort", message="x", status=503), Unavailable),
        (Finish("abort", message="x", status=400), InvalidRequest),
    ],
)
def test_an_end_that_is_a_refusal_fails_the_call(
    dialect: Dialect, base: dict[str, Any], finish: Finish, error: type[Exception]
) -> None:
    ended = Ended(0, finish, Usage(3, 0))
    with pytest.raises(error):
        parsed(dialect, base).encoder.event(0, PROMPT, ended)
    with pytest.raises(error):
        whole(dialect, base, [(0, ended)])


def test_overflow_and_a_full_queue_are_one_string_under_error() -> None:
    overflow = ContextOverflow("too long", prompt_tokens=9, requested_tokens=None, context_tokens=8)
    assert ollama_chat.DIALECT.error(overflow, 400, "r") == {"error": "too long"}
    assert ollama_chat.DIALECT.error(QueueFull(), 503, "r") == {"error": "The request queue is full."}


# -- over the wire ----------------------------------------------------------------------------------------------------


def thinks_and_speaks(submit: Submit) -> Iterable[Step]:
    choice, prompt = submit.key.choice, len(submit.prompt_ids)
    yield 0.01, Delta(choice, (2,), reasoning="hm", usage=Usage(prompt, 1))
    yield 0.01, Delta(choice, (3,), text="Hi 😀", usage=Usage(prompt, 2))
    yield 0.0, Ended(choice, Finish("stop", 1), Usage(prompt, 3))


async def test_a_stream_is_lines_of_json_and_an_answer_one_object() -> None:
    async with running(thinks_and_speaks, dialects=find_dialects()) as server:
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
        # What curl sends without being told a type.
        reply = await ask(server.port, "/api/chat", body, ["content-type: application/x-www-form-urlencoded"])
        assert (reply.status, reply.headers["content-type"], reply.complete) == (200, "application/x-ndjson", True)
        lines = [orjson.loads(line) for line in reply.body.splitlines()]
        once = await ask(server.port, "/api/chat", {**body, "stream": False})
        assert once.headers["content-type"] == "application/json"
        whole_answer = once.json
        changing = {"created_at", "total_duration", "prompt_eval_duration", "eval_duration"}
        same = {name: value for name, value in whole_answer.items() if name not in changing}
        assert {name: value for name, value in folded(lines).items() if name not in changing} == same
        assert same["message"] == {"role": "assistant", "content": "Hi 😀", "thinking": "hm"}
        for told in (lines[-1], whole_answer):
            assert told["total_duration"] == told["prompt_eval_duration"] + told["eval_duration"]
            assert told["prompt_eval_duration"] > 5_000_000
            assert told["eval_duration"] > 5_000_000


async def test_generate_speaks_as_chat_does() -> None:
    async with running(thinks_and_speaks, dialects=find_dialects()) as server:
        reply = await ask(server.port, "/api/generate", {"model": "fake", "prompt": "hi", "stream": False})
        assert (reply.json["response"], reply.json["thinking"], reply.json["done"]) == ("Hi 😀", "hm", True)
        loaded = await ask(server.port, "/api/generate", {"model": "fake"})
        assert (loaded.status, loaded.json["done_reason"], len(server.engine.submits)) == (200, "load", 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_refusals_are_real_statuses(path: str, stream: bool) -> None:
    base: dict[str, Any] = {"stream": stream, "messages": HELLO["messages"], "prompt": "x"}
    async with running(silent, dialects=find_dialects()) as server:
        for more, status in (({"model": "other"}, 404), ({"format": "json"}, 400)):
            reply = await ask(server.port, path, {**base, **more})
            assert (reply.status, list(reply.json)) == (status, ["error"])
        long = {"messages": [{"role": "user", "content": "x" * 5000}], "prompt": "x" * 5000}
        reply = await ask(server.port, path, {**base, **long})
        assert reply.status == 400
        assert "longer than the model's context length (4096 tokens)" in reply.json["error"]


async def test_a_num_predict_beyond_the_context_is_cut_to_it() -> None:
    async with running(silent, dialects=find_dialects()) as server, connected(server.port) as client:
        body = {"prompt": "hi", "raw": True, "options": {"num_predict": 1_000_000}}
        await client.post("/api/generate", body)
        await eventually(lambda: len(server.engine.submits) == 1)
        assert server.engine.submits[0].max_new_tokens == 4096 - 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_aborted_request_ends_with_that_reason(stream: bool) -> None:
    async with running(silent, dialects=find_dialects()) as server, connected(server.port) as client:
        await client.post("/api/generate", {"prompt": "hi", "stream": stream})
        await eventually(lambda: len(server.engine.running) == 1)
        assert (await ask(server.port, "/abort_request", {"abort_all": True})).status == 200
        reply = await client.reply()
        assert (reply.status, orjson.loads(reply.body)["done_reason"]) == (200, "abort")


@pytest.mark.parametrize(("dialect", "base"), BODIES)
async def test_one_let_go_from_the_queue_is_told_why(
    dialect: Dialect, base: dict[str, Any], autojump_clock: Any
) -> None:
    def let_go(submit: Submit) -> Iterable[tuple[float, Event]]:
        yield 1.0, Ended(0, Finish("abort", message="Request waiting timeout reached.", status=503), Usage(2, 0))

    for stream in (False, True):
        wire = FakeWire()
        async with fake_services(let_go) as fakes:
            call = parsed(dialect, {**base, "stream": stream})
            await respond(call, dialect, "r", Serving(fakes.services, IngressSettings()), wire)
        assert wire.status == (200 if stream else 503)
        assert wire.json == {"error": "Request waiting timeout reached."}


@on_both
def test_the_place_in_queue_and_cache_is_asked_for_as_everywhere(dialect: Dialect, base: dict[str, Any]) -> None:
    asked = ask_of(dialect, base, priority=3, cache_salt="a", session_id="s", request_timeout=5)
    assert (asked.priority, asked.namespace, asked.session, asked.timeout_s) == (3, "1:a", "s", 5)


@pytest.mark.parametrize("path", ["/api", "/api/ps", "/api/embed"])
async def test_what_is_not_here_is_a_404_in_ollamas_shape(path: str) -> None:
    async with running(silent, dialects=find_dialects()) as server, connected(server.port) as client:
        reply = await client.get(path)
        assert (reply.status, reply.json) == (404, {"error": f"There is no {path} here."})
        assert (await client.get("/api/chat")).json == {"error": "GET is not allowed for /api/chat."}


# -- facts ------------------------------------------------------------------------------------------------------------


async def test_tags_show_and_version_tell_a_client_what_it_may_ask_for() -> None:
    async with running(silent, dialects=find_dialects()) as server, connected(server.port) as client:
        (listed,) = (await client.get("/api/tags")).json["models"]
        assert (listed["name"], listed["model"]) == ("fake:latest", "fake:latest")
        assert (len(listed["digest"]), listed["modified_at"]) == (64, "2023-11-14T22:13:20.000000Z")
        for named in ({"model": "fake:latest"}, {"name": "fake"}):
            shown = (await ask(server.port, "/api/show", named)).json
            assert shown["capabilities"] == ["completion", "tools", "thinking"]
            assert shown["model_info"]["glm5_next.context_length"] == 4096
            assert "num_ctx                        4096" in shown["parameters"]
            assert shown["details"] == listed["details"]
        assert (await client.get("/api/version")).json == {"version": API_VERSION}
        assert (await ask(server.port, "/api/show", {"model": "other"})).status == 404
        assert (await ask(server.port, "/api/show", {})).json == {"error": "model is required"}


def test_show_names_only_what_the_server_can_do() -> None:
    plain = evolve(MODEL, reasoning_parser=None, tool_call_parser=None)
    assert ollama_show.show(plain)["capabilities"] == ["completion"]
