"""What clients of SGLang, vLLM and Ollama send, against a started `python -m trnrt` process, over plain HTTP."""

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.process import started

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 200}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with started("--device-mode", "eager", "--max-running-requests", "8", "--dtype", "float32") as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            yield client


def told(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    with http.stream("POST", path, json=body) as reply:
        assert reply.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in reply.iter_lines()]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": [WEATHER]},
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [*FRANCE, {"role": "assistant", "content": "The"}], "continue_final_message": True},
    ],
)
def test_a_chats_tokens_are_the_prompt_tokens_it_is_billed(http: httpx.Client, more: dict[str, Any]) -> None:
    body = {"messages": FRANCE, **more}
    counted = told(http, "/tokenize", body)
    answer = told(http, "/v1/chat/completions", {**body, "max_tokens": 1})
    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    generated = told(http, "/generate", {"input_ids": counted["tokens"], "sampling_params": {"max_new_tokens": 1}})
    assert generated["meta_info"]["prompt_tokens"] == counted["count"]


def test_an_answers_ids_are_its_text_again_and_tell_the_same_apart(http: httpx.Client) -> None:
    prompt = told(http, "/v1/tokenize", {"messages": FRANCE})["tokens"]
    params = {"max_new_tokens": 200, "temperature": 0}
    raw = told(http, "/generate", {"input_ids": prompt, "sampling_params": params})
    ids = raw["output_ids"][:-1] if raw["meta_info"]["finish_reason"]["type"] == "stop" else raw["output_ids"]
    assert told(http, "/v1/detokenize", {"tokens": ids})["text"] == raw["text"]

    parts = told(http, "/separate_reasoning", {"text": raw["text"], "reasoning_parser": "glm45"})
    chat = told(http, "/v1/chat/completions", {"messages": FRANCE, "temperature": 0, "max_tokens": 200})
    message = chat["choices"][0]["message"]
    assert (parts["reasoning_text"], parts["text"]) == (message["reasoning_content"], message["content"])


def test_random_text_comes_back_from_its_ids(http: httpx.Client) -> None:
    drawn = random.Random(5)
    texts = ["".join(chr(drawn.choice((drawn.randrange(32, 127), drawn.randrange(160, 0x3000)))) for _ in range(40))]
    texts += ["", "👩‍🚀 naïve\r\n\t", "<|user|>"]
    tokens = told(http, "/tokenize", {"prompt": texts})["tokens"]
    got = told(http, "/detokenize", {"tokens": tokens, "skip_special_tokens": False})
    assert got["text"] == got["prompt"] == texts


def test_ollamas_lines_fold_to_its_whole_answer_which_is_chats(http: httpx.Client) -> None:
    name = http.get("/api/tags").json()["models"][0]["name"]
    body = {"model": name, "messages": FRANCE, "options": GREEDY, "keep_alive": "5m"}
    lines = streamed(http, "/api/chat", body)
    whole = told(http, "/api/chat", {**body, "stream": False})

    said = {key: "".join(line["message"].get(key, "") for line in lines) for key in ("content", "thinking")}
    chat = told(http, "/v1/chat/completions", {"messages": FRANCE, "temperature": 0, "max_tokens": 200})
    message = chat["choices"][0]["message"]
    assert said == {"content": message["content"], "thinking": message["reasoning_content"]}
    assert whole["message"] == {"role": "assistant", **said}
    for last in (lines[-1], whole):
        assert (last["done"], last["done_reason"]) == (True, "stop")
        assert last["prompt_eval_count"] == chat["usage"]["prompt_tokens"]
        assert last["eval_count"] == chat["usage"]["completion_tokens"]
        assert last["total_duration"] == last["prompt_eval_duration"] + last["eval_duration"] > 0


def test_ollamas_tool_call_is_whole_and_its_result_is_taken_back(http: httpx.Client) -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    lines = streamed(http, "/api/chat", {"messages": asked, "tools": [WEATHER], "options": GREEDY})
    (call,) = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert isinstance(call["function"]["arguments"], dict)

    thinking = "".join(line["message"].get("thinking", "") for line in lines)
    past = {"role": "assistant", "content": "", "thinking": thinking, "tool_calls": [call]}
    result = {"role": "tool", "tool_name": call["function"]["name"], "content": "18C, clear"}
    body = {"messages": [*asked, past, result], "tools": [WEATHER], "options": GREEDY, "stream": False}
    assert told(http, "/api/chat", body)["done_reason"] == "stop"


def test_ollamas_generate_thinks_unless_told_not_to(http: httpx.Client) -> None:
    body = {"prompt": "What is the capital of Italy?", "options": GREEDY, "stream": False}
    thought = told(http, "/api/generate", body)
    assert thought["thinking"]
    assert "Rome" in thought["response"]
    assert "thinking" not in told(http, "/api/generate", {**body, "think": False})
    raw = told(
        http, "/api/generate", {"prompt": "Paris is", "raw": True, "options": {"num_predict": 4}, "stream": False}
    )
    assert (raw["prompt_eval_count"], raw["eval_count"], raw["done_reason"]) == (3, 4, "length")


def test_a_client_may_ask_what_the_server_is(http: httpx.Client) -> None:
    assert http.get("/server_info").json()["preset"] == "default"
    assert http.get("/version").json()["version"]
    for path in ("/get_health_generate", "/get_ready", "/get_ping"):
        assert http.get(path).status_code == 200
    assert "thinking" in told(http, "/api/show", {"model": "glm-5.3-flash-demo"})["capabilities"]
