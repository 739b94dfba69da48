"""The dialects behind the real server, read by the real openai client; one short run in real time."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import trio

from stages.ingress.app import create_app
from stages.ingress.dialects import openai_chat, openai_completions, sglang_generate
from stages.ingress.info import Info
from stages.ingress.respond import Serving
from stages.ingress.server import serve_http
from stages.messages import Delta, Ended, Event, Finish, Load, Submit, ToolCallDelta, Usage
from stages.settings import IngressSettings
from tests.fakes import fake_services

DIALECTS = [openai_chat.DIALECT, openai_completions.DIALECT, sglang_generate.DIALECT]
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CHAT: Any = {"model": "fake", "messages": [{"role": "user", "content": "hey"}], "tools": [TOOL]}


def thinks_speaks_and_calls(submit: Submit) -> Iterable[tuple[float, Event]]:
    choice, prompt = submit.key.choice, len(submit.prompt_ids)
    yield 0.0, Delta(choice, (2,), reasoning="hm", usage=Usage(prompt, 1, 0, 1))
    yield 0.0, Delta(choice, (3,), text="Hi 😀", usage=Usage(prompt, 2, 0, 1))
    yield 0.0, Delta(choice, (4,), tool_calls=(ToolCallDelta(0, "look", '{"at"'),), usage=Usage(prompt, 3, 0, 1))
    yield 0.0, Delta(choice, (5,), tool_calls=(ToolCallDelta(0, None, ": 1}"),), usage=Usage(prompt, 4, 0, 1))
    yield 0.0, Ended(choice, Finish("stop", 1), Usage(prompt, 5, 0, 1))


async def test_the_client_reads_chat_completions_and_errors() -> None:
    async with fake_services(thinks_speaks_and_calls) as fakes, trio.open_nursery() as nursery:
        serving = Serving(fakes.services, IngressSettings(port=0))
        load = Load(0, 0, 0, 0, 1, 0, 1, 64)
        info = Info(fakes.services.model, "/models/fake", "0", 0, lambda: "ready", lambda: load, dict, 1)
        shutdown = trio.Event()
        app = create_app(DIALECTS, serving, info)
        port = await nursery.start(partial(serve_http, app, serving.settings, shutdown=shutdown))
        await trio.to_thread.run_sync(_ask_everything, port)
        shutdown.set()


def _ask_everything(port: int) -> None:
    with (
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as client,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        _chat(client)
        _completions(client)
        _errors(client)
        _generate(http)


def _chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, n=2)
    with client.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        joined = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    for choice in (*whole.choices, joined.choices[0]):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Hi 😀"
        assert choice.message.reasoning_content == "hm"  # type: ignore[attr-defined]
        assert [call.function.arguments for call in choice.message.tool_calls or []] == ['{"at": 1}']
    assert whole.usage is not None
    assert joined.usage is not None
    assert whole.usage.completion_tokens == 2 * joined.usage.completion_tokens == 10


def _completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="fake", prompt=["a", "b"], echo=True)
    assert [choice.text for choice in whole.choices] == ["aHi 😀", "bHi 😀"]
    chunks = list(client.completions.create(model="fake", prompt="a", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hi 😀"
    assert chunks[-1].choices[0].finish_reason == "stop"


def _errors(client: openai.OpenAI) -> None:
    for extra, code, param in (
        ({"temperature": "0.7"}, "invalid_value", "temperature"),
        ({"response_format": {"type": "json_object"}}, "unsupported_value", "response_format"),
        ({"max_tokens": 5000}, "context_length_exceeded", "messages"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**CHAT, extra_body=extra, stream=stream)
            assert (caught.value.code, caught.value.param) == (code, param)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**CHAT, "model": "other"})


def _generate(http: httpx.Client) -> None:
    whole = http.put("/generate", json={"text": "x"}).json()
    assert (whole["text"], whole["output_ids"]) == ("Hi 😀", [2, 3, 4, 5])
    body = {"text": "x", "sampling_params": {"top_k": 0}}
    assert http.post("/generate", json=body).status_code == 400
    refused = http.post("/generate", json={**body, "stream": True})
    assert refused.status_code == 200
    assert refused.text.startswith('data: {"error":{"message":"top_k must be')
    assert refused.text.endswith("data: [DONE]\n\n")
    beyond = http.post("/generate", json={"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 5000}})
    assert beyond.status_code == 200
    assert beyond.text.count("data: ") == 2
