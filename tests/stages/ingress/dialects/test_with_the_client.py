"""The dialects behind the real server, read by the real openai client; one short run in real time."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import trio

from stages.ingress.dialects import openai_chat, openai_completions, openai_responses, sglang_generate
from stages.ingress.info import Info
from stages.ingress.respond import Serving
from stages.ingress.routes import create_app
from stages.ingress.server import serve_http
from stages.messages import Delta, Ended, Event, Finish, Load, Submit, ToolCallDelta, Usage
from stages.settings import IngressSettings
from tests.fakes import fake_services

DIALECTS = [openai_chat.DIALECT, openai_completions.DIALECT, openai_responses.DIALECT, sglang_generate.DIALECT]
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CHAT: Any = {"model": "fake", "messages": [{"role": "user", "content": "hey"}], "tools": [TOOL]}

LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
RESPONSE: Any = {"model": "fake", "input": "hey", "tools": [LOOK, {"type": "custom", "name": "patch"}]}


def thinks_speaks_and_calls(submit: Submit) -> Iterable[tuple[float, Event]]:
    choice, prompt = submit.key.choice, len(submit.prompt_ids)
    yield 0.0, Delta(choice, (2,), reasoning="hm", usage=Usage(prompt, 1, 0, 1))
    yield 0.0, Delta(choice, (3,), text="Hi 😀", usage=Usage(prompt, 2, 0, 1))
    yield 0.0, Delta(choice, (4,), tool_calls=(ToolCallDelta(0, "look", '{"at"'),), usage=Usage(prompt, 3, 0, 1))
    yield 0.0, Delta(choice, (5,), tool_calls=(ToolCallDelta(0, None, ": 1}"),), usage=Usage(prompt, 4, 0, 1))
    if [tool.name for tool in submit.form.tools] == ["look", "patch"]:
        arguments = '{"input": "a\\nb"}'
        yield 0.0, Delta(choice, (5,), tool_calls=(ToolCallDelta(1, "patch", arguments),), usage=Usage(prompt, 4, 0, 1))
    yield 0.0, Ended(choice, finish_of(submit), Usage(prompt, 5, 0, 1))


def finish_of(submit: Submit) -> Finish:
    """The end a request asks for by its seed."""
    return {7: Finish("length"), 8: Finish("error")}.get(submit.seed, Finish("stop", 1))


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
        _responses(client)
        _endings(client)
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


def _responses(client: openai.OpenAI) -> None:
    for more in ({}, {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}):
        whole = client.responses.create(**RESPONSE, **more)
        with client.responses.stream(**RESPONSE, **more) as stream:
            assert [event.sequence_number for event in stream] == list(range(24))
            joined = stream.get_final_response()
        *events, last = client.responses.create(**RESPONSE, **more, stream=True)
        assert last.type == "response.completed"
        assert [event.item for event in events if event.type == "response.output_item.done"] == last.response.output
        for response in (whole, joined):
            thought, said, look, patch = response.output
            assert response.output_text == "Hi 😀"
            assert thought.type == "reasoning"
            assert (thought.summary or thought.content or [])[0].text == "hm"
            assert said.type == "message"
            assert look.type == "function_call"
            assert (look.name, look.arguments) == ("look", '{"at": 1}')
            assert patch.type == "custom_tool_call"
            assert (patch.name, patch.input) == ("patch", "a\nb")
            assert response.status == "completed"
            assert response.usage is not None
            assert (response.usage.output_tokens, response.usage.output_tokens_details.reasoning_tokens) == (5, 1)
        again = client.responses.create(
            model="fake",
            input=[*(item.to_dict() for item in joined.output), output_of(look.call_id), output_of(patch.call_id)],
        )
        assert again.output_text == "Hi 😀"


def output_of(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "ok"}


def _endings(client: openai.OpenAI) -> None:
    cut_off = client.responses.create(model="fake", input="x", extra_body={"seed": 7})
    assert cut_off.incomplete_details is not None
    assert (cut_off.status, cut_off.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    for seed, last in ((7, "response.incomplete"), (8, "response.failed")):
        *_, event = client.responses.create(model="fake", input="x", stream=True, extra_body={"seed": seed})
        assert event.type == last
        assert event.response.output
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model="fake", input="x", extra_body={"seed": 8})
    for extra, param in (
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"max_output_tokens": 5000}, "input"),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model="fake", input="x", extra_body=extra, stream=stream)
            assert caught.value.param == param
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            ask("resp_1")


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
