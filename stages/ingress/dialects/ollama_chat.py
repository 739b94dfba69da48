"""`POST /api/chat`: Ollama's chat, streamed as lines of JSON unless stream is false."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Lookup, Parsed, Route
from stages.ingress.dialects.fields import clean_json, shown
from stages.ingress.dialects.ollama_answer import OllamaEncoder
from stages.ingress.dialects.ollama_common import (
    NDJSON,
    NOT_SERVED,
    OPTIONS_NOT_SERVED,
    OllamaBody,
    Options,
    check_name,
    check_top_logprobs,
    constrain,
    read_limits,
    read_sampling,
    read_think,
    refuse_unserved,
)
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.ingress.dialects.openai_tools import WireTool, read_tools
from stages.ingress.dialects.placement import place
from stages.ingress.error_bodies import ollama_error
from stages.ingress.instants import rfc3339
from stages.messages import Ask, Chat, TextForm
from stages.settings import ModelSettings

ROLES = ("system", "user", "assistant", "tool")


@frozen(kw_only=True)
class WireFunction:
    """tool_calls[].function of a past turn."""

    name: str
    arguments: dict[str, Any] | None = None


@frozen(kw_only=True)
class WireToolCall:
    """A past turn's tool call."""

    function: WireFunction
    id: str = ""


@frozen(kw_only=True)
class WireMessage:
    """A message as sent; tool_name is not shown to the model, whose template tells results by their order."""

    role: str = field(metadata=shown(enum=list(ROLES)))
    content: str = ""
    thinking: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    images: list[Any] | None = None


@frozen(kw_only=True)
class ChatBody(OllamaBody):
    """The body of /api/chat."""

    messages: list[Any] | None = field(default=None, metadata=shown(items=WireMessage))
    tools: list[Any] | None = field(default=None, metadata=shown(items=WireTool))


def parse(call: Call, model: ModelSettings) -> Parsed | Lookup:
    """Return the chat asked for, or the answer to a call without messages, which only loads the model elsewhere."""
    body = read_body(ChatBody, call.body)
    refuse_unserved(call.body)
    name = check_name(body.model, model)
    tools = read_tools(body.tools)
    if tools and model.tool_call_parser is None:
        raise invalid("tools", f'"{model.served_model_name}" does not support tools', "unsupported_parameter")
    options = body.options or Options()
    messages = tuple(_message(item, f"messages.{index}") for index, item in enumerate(body.messages or ()))
    ask = Ask(
        request_id=call.request_id,
        prompt=Chat(messages, tools, read_think(body.think, model)),
        sampling=read_sampling(options, model.default_sampling),
        penalties=model.default_penalties,
        limits=read_limits(options),
        form=TextForm(
            parse_reasoning=model.reasoning_parser is not None,
            parse_tools=bool(tools),
            tools=tools,
        ),
        stream=body.stream,
        logprobs=body.logprobs,
        num_top_logprobs=check_top_logprobs(body),
    )
    ask = constrain(ask, body, model)
    (ask,) = place((ask,), body, call)
    if not messages:
        answer = {
            "model": name,
            "created_at": rfc3339(call.created_s),
            "message": {"role": "assistant", "content": ""},
            "done_reason": "load",
            "done": True,
        }
        return Lookup((), lambda _: answer)
    return Parsed((ask,), body.stream, OllamaEncoder(call, ask, name, "message"))


def _message(raw: Any, path: str) -> dict[str, Any]:
    wire = read_body(WireMessage, raw, path)
    if wire.role not in ROLES:
        raise invalid(f"{path}.role", f"{path}.role must be one of {', '.join(ROLES)}.")
    if wire.images:
        raise invalid(f"{path}.images", f"{path}.images is not supported by this server.", "unsupported_parameter")
    message: dict[str, Any] = {"role": wire.role, "content": wire.content}
    if wire.role == "assistant":
        if wire.thinking is not None:
            message["reasoning_content"] = wire.thinking
        if wire.tool_calls:
            message["tool_calls"] = [_call(one, index) for index, one in enumerate(wire.tool_calls)]
    if wire.role == "tool" and wire.tool_call_id:
        message["tool_call_id"] = wire.tool_call_id
    return message


def _call(call: WireToolCall, index: int) -> dict[str, Any]:
    arguments = clean_json(call.function.arguments or {})
    return {"id": call.id or f"call_{index}", "name": call.function.name, "arguments": arguments}


_MESSAGES = [{"role": "user", "content": "a"}]
SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"messages": _MESSAGES},
    {"messages": []},
    {
        "messages": _MESSAGES,
        "tools": [{"type": "function", "function": {"name": name}} for name in ("f", "g")],
        "logprobs": True,
        "top_logprobs": 2,
    },
)
ROUTE = Route(
    "/api/chat",
    form=BodyForm((ChatBody,), NOT_SERVED, {Options: OPTIONS_NOT_SERVED}),
    samples=SAMPLES,
    data_keyed=frozenset({"arguments"}),
)

DIALECT = Dialect(
    name="ollama_chat",
    routes=(ROUTE,),
    parse=parse,
    error=ollama_error,
    json_only=False,
    ping=None,
    stream_type=NDJSON,
)
