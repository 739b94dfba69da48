"""OpenAI's chat messages to the neutral form of stages.messages.Chat: text only, arguments as mappings."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from attrs import field, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialects.fields import clean, clean_json, shown
from stages.ingress.dialects.openai_common import invalid, read_body

_ROLES = ("system", "developer", "user", "assistant", "tool")
_PART_KEY = {"text": "text", "refusal": "refusal"}


@frozen(kw_only=True)
class WireFunction:
    """tool_calls[].function of a past turn; arguments are JSON text, or the object itself as many clients have it."""

    name: str
    arguments: str | dict[str, Any] = ""


@frozen(kw_only=True)
class WireCustom:
    """tool_calls[].custom of a past turn."""

    name: str
    input: str = ""


@frozen(kw_only=True)
class WireToolCall:
    """A past turn's tool call."""

    id: str = ""
    type: str = "function"
    function: WireFunction | None = None
    custom: WireCustom | None = None


@frozen(kw_only=True)
class WireMessage:
    """A message as sent; reasoning is vLLM's name of reasoning_content."""

    role: str = field(metadata=shown(enum=list(_ROLES)))
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None


def read_messages(raw: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the messages in neutral form; raises InvalidRequest naming the path of what is wrong."""
    if not raw:
        raise invalid("messages", "Messages cannot be empty.")
    return tuple(_message(item, f"messages.{index}") for index, item in enumerate(raw))


def _message(raw: Any, path: str) -> dict[str, Any]:
    wire = read_body(WireMessage, raw, path)
    role = wire.role.lower()
    if role not in _ROLES:
        raise invalid(f"{path}.role", f"Role '{wire.role[:64]}' is not supported.", "unsupported_value")
    message: dict[str, Any] = {"role": role, "content": _content(wire, role, f"{path}.content")}
    if isinstance(message["content"], list):
        message |= _joined(message["content"])
    if wire.name is not None:
        message["name"] = wire.name
    if role == "assistant":
        _add_assistant_fields(message, wire, path)
    if role == "tool":
        if not wire.tool_call_id:
            raise invalid(f"{path}.tool_call_id", "A message of role tool needs a tool_call_id.")
        message["tool_call_id"] = wire.tool_call_id
    return message


def _joined(texts: list[str]) -> dict[str, Any]:
    """Return texts as one content, and apart where there are several: how they join is the template's to say."""
    return {"content": "".join(texts), **({"parts": texts} if len(texts) > 1 else {})}


def _content(wire: WireMessage, role: str, path: str) -> str | list[str] | None:
    if wire.content is None:
        return wire.refusal if role == "assistant" else None
    if isinstance(wire.content, str):
        return wire.content
    return [_part(part, role, f"{path}.{index}") for index, part in enumerate(wire.content)]


def _part(part: Mapping[str, Any], role: str, path: str) -> str:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{path}.type", f"{path}.type must be a string.")
    if kind not in _PART_KEY or (kind == "refusal" and role != "assistant"):
        problem = f"Model only supports text input; received unsupported content type '{clean(kind[:64])}'."
        raise invalid(path, problem, "unsupported_value")
    text: Any = part.get(_PART_KEY[kind])
    if not isinstance(text, str):
        raise invalid(f"{path}.{_PART_KEY[kind]}", f"{path}.{_PART_KEY[kind]} must be a string.")
    return clean(text)


def _add_assistant_fields(message: dict[str, Any], wire: WireMessage, path: str) -> None:
    for name in ("function_call", "audio"):
        if getattr(wire, name) is not None:
            raise invalid(f"{path}.{name}", f"{name} in a message is not supported.", "unsupported_parameter")
    reasoning = wire.reasoning_content if wire.reasoning_content is not None else wire.reasoning
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if wire.tool_calls:
        message["tool_calls"] = [
            _tool_call(call, f"{path}.tool_calls.{index}") for index, call in enumerate(wire.tool_calls)
        ]


def _tool_call(call: WireToolCall, path: str) -> dict[str, Any]:
    if call.type == "custom" and call.custom is not None:
        return {"id": call.id, "name": call.custom.name, "arguments": {"input": call.custom.input}}
    if call.type not in ("function", "custom"):
        raise invalid(f"{path}.type", f"{path}.type must be function or custom.", "unsupported_value")
    if call.function is None:
        raise invalid(f"{path}.{call.type}", f"{path}.{call.type} is missing.")
    arguments = _arguments(call.function.arguments, f"{path}.function.arguments")
    return {"id": call.id, "name": call.function.name, "arguments": arguments}


def parse_arguments(text: str) -> Any:
    """Return the JSON value of a past call's arguments, {} for none; raises ValueError or RecursionError."""
    return clean_json(json.loads(text, parse_constant=_refuse_constant)) if text.strip() else {}


def _arguments(given: str | dict[str, Any], path: str) -> dict[str, Any]:
    try:
        value = parse_arguments(given) if isinstance(given, str) else clean_json(given)
    except (ValueError, RecursionError):
        raise _bad_arguments(path, "must be valid JSON.") from None
    if not isinstance(value, dict):
        raise _bad_arguments(path, "must be a JSON object.")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _bad_arguments(path: str, what: str) -> InvalidRequest:
    return invalid(path, f"Assistant tool call function.arguments {what}")
