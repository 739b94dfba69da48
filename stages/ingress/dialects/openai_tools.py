"""OpenAI's tools and tool_choice to neutral tools, and a light look at their schemas."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from stages.ingress.dialects.constraints import ToolChoice
from stages.ingress.dialects.fields import clean, clean_json, shown
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.messages import Tool

MAX_NAME_CHARACTERS = 128
MAX_SCHEMA_DEPTH = 64


@frozen(kw_only=True)
class WireFunction:
    """tools[].function; strict has no effect without --structured-outputs."""

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


def read_tool_choice(choice: str | dict[str, Any] | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """Return which tools may or must be called; raises InvalidRequest for a choice that is wrong or not served."""
    if choice is None or choice == "auto":
        return ToolChoice(may_call=bool(tools))
    if choice == "none":
        return ToolChoice(may_call=False)
    if choice == "required":
        if not tools:
            raise invalid("tool_choice", "Tools cannot be empty if tool choice is set to required.")
        return ToolChoice(may_call=True, is_required=True)
    if isinstance(choice, str):
        raise invalid("tool_choice", "tool_choice must be none, auto, required or an object naming a tool.")
    kind = choice.get("type")
    if kind == "function":
        name = _chosen_name(choice, "tool_choice")
        if not tools:
            raise invalid("tool_choice", "Tools cannot be empty if tool choice is set to a specific tool.")
        _check_known(name, tools)
        return ToolChoice(may_call=True, is_required=True, names=(name,), is_named=True)
    if kind == "allowed_tools":
        return _allowed_tools(choice.get("allowed_tools"), tools)
    if kind == "custom":
        text = "tool_choice of type custom is not supported by this server."
        raise invalid("tool_choice", text, "unsupported_value")
    raise invalid("tool_choice.type", "tool_choice.type must be function or allowed_tools.")


def allowed(mode: object, names: Sequence[str], known: Sequence[str], path: str) -> ToolChoice:
    """Return the choice of some of the known tools, all of them being no constraint; raises InvalidRequest."""
    if mode not in ("auto", "required"):
        raise invalid(f"{path}.mode", f"{path}.mode must be auto or required.")
    if not names:
        raise invalid(f"{path}.tools", f"{path}.tools must not be empty.")
    chosen = tuple(name for name in known if name in set(names))
    return ToolChoice(True, mode == "required", None if len(chosen) == len(known) else chosen)


def _allowed_tools(spec: Any, tools: tuple[Tool, ...]) -> ToolChoice:
    path = "tool_choice.allowed_tools"
    listed: Any = spec.get("tools") if isinstance(spec, dict) else None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise invalid(f"{path}.tools", f"{path}.tools must be a list of objects.")
    names = [_chosen_name(item, f"{path}.tools.{index}") for index, item in enumerate(listed)]
    for name in names:
        _check_known(name, tools)
    return allowed(spec.get("mode"), names, [tool.name for tool in tools], path)


def _check_known(name: str, tools: tuple[Tool, ...]) -> None:
    if name not in {tool.name for tool in tools}:
        raise invalid("tool_choice", f"Tool '{clean(name[:MAX_NAME_CHARACTERS])}' not found in tools list.")


def _chosen_name(choice: Mapping[str, Any], path: str) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid(f"{path}.function.name", f"{path}.function.name must be a string.")
    return name


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
    return Tool(wire.name, definition, definition.get("parameters"), is_strict=wire.strict is True)


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
