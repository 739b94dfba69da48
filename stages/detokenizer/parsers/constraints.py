"""How an engine is told to call tools in a format: a structural tag, or a JSON schema of the list of calls. Core.

A format that an engine's grammars can follow gets a structural tag: free text up to a trigger, from there on a call of
the form that the format's own parser reads. Any other gets a JSON schema where calls are required, and its parser reads
such a list too. Without a strict tool nothing is asked of a model that may call and need not.

The words of structural tags are xgrammar's.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stages.detokenizer.parsers.loading import tool_name
from stages.messages import TextGrammar, Tool, ToolGrammar

Json = dict[str, Any]
# Makes the format of a structural tag of tools that may be called.
Builder = Callable[[Sequence[Tool], ToolGrammar], Json]

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def tool_constraint(parser: str, grammar: ToolGrammar) -> TextGrammar | None:
    """Return what to ask of the engine, None for nothing; raises ConfigError for a parser there is not."""
    tools = [tool for tool in grammar.tools if tool.name in grammar.names]
    if not tools or not (grammar.is_required or any(tool.is_strict for tool in tools)):
        return None
    name = tool_name(parser)
    builder = BUILDERS.get(name)
    if builder is None and not grammar.is_required:
        builder = WHEN_NOT_REQUIRED.get(name)
    if builder is not None:
        return TextGrammar("structural_tag", _text({"type": "structural_tag", "format": builder(tools, grammar)}))
    return TextGrammar("json_schema", _text(list_schema(tools, grammar))) if grammar.is_required else None


def list_schema(tools: Sequence[Tool], grammar: ToolGrammar) -> Json:
    """Return the schema of a list of calls, each an object of name and parameters."""
    calls = [
        {
            "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": _parameters(tool)},
            "required": ["name", "parameters"],
        }
        for tool in tools
    ]
    items = calls[0] if len(calls) == 1 else {"type": "object", "anyOf": calls}
    schema: Json = {"type": "array", "minItems": 1, "items": items}
    return schema if grammar.is_parallel else schema | {"maxItems": 1}


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parameters(tool: Tool) -> Mapping[str, Any]:
    return tool.parameters or NO_PARAMETERS


def _content(tool: Tool, style: str) -> Json:
    """Return the arguments' format: the tool's schema, or any where the client says it is not strict."""
    schema = True if tool.definition.get("strict") is False else _parameters(tool)
    return {"type": "json_schema", "json_schema": schema, "style": style}


def _tag(begin: str, content: Json, end: str) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _triggered(trigger: str, tags: Sequence[Json], grammar: ToolGrammar) -> Json:
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": list(tags),
        "at_least_one": grammar.is_required,
        "stop_after_first": not grammar.is_parallel,
    }


def _one_after_another(tags: Sequence[Json], grammar: ToolGrammar) -> Json:
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": "",
        "at_least_one": True,
        "stop_after_first": not grammar.is_parallel,
    }


def _tags_of(trigger: str, begin: str, style: str, end: str, **others: Any) -> Builder:
    """Return the builder of a format with a tag of its own for each call; % in `begin` stands for the name."""

    def build(tools: Sequence[Tool], grammar: ToolGrammar) -> Json:
        tags = [_tag(begin.replace("%", tool.name), _content(tool, style), end) for tool in tools]
        return _triggered(trigger, tags, grammar) | others

    return build


def _dsml(block: str) -> Builder:
    opening, closing = f"<｜DSML｜{block}>", f"</｜DSML｜{block}>"

    def build(tools: Sequence[Tool], grammar: ToolGrammar) -> Json:
        tags = [
            _tag(f'<｜DSML｜invoke name="{tool.name}">\n', _content(tool, "deepseek_xml"), "</｜DSML｜invoke>\n")
            for tool in tools
        ]
        block_tag = _tag(f"{opening}\n", _one_after_another(tags, grammar), closing)
        return _triggered(opening, [block_tag], grammar)

    return build


def _kimi_k2(tools: Sequence[Tool], grammar: ToolGrammar) -> Json:
    opening, closing = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    tags = [
        _tag(
            f"<|tool_call_begin|>functions.{tool.name}:",
            {
                "type": "sequence",
                "elements": [
                    {"type": "regex", "pattern": r"\d+"},
                    {"type": "const_string", "value": "<|tool_call_argument_begin|>"},
                    _content(tool, "json"),
                ],
            },
            "<|tool_call_end|>",
        )
        for tool in tools
    ]
    calls = _one_after_another(tags, grammar)
    if not grammar.is_required:
        return _triggered(opening, [_tag(opening, calls, closing)], grammar)
    ends = [{"type": "const_string", "value": value} for value in (opening, closing)]
    return {"type": "sequence", "elements": [ends[0], calls, ends[1]]}


_HERMES = _tags_of("<tool_call>", '<tool_call>\n{"name": "%", "arguments": ', "json", "}\n</tool_call>")
_CODER = _tags_of("<tool_call>\n<function=", "<tool_call>\n<function=%>\n", "qwen_xml", "\n</function>\n</tool_call>")
_GLM = _tags_of(
    "<tool_call>",
    "<tool_call>%",
    "glm_xml",
    "</tool_call>",
    excludes=["<think>", "</think>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
)

BUILDERS: Mapping[str, Builder] = {
    "deepseek_v3_2": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "glm47": _GLM,
    "hermes": _HERMES,
    "kimi_k2": _kimi_k2,
    "nemotron_nano": _CODER,
    "qwen25": _HERMES,
    "qwen3_coder": _CODER,
}

# Where calls are required these get the schema of a list, which holds the bare JSON they may write as well.
WHEN_NOT_REQUIRED: Mapping[str, Builder] = {
    "llama3_json": _tags_of("<|python_tag|>", '<|python_tag|>{"name":"%", "arguments":', "json", "}"),
}
