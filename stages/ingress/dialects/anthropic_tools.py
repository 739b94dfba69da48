"""Anthropic's tools and tool_choice to neutral tools."""

from typing import Any

from attrs import frozen

from stages.ingress.dialects.constraints import ToolChoice
from stages.ingress.dialects.fields import clean, clean_json
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.ingress.dialects.openai_tools import MAX_NAME_CHARACTERS, schema_problem
from stages.messages import Tool


@frozen(kw_only=True)
class WireTool:
    """A tool as sent; strict has no effect without --structured-outputs, other keys are Anthropic's own affair."""

    name: str
    input_schema: dict[str, Any]
    type: str = "custom"
    description: str | None = None
    defer_loading: bool = False
    strict: bool | None = None


@frozen(kw_only=True)
class WireToolChoice:
    """tool_choice."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool = False


def read_tools(raw: list[Any] | None) -> tuple[Tool, ...]:
    """Return the tools in order; raises InvalidRequest naming the path of what is wrong."""
    tools = tuple(_tool(item, f"tools.{index}") for index, item in enumerate(raw or ()))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"tools.{index}.name", f"tools.{index}.name: the name '{tool.name}' is used more than once.")
        seen.add(tool.name)
    return tools


def read_tool_choice(choice: WireToolChoice | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """Return which tools may or must be called; raises InvalidRequest for a choice that is wrong."""
    if choice is None or choice.type == "auto":
        return ToolChoice(may_call=bool(tools))
    if choice.type == "none":
        return ToolChoice(may_call=False)
    if choice.type not in ("any", "tool"):
        raise invalid("tool_choice.type", "tool_choice.type must be auto, any, tool or none.")
    if choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice.name", "tool_choice.name must be a string.")
        if choice.name not in {tool.name for tool in tools}:
            raise invalid("tool_choice.name", f"tool_choice.name: there is no tool '{choice.name[:128]}' in tools.")
    if not tools:
        raise invalid("tool_choice", f"tool_choice of type {choice.type} needs tools.")
    if choice.type == "tool":
        return ToolChoice(may_call=True, is_required=True, names=(choice.name or "",), is_named=True)
    return ToolChoice(may_call=True, is_required=True)


def _tool(raw: Any, path: str) -> Tool:
    if not isinstance(raw, dict):
        raise invalid(path, f"{path} must be an object.")
    kind = raw.get("type")
    if kind not in (None, "custom"):
        text = f"{path}.type must be custom: this server runs no tools of its own, got '{clean(str(kind)[:64])}'."
        raise invalid(f"{path}.type", text, "unsupported_value")
    wire = read_body(WireTool, raw, path)
    if not 1 <= len(wire.name) <= MAX_NAME_CHARACTERS:
        raise invalid(f"{path}.name", f"{path}.name must have 1 to {MAX_NAME_CHARACTERS} characters.")
    if problem := schema_problem(wire.input_schema):
        raise invalid(f"{path}.input_schema", f"{path}.input_schema is no JSON schema: {problem}")
    schema = clean_json(wire.input_schema)
    return Tool(wire.name, _definition(wire, schema), schema, is_strict=wire.strict is True)


def _definition(wire: WireTool, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the function as the model was trained to see it, without keys that change from turn to turn."""
    definition: dict[str, Any] = {"name": wire.name}
    if wire.description is not None:
        definition["description"] = wire.description
    definition["parameters"] = schema if "type" in schema else {"type": "object", **schema}
    if wire.defer_loading:
        definition["defer_loading"] = True
    return definition
