"""Tools of the Responses API: flat functions, custom tools and namespaces, as functions the model can be shown.

A custom tool takes free text. The model is shown a function with one string parameter, `input`, and the call it makes
is told as a custom tool call again. A namespace's functions are shown as `namespace__name`. Tools the API's own
platform would run (web search, shells and their kind) are never shown: agents send them by default, whether or not a
server has them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from stages.ingress.dialects.constraints import ToolChoice
from stages.ingress.dialects.fields import clean, clean_json
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.ingress.dialects.openai_tools import MAX_NAME_CHARACTERS, allowed, schema_problem
from stages.messages import Tool

CUSTOM_INPUT = "input"


@frozen(kw_only=True)
class WireFormat:
    """tools[].format of a custom tool: plain text, or text of a grammar, which the model is told of."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


@frozen(kw_only=True)
class WireTool:
    """tools[] of a kind that is served; strict has no effect without --structured-outputs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: WireFormat | None = None


@frozen(kw_only=True)
class WireNamespace:
    """tools[] of type namespace."""

    name: str
    tools: list[Any]


@frozen
class Declared:
    """A tool as the client named it, and as the model is shown it."""

    name: str
    tool: Tool
    is_custom: bool = False
    namespace: str | None = None


Catalog = Mapping[str, Declared]


def flat_name(name: str, namespace: str | None) -> str:
    """Return the name the model knows a tool by."""
    return f"{namespace}__{name}" if namespace else name


def read_catalog(lists: Iterable[tuple[str, Sequence[Any]]]) -> Catalog:
    """Return the tools to show, by the model's name for them, from (path, tools) lists; raises InvalidRequest.

    A name twice in one list is an error that names the path; in a later list it replaces the earlier tool.
    """
    catalog: dict[str, Declared] = {}
    for path, tools in lists:
        seen: set[str] = set()
        for index, raw in enumerate(tools):
            for one in _read(raw, f"{path}.{index}"):
                if one.tool.name in seen:
                    raise invalid(f"{path}.{index}.name", f"Tool name '{one.tool.name}' is used more than once.")
                seen.add(one.tool.name)
                catalog[one.tool.name] = one
    return catalog


def read_tool_choice(choice: str | dict[str, Any] | None, catalog: Catalog) -> ToolChoice:
    """Return which tools, by the model's names, may or must be called; raises InvalidRequest."""
    if choice is None or choice == "auto":
        return ToolChoice(may_call=bool(catalog))
    if choice == "none":
        return ToolChoice(may_call=False)
    if choice == "required":
        if not catalog:
            text = 'tool_choice "required" needs at least one tool of type function or custom.'
            raise invalid("tool_choice", text)
        return ToolChoice(may_call=True, is_required=True)
    if isinstance(choice, str):
        raise invalid("tool_choice", "tool_choice must be none, auto, required or an object naming a tool.")
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return ToolChoice(may_call=True, is_required=True, names=_named(choice, catalog, "tool_choice"), is_named=True)
    if kind == "allowed_tools":
        listed: Any = choice.get("tools")
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise invalid("tool_choice.tools", "tool_choice.tools must be a list of objects.")
        names = [name for i, item in enumerate(listed) for name in _named(item, catalog, f"tool_choice.tools.{i}")]
        return allowed(choice.get("mode"), names, list(catalog), "tool_choice")
    if not isinstance(kind, str):
        raise invalid("tool_choice.type", "tool_choice.type must be a string.")
    text = f"tool_choice of type {clean(kind[:MAX_NAME_CHARACTERS])} is not supported by this server."
    raise invalid("tool_choice", text, "unsupported_value")


def _named(spec: Mapping[str, Any], catalog: Catalog, path: str) -> tuple[str, ...]:
    """Return the model's names of the tools that a client's name stands for, one in each namespace that has it."""
    kind, name = spec.get("type"), spec.get("name")
    if kind not in ("function", "custom"):
        raise invalid(f"{path}.type", f"{path}.type must be function or custom.", "unsupported_value")
    if not isinstance(name, str):
        raise invalid(f"{path}.name", f"{path}.name must be a string.")
    found = [shown for shown, one in catalog.items() if one.name == name and one.is_custom == (kind == "custom")]
    namespace = spec.get("namespace")
    if namespace is not None:
        found = [shown for shown in found if catalog[shown].namespace == namespace]
    if not found:
        text = f"Tool '{clean(name[:MAX_NAME_CHARACTERS])}' of type {kind} not found in tools."
        raise invalid("tool_choice", text)
    return tuple(found)


def _read(raw: Any, path: str, namespace: str | None = None) -> list[Declared]:
    if not isinstance(raw, dict):
        raise invalid(path, f"{path} must be an object.")
    kind = raw.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{path}.type", f"{path}.type must be a string.")
    if kind == "namespace" and namespace is None:
        group = read_body(WireNamespace, raw, path)
        _check_name(group.name, path)
        inner = enumerate(group.tools)
        return [one for index, tool in inner for one in _read(tool, f"{path}.tools.{index}", group.name)]
    if kind not in ("function", "custom"):
        return []
    wire = read_body(WireTool, raw, path)
    _check_name(wire.name, path)
    shown = flat_name(wire.name, namespace)
    parameters = _custom_parameters() if kind == "custom" else _parameters(wire, path)
    description = _custom_description(wire) if kind == "custom" else wire.description
    definition: dict[str, Any] = {"name": shown}
    if description is not None:
        definition["description"] = description
    if parameters is not None:
        definition["parameters"] = parameters
    tool = Tool(shown, definition, parameters, is_strict=wire.strict is True)
    return [Declared(wire.name, tool, kind == "custom", namespace)]


def _check_name(name: str, path: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise invalid(f"{path}.name", f"A tool's name must have 1 to {MAX_NAME_CHARACTERS} characters.")


def _parameters(wire: WireTool, path: str) -> dict[str, Any] | None:
    if wire.parameters is None:
        return None
    if problem := schema_problem(wire.parameters):
        raise invalid(f"{path}.parameters", f"Tool '{wire.name}' has an invalid 'parameters' schema: {problem}")
    cleaned: dict[str, Any] = clean_json(wire.parameters)
    return cleaned


def _custom_parameters() -> dict[str, Any]:
    text = {"type": "string", "description": "The tool's whole input, as plain text."}
    return {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}


def _custom_description(wire: WireTool) -> str:
    parts = [wire.description] if wire.description else []
    if wire.format is not None and wire.format.definition:
        syntax = wire.format.syntax or "given"
        parts.append(f"The input must match this {syntax} grammar:\n{wire.format.definition}")
    return "\n\n".join(parts)
