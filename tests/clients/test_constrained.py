"""Constrained answers of a started server with the shipped model, by OpenAI's client and by plain calls.

The model is small and knows nothing of schemas: whatever is valid here, the constraint made so.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from openai.lib._tools import pydantic_function_tool
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from tests.clients.process import Server, started
from tests.stages.ingress.dialects.anthropic_kit import events_of, message_of

pytest.importorskip("xgrammar")
pytest.importorskip("llguidance")

MODEL = "glm-5.3-flash-demo"
FILES = Path(__file__).parents[2] / "trnrt" / "models" / "demo_files"
FLAGS = (
    "--device-mode",
    "eager",
    "--deterministic",
    "--max-running-requests",
    "8",
    "--penalties",
    "--structured-outputs",
)


class Day(BaseModel):
    """A small object with every kind of bound."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]
    days: int = Field(ge=0, le=30)
    tags: list[Literal["a", "b"]] = Field(max_length=2)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"const": 7}, "city": {"enum": ["Paris", "Rome"]}},
    "required": ["n", "city"],
    "additionalProperties": False,
}
# Against whitespace, of which a model that knows no JSON writes as much as it may.
VOCABULARY = Tokenizer.from_file(str(FILES / "tokenizer.json"))
DENSE = {
    "logit_bias": {
        str(token_id): -50
        for token_id in range(VOCABULARY.get_vocab_size())
        if (text := VOCABULARY.decode([token_id], skip_special_tokens=False)) and not text.strip()
    }
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_days", "description": "Days", "parameters": PARAMETERS}}
OTHER: Any = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with started(*FLAGS) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


def asked(text: str = "Say hello", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 700, **more}


def schema_format(schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def streamed(client: OpenAI, **more: Any) -> dict[str, Any]:
    """A chat stream's only choice, joined."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "arguments": "", "names": [], "ends": []}
    for chunk in client.chat.completions.create(**asked(**more), stream=True):
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            message["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                message["names"] += filter(None, [call.function.name])
                message["arguments"] += call.function.arguments or ""
            message["ends"] += filter(None, [choice.finish_reason])
    return message


# --- grammars ---


def test_the_clients_parse_gives_the_class_that_was_asked_for(client: OpenAI) -> None:
    completion = client.chat.completions.parse(**asked(**DENSE), response_format=Day)
    assert isinstance(completion.choices[0].message.parsed, Day)
    response = client.responses.parse(model=MODEL, input="Say hello", temperature=0, text_format=Day, extra_body=DENSE)
    assert isinstance(response.output_parsed, Day)


@pytest.mark.parametrize("thinks", [True, False])
def test_vllm_47027_a_schema_and_thinking_do_not_cost_one_another(client: OpenAI, thinks: bool) -> None:
    more = {
        "response_format": schema_format(),
        "extra_body": {"chat_template_kwargs": {"enable_thinking": thinks}, **DENSE},
    }
    message = client.chat.completions.create(**asked(**more)).choices[0].message
    told = streamed(client, **more)
    for content, reasoning in (
        (message.content, message.model_extra and message.model_extra["reasoning_content"]),
        (told["content"], told["reasoning"]),
    ):
        jsonschema.validate(json.loads(content or ""), SCHEMA)
        assert bool(reasoning) is thinks
    assert told["ends"] == ["stop"]


def test_vllm_44012_a_schema_is_enforced_on_responses(client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    ask: Any = {"model": MODEL, "input": "Say hello", "temperature": 0, "text": {"format": form}, "extra_body": DENSE}
    response = client.responses.create(**ask)
    jsonschema.validate(json.loads(response.output_text), SCHEMA)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    with client.responses.stream(**ask) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == response.output_text


GRAMMARS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "[a-c]{3}x"}, "[a-c]{3}x"),
    "ebnf": ({"ebnf": 'root ::= "ab" [0-9] [0-9] "c"'}, "ab[0-9]{2}c"),
    "choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    "guided regex": ({"guided_regex": "(x|y){2}"}, "(x|y){2}"),
    "compact": (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        r'\{"n":7,"city":"(Paris|Rome)"\}',
    ),
}


@pytest.mark.parametrize(("more", "pattern"), GRAMMARS.values(), ids=list(GRAMMARS))
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_every_name_of_a_grammar_is_kept(client: OpenAI, more: Any, pattern: str, temperature: float) -> None:
    body = {**asked(), "temperature": temperature}
    completion = client.chat.completions.create(**body, n=3, seed=5, extra_body=more)
    for choice in completion.choices:
        assert re.fullmatch(pattern, choice.message.content or "")
        assert choice.finish_reason == "stop"


def test_generate_and_completions_are_constrained_from_the_first_token(client: OpenAI, http: httpx.Client) -> None:
    pattern = " [A-Z][a-z]+\\."
    params = {"regex": pattern, "max_new_tokens": 20, "temperature": 0}
    answer = http.post("/generate", json={"text": "The capital of France is", "sampling_params": params}).json()
    assert re.fullmatch(pattern, answer["text"])
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    completion = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=20, temperature=0, extra_body={"regex": pattern}
    )
    assert completion.choices[0].text == answer["text"]


def test_messages_and_ollama_keep_their_formats(http: httpx.Client) -> None:
    body = asked(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, **DENSE)
    message = http.post("/v1/messages", json=body).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    jsonschema.validate(json.loads(message["content"][1]["text"]), SCHEMA)
    chat = {
        "model": MODEL,
        "stream": False,
        "messages": body["messages"],
        "format": SCHEMA,
        "options": {"temperature": 0, "frequency_penalty": 2},
    }
    jsonschema.validate(json.loads(http.post("/api/chat", json=chat).json()["message"]["content"]), SCHEMA)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"regex": "("}, "regex"),
        ({"structured_outputs": {"json": {"type": "strong"}}}, "structured_outputs.json"),
        ({"response_format": schema_format({"type": "object", "properties": {"a": {"type": 5}}})}, "response_format"),
        ({"ebnf": "root := "}, "ebnf"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"json_schema": '{"$ref": "http://127.0.0.1/x"}'}, "json_schema"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_a_400_that_names_its_field(client: OpenAI, more: Any, param: str) -> None:
    for stream in (False, True):
        with pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(**asked(), extra_body=more, stream=stream)
        assert (caught.value.param, caught.value.code) == (param, "invalid_value")


# --- tools ---


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), ("named", "stop"), ("some", "tool_calls")])
def test_vllm_24509_a_call_that_must_be_made_is_made_once_and_alone(client: OpenAI, choice: str, reason: str) -> None:
    named = {"type": "function", "function": {"name": "get_days"}}
    chosen: Any = {
        "required": "required",
        "named": named,
        "some": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}},
    }[choice]
    tools = [TOOL] if choice == "required" else [OTHER, TOOL]
    more: dict[str, Any] = {"tools": tools, "tool_choice": chosen, "parallel_tool_calls": False}
    entry = client.chat.completions.create(**asked("Tell me a story.", **more)).choices[0]
    (call,) = entry.message.tool_calls or ()
    assert (call.function.name, entry.finish_reason, entry.message.content) == ("get_days", reason, "")
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    told = streamed(client, text="Tell me a story.", **more)
    assert (told["names"], told["content"], told["ends"]) == (["get_days"], "", [reason])
    assert told["arguments"] == call.function.arguments


def test_a_strict_tool_is_called_by_its_schema_where_it_is_called(client: OpenAI) -> None:
    completion = client.chat.completions.parse(
        **asked("What is the weather in Paris?"), tools=[pydantic_function_tool(Day, name="get_weather")]
    )
    (call,) = completion.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, Day)


def test_responses_and_messages_call_what_they_must(client: OpenAI, http: httpx.Client) -> None:
    flat: Any = {"type": "function", "name": "get_days", "parameters": PARAMETERS, "strict": True}
    response = client.responses.create(
        model=MODEL,
        input="Tell me a story.",
        temperature=0,
        tools=[flat],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    *_, call = response.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    body = asked("Tell me a story.", tools=[{"name": "get_days", "input_schema": PARAMETERS}])
    body["tool_choice"] = {"type": "tool", "name": "get_days"}
    message = http.post("/v1/messages", json=body).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "tool_use"]
    jsonschema.validate(message["content"][1]["input"], PARAMETERS)
    told = message_of(events_of(http.post("/v1/messages", json={**body, "stream": True}).content))
    assert told["content"][1]["input"] == message["content"][1]["input"]
    assert told["stop_reason"] == message["stop_reason"] == "tool_use"


# --- budgets, ids, least lengths ---


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_thinking_stops_at_its_budget_and_the_answer_follows(http: httpx.Client, budget: int) -> None:
    answer = http.post("/v1/chat/completions", json=asked("Tell me a story.", thinking_token_budget=budget)).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"]
    assert bool(choice["message"]["reasoning_content"]) is (budget > 0)
    # The budget and the end marker.
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= budget + 1


def test_vllm_10234_all_but_two_ids_have_a_finite_stand_in_for_minus_infinity(http: httpx.Client) -> None:
    body = asked(max_tokens=4, allowed_token_ids=[276, 13], logprobs=True, top_logprobs=20)
    for stream in (False, True):
        reply = http.post("/v1/chat/completions", json={**body, "stream": stream})
        assert reply.status_code == 200
        assert "-9999.0" in reply.text
        assert "Infinity" not in reply.text
    body = {"text": "x", "return_logprob": True, "top_logprobs_num": 20, "sampling_params": {"regex": "a{4}"}}
    meta = http.post("/generate", json=body).json()["meta_info"]
    assert meta["output_top_logprobs"][0][-1][0] == -9999.0


def test_an_answer_has_its_least_length_whatever_would_end_it(http: httpx.Client) -> None:
    plain = asked("What is the capital of France?", chat_template_kwargs={"enable_thinking": False}, max_tokens=60)
    short = http.post("/v1/chat/completions", json=plain).json()
    least = short["usage"]["completion_tokens"] + 10
    for more in ({}, {"stop": ["Paris"]}):
        answer = http.post("/v1/chat/completions", json={**plain, "min_tokens": least, **more}).json()
        assert answer["usage"]["completion_tokens"] >= least


def test_rows_with_and_without_constraints_run_beside_one_another_and_say_what_they_say_alone(
    http: httpx.Client,
) -> None:
    bodies = [
        asked("What is the capital of France?"),
        asked("Tell me a story.", regex="[a-c]{8}"),
        asked("Tell me a story.", frequency_penalty=0.5, max_tokens=40),
        asked("What is the capital of Italy?", tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
        asked("Tell me a story.", thinking_token_budget=3, max_tokens=40),
    ]

    def said(body: dict[str, Any]) -> Any:
        message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        return message["content"], message["reasoning_content"], calls

    alone = [said(body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        assert list(pool.map(said, bodies)) == alone
