"""OpenAI's tools and tool_choice to neutral tools, and a light look at their schemas."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialects.fields import clean_json, shown
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.messages import Tool

MAX_NAME_CHARACTERS = 128
MAX_SCHEMA_DEPTH = 64


@frozen(kw_only=True)
class WireFunction:
    """tools[].function; strict is taken and has no effect while there are no grammars."""

    name: str = field(metadata=shown(minLength=1, maxLength=MAX_NAME_CHARACTERS))
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@frozen(kw_only=True)
class WireTool:
    """A tool as sent."""

    function: WireFunction
    type: str = field(default="function", metadata=shown(enum=["function"]))


def read_tools(raw: list[Any] | None) -> tuple[Tool, ...]:
    """Return the tools in order, none for an empty list; raises InvalidRequest naming the path of what is wrong."""
    tools = tuple(_tool(item, index) for index, item in enumerate(raw or ()))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"tools.{index}.function.name", f"Tool name '{tool.name}' is used more than once.")
        seen.add(tool.name)
    return tools


def check_tool_choice(choice: str | dict[str, Any] | None, tools: tuple[Tool, ...]) -> bool:
    """Say whether the model may call tools; raises InvalidRequest for a choice that is wrong or not served."""
    if choice is None or choice == "auto":
        return bool(tools)
    if choice == "none":
        return False
    if choice == "required":
        if not tools:
            raise invalid("tool_choice", "Tools cannot be empty if tool choice is set to required.")
        raise _not_served("'required'")
    if isinstance(choice, str):
        raise invalid("tool_choice", "tool_choice must be none, auto, required or an object naming a tool.")
    kind = choice.get("type")
    if kind == "function":
        name = _chosen_name(choice)
        if not tools:
            raise invalid("tool_choice", "Tools cannot be empty if tool choice is set to a specific tool.")
        if name not in {tool.name for tool in tools}:
            raise invalid("tool_choice", f"Tool '{name}' not found in tools list.")
        raise _not_served("naming a tool")
    if kind in ("allowed_tools", "custom"):
        raise _not_served(f"of type {kind}")
    raise invalid("tool_choice.type", "tool_choice.type must be function.")


def _chosen_name(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice.function.name", "tool_choice.function.name must be a string.")
    return name


def _not_served(what: str) -> InvalidRequest:
    return invalid("tool_choice", f"tool_choice {what} is not supported by this server.", "unsupported_value")


def _tool(raw: Any, index: int) -> Tool:
    path = f"tools.{index}"
    if not isinstance(raw, dict):
        raise invalid(path, f"{path} must be an object.")
    kind = raw.get("type", "function")
    if kind != "function":
        raise invalid(f"{path}.type", f"{path}.type must be function; others are not supported.", "unsupported_value")
    wire = read_body(WireFunction, raw.get("function"), f"{path}.function")
    if not 1 <= len(wire.name) <= MAX_NAME_CHARACTERS:
        raise invalid(f"{path}.function.name", f"A tool's name must have 1 to {MAX_NAME_CHARACTERS} characters.")
    if wire.parameters is not None and (problem := schema_problem(wire.parameters)):
        text = f"Tool {index} function has invalid 'parameters' schema: {problem}"
        raise invalid(f"{path}.function.parameters", text)
    definition = clean_json(raw["function"])
    return Tool(wire.name, definition, definition.get("parameters"))


def schema_problem(schema: Any, depth: int = 0) -> str | None:
    """Return what makes `schema` no JSON schema, as far as the keywords the parsers read go, or None."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return "a schema must be an object or a boolean"
    if depth > MAX_SCHEMA_DEPTH:
        return f"schemas nest deeper than {MAX_SCHEMA_DEPTH}"
    return _keyword_problem(schema) or _nested_problem(schema, depth)


def _keyword_problem(schema: Mapping[str, Any]) -> str | None:
    kinds = {"array", "boolean", "integer", "null", "number", "object", "string"}
    kind = schema.get("type", [])
    for name in kind if isinstance(kind, list) else [kind]:
        if not isinstance(name, str) or name not in kinds:
            return f"{name!r:.80} is not a type"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return "required must be a list of strings"
    if not isinstance(schema.get("enum", []), list):
        return "enum must be a list"
    return None


def _nested_problem(schema: Mapping[str, Any], depth: int) -> str | None:
    nested = []
    for name in ("properties", "$defs", "definitions"):
        if name in schema:
            if not isinstance(schema[name], dict):
                return f"{name} must be an object"
            nested += schema[name].values()
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            if not isinstance(schema[name], list):
                return f"{name} must be a list"
            nested += schema[name]
    if isinstance(schema.get("items"), dict):
        nested.append(schema["items"])
    return next((problem for item in nested if (problem := schema_problem(item, depth + 1))), None)
