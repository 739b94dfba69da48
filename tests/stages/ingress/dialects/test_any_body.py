"""Whatever JSON object comes in, a dialect understands it or names what is wrong; nothing else ever happens."""

from typing import Any

import orjson
import pytest
from attrs import fields
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.errors import RequestError
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import (
    anthropic_count_tokens,
    anthropic_messages,
    ollama_chat,
    ollama_generate,
    ollama_show,
    openai_chat,
    openai_completions,
    openai_responses,
    sglang_generate,
    sglang_parsing,
    tokenize,
)
from stages.ingress.dialects.ollama_common import Options
from stages.ingress.dialects.openai_thinking import ThinkingBody
from stages.ingress.dialects.sglang_sampling import WireSampling
from stages.settings import ModelSettings
from tests.stages.ingress.dialects.kit import ABLE, MODEL, call_of

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-2, 3),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(
        [
            "\ud83d",
            "user",
            "text",
            "auto",
            "function",
            "{}",
            "custom",
            "namespace",
            "message",
            "reasoning",
            "function_call",
            "function_call_output",
            "input_text",
            "summary_text",
            "assistant",
            "tool_use",
            "tool_result",
            "enabled",
            "json_object",
            "allowed_tools",
            "required",
        ]
    ),
)
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "arguments",
        "tool_calls",
        "parameters",
        "effort",
        "enabled",
        "include_usage",
        "id",
        "properties",
        "5",
        "tool_call_id",
        "call_id",
        "output",
        "summary",
        "format",
        "tools",
        "tool_use_id",
        "input",
        "input_schema",
        "budget_tokens",
        "json_schema",
        "schema",
        "json",
        "regex",
        "allowed_tools",
        "mode",
    ]
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


def names(*classes: Any) -> list[str]:
    return [field.name for cls in classes for field in fields(cls)]


MESSAGE = {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
CASES = [
    (anthropic_messages.DIALECT, names(anthropic_messages.MessagesBody), MESSAGE),
    (anthropic_count_tokens.DIALECT, names(anthropic_messages.MessagesBody), MESSAGE),
    (openai_chat.DIALECT, names(openai_chat.ChatBody, ThinkingBody), {"messages": [{"role": "user", "content": "x"}]}),
    (openai_completions.DIALECT, names(openai_completions.CompletionBody), {"prompt": "x"}),
    (openai_responses.DIALECT, names(openai_responses.ResponsesBody, ThinkingBody), {"input": "x"}),
    (sglang_generate.DIALECT, names(sglang_generate.GenerateBody), {"text": "x"}),
    (sglang_parsing.DIALECT, names(sglang_parsing.SeparateReasoningBody, sglang_parsing.ParseFunctionCallBody), {}),
    (tokenize.DIALECT, names(tokenize.TokenizeBody, openai_chat.ChatBody), {}),
    (ollama_chat.DIALECT, names(ollama_chat.ChatBody), {"messages": [{"role": "user", "content": "x"}]}),
    (ollama_generate.DIALECT, names(ollama_generate.GenerateBody), {"prompt": "x"}),
    (ollama_show.DIALECT, names(ollama_show.ShowBody), {}),
]


@pytest.mark.parametrize("model", [MODEL, ABLE], ids=["plain", "able"])
@pytest.mark.parametrize(("dialect", "known", "base"), CASES, ids=[dialect.name for dialect, _, _ in CASES])
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_json_object_is_understood_or_refused(
    dialect: Dialect, known: list[str], base: dict[str, Any], model: ModelSettings, data: st.DataObject
) -> None:
    body = {**base, **data.draw(st.dictionaries(st.sampled_from(known), VALUES, max_size=3))}
    if dialect is sglang_generate.DIALECT and data.draw(st.booleans()):
        params = st.dictionaries(st.sampled_from(names(WireSampling)), VALUES, max_size=3)
        body["sampling_params"] = data.draw(params)
    if dialect in (ollama_chat.DIALECT, ollama_generate.DIALECT) and data.draw(st.booleans()):
        body["options"] = data.draw(st.dictionaries(st.sampled_from(names(Options)), VALUES, max_size=3))
    error = refusal_of(dialect, body, model)
    if error is not None:
        assert error.status in (400, 404)
        assert error.param
        orjson.dumps(dialect.error(error, error.status, "r"))


def refusal_of(dialect: Dialect, body: dict[str, Any], model: ModelSettings) -> RequestError | None:
    try:
        dialect.parse(call_of(body), model)
    except RequestError as error:
        return error
    return None
