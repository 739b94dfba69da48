"""What a server without its optional graphs cannot do, it refuses by name instead of answering as if it had.

Each entry names the fault of other servers that answer such a body. What the same fields bring with the flags on is
tests/clients/test_constrained.py's.
"""

from typing import Any

import pytest

from tests.scripted.apis import APIS, CHAT, CHAT_TOOL, COMPLETIONS, GENERATE, MESSAGES, OLLAMA_CHAT, RESPONSES, Api
from tests.scripted.script import SCHEMA, script
from tests.scripted.server import by_choice, scripted_server

CONST = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]}
CHAT_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": CONST}}
FORCED = {"type": "function", "function": {"name": "f"}}

# (API, what is added to its body, the field that is named)
REQUIRED_CALLS_STREAMED_TWICE: list[tuple[Api, dict[str, Any], str]] = [
    (CHAT, {"tool_choice": "required", "tools": [CHAT_TOOL]}, "tool_choice"),
    (CHAT, {"tool_choice": FORCED, "tools": [CHAT_TOOL]}, "tool_choice"),
    (RESPONSES, {"tool_choice": "required"}, "tool_choice"),
    (RESPONSES, {"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
]
MASKS_IGNORED: list[tuple[Api, dict[str, Any], str]] = [
    (CHAT, {"logit_bias": {"5": 100}}, "logit_bias"),
    (CHAT, {"allowed_token_ids": [5, 6]}, "allowed_token_ids"),
    (CHAT, {"bad_words": ["x"]}, "bad_words"),
    (COMPLETIONS, {"logit_bias": {"5": 100}}, "logit_bias"),
    (COMPLETIONS, {"allowed_token_ids": [5, 6]}, "allowed_token_ids"),
    (GENERATE, {"sampling_params": {"logit_bias": {"5": 100}}}, "logit_bias"),
]
SCHEMAS_IGNORED: list[tuple[Api, dict[str, Any], str]] = [
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n", "schema": CONST}}}, "text.format"),
    (RESPONSES, {"text": {"format": {"type": "json_object"}}}, "text.format"),
    *(
        (CHAT, {**constraint, "chat_template_kwargs": {"enable_thinking": thinks}}, name)
        for thinks in (True, False)
        for name, constraint in {
            "response_format": {"response_format": CHAT_SCHEMA},
            "structured_outputs": {"structured_outputs": {"json": CONST}},
            "guided_json": {"guided_json": CONST},
            "regex": {"regex": "[0-9]+"},
            "ebnf": {"ebnf": 'root ::= "x"'},
        }.items()
    ),
    (COMPLETIONS, {"response_format": CHAT_SCHEMA}, "response_format"),
    (COMPLETIONS, {"guided_choice": ["a"]}, "guided_choice"),
    (GENERATE, {"sampling_params": {"json_schema": '{"type": "object"}'}}, "json_schema"),
    (GENERATE, {"sampling_params": {"regex": "[0-9]+"}}, "regex"),
    (GENERATE, {"sampling_params": {"ebnf": 'root ::= "x"'}}, "ebnf"),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "output_config.format"),
    (OLLAMA_CHAT, {"format": "json"}, "format"),
    (OLLAMA_CHAT, {"format": CONST}, "format"),
]
ALL = {
    "required calls streamed twice": REQUIRED_CALLS_STREAMED_TWICE,
    "masks ignored": MASKS_IGNORED,
    "schemas ignored": SCHEMAS_IGNORED,
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("api", "more", "name"),
    [
        pytest.param(api, more, name, id=f"{fault}: {api.name} {number} {name}")
        for fault, entries in ALL.items()
        for number, (api, more, name) in enumerate(entries)
    ],
)
async def test_what_is_not_served_is_a_400_that_names_it_and_nothing_is_generated(
    api: Api, more: dict[str, Any], name: str, stream: bool, autojump_clock: Any
) -> None:
    async with scripted_server(by_choice([script("</think>free text")]), model=api.model) as server:
        exchange = await server.post(api.path, {**api.ask(stream=stream), **more})
        assert not server.engine.submits
    # After its first check SGLang's API refuses inside the stream.
    assert exchange.status == (200 if api is GENERATE and exchange.is_stream else 400)
    assert name in exchange.body.decode()
    if api in (CHAT, COMPLETIONS, RESPONSES):
        # Or what stands below it.
        assert f"{exchange.json['error']['param']}.".startswith(f"{name}.")


def test_every_api_is_here_that_has_something_to_refuse() -> None:
    named = {api.name for entries in ALL.values() for api, _, _ in entries}
    assert {api.name for api in APIS} - named == {"generate-incremental", "ollama-generate"}
