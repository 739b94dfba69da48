"""`POST /v1/chat/completions`: OpenAI's chat API with vLLM's and SGLang's extensions."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Parsed, Route
from stages.ingress.dialects.constraints import constrain, tool_grammar
from stages.ingress.dialects.fields import shown
from stages.ingress.dialects.grammars import read_format
from stages.ingress.dialects.openai_chat_answer import ChatEncoder
from stages.ingress.dialects.openai_common import (
    NOT_SERVED as COMMON_NOT_SERVED,
)
from stages.ingress.dialects.openai_common import (
    CommonBody,
    check_choices,
    check_model,
    check_stream_options,
    check_top,
    error_json,
    head,
    invalid,
    read_body,
    read_limits,
    read_sampling,
    refuse_unserved,
)
from stages.ingress.dialects.openai_messages import WireMessage, read_messages
from stages.ingress.dialects.openai_thinking import ThinkingBody, read_template
from stages.ingress.dialects.openai_tools import WireTool, read_tool_choice, read_tools
from stages.ingress.dialects.placement import place
from stages.ingress.dialects.prompt_logprobs import LogprobFields, check_logprob_ids, check_prompt_logprobs
from stages.messages import Ask, Chat, TextForm, Tool
from stages.settings import Bounds, ModelSettings

NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": (),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    "modalities": (["text"],),
    "echo": (False,),
    "input_ids": (),
    "mm_processor_kwargs": ({},),
    "add_special_tokens": (False,),
}


@frozen(kw_only=True)
class ChatBody(CommonBody, LogprobFields):
    """The body of a chat completion."""

    messages: list[Any] | None = field(default=None, metadata=shown(required=True, items=WireMessage, minItems=1))
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    return_token_ids: bool = False
    response_format: dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    tools: list[Any] | None = field(default=None, metadata=shown(items=WireTool))
    tool_choice: str | dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    parallel_tool_calls: bool = True
    metadata: dict[str, str] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    include_reasoning: bool = True
    rid: str | None = None


def parse(call: Call, model: ModelSettings) -> Parsed:
    """Return the chat completion asked for; raises RequestError naming the field."""
    body = read_body(ChatBody, call.body)
    _refuse(call.body, body)
    options = check_stream_options(body)
    tools = read_tools(body.tools)
    choice = read_tool_choice(body.tool_choice, tools)
    call_tools = choice.may_call
    if call_tools and model.tool_call_parser is None:
        raise invalid("tools", "This server has no tool call parser; send tool_choice none.", "unsupported_parameter")
    num_top = _num_top(body, model.bounds)
    num_prompt_top = check_prompt_logprobs(body, model.bounds, stream=body.stream)
    top = head(call, "chatcmpl", check_model(body.model, model), body.rid, body.request_id)
    ask = Ask(
        request_id=top.id,
        prompt=_chat(body, tools if call_tools else (), read_template(call.body)),
        sampling=read_sampling(body, model.default_sampling, model.bounds),
        penalties=model.default_penalties,
        limits=read_limits(body, _budget(body), model),
        form=TextForm(
            skip_special_tokens=body.skip_special_tokens,
            keep_stop=body.keep_stop(),
            parse_reasoning=body.separate_reasoning and model.reasoning_parser is not None,
            parse_tools=call_tools,
            stream_reasoning=body.stream_reasoning,
            tools=tools if call_tools else (),
        ),
        num_choices=check_choices(body.n, model.bounds),
        stream=body.stream,
        logprobs=body.logprobs,
        num_top_logprobs=max(num_top, num_prompt_top or 0),
        logprob_token_ids=check_logprob_ids(body, model, logprobs=body.logprobs),
        prompt_logprobs_from=None if num_prompt_top is None else 0,
    )
    calls = tool_grammar(choice, tools, model, is_parallel=body.parallel_tool_calls)
    ask = constrain(ask, body, model, read_format(body.response_format, "response_format"), calls)
    (ask,) = place((ask,), body, call)
    encoder = ChatEncoder(
        top,
        ask,
        model,
        options,
        show_reasoning=body.include_reasoning,
        max_calls=None if body.parallel_tool_calls else 1,
        nonce=f"{call.request_id} {call.created_s}",
        with_cache_details=body.return_cached_tokens_details,
        with_ids=body.return_token_ids,
        num_top=num_top,
        num_prompt_top=num_prompt_top,
        is_named=choice.is_named,
    )
    return Parsed((ask,), body.stream, encoder)


def _refuse(raw: Mapping[str, Any], body: ChatBody) -> None:
    if raw.get("chat_template") is not None:
        text = "Request-supplied chat_template is not allowed."
        raise invalid("chat_template", text, "unsupported_parameter")
    refuse_unserved(raw, NOT_SERVED)
    if body.add_generation_prompt and body.continue_final_message:
        text = "add_generation_prompt and continue_final_message cannot both be true."
        raise invalid("continue_final_message", text)
    if body.add_generation_prompt is False and not body.continue_final_message:
        text = "add_generation_prompt false is only supported with continue_final_message."
        raise invalid("add_generation_prompt", text, "unsupported_value")


def _chat(body: ChatBody, tools: tuple[Tool, ...], template: Mapping[str, Any]) -> Chat:
    messages = read_messages(body.messages or [])
    if body.continue_final_message and (messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls")):
        text = "continue_final_message needs a last message of role assistant without tool calls."
        raise invalid("continue_final_message", text)
    facts = {"tool_choice": body.tool_choice, "response_format": body.response_format}
    given = {name: value for name, value in facts.items() if value not in (None, {"type": "text"})}
    return Chat(messages, tools, template, body.continue_final_message, given)


def _budget(body: ChatBody) -> int | None:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    budget: int | None = getattr(body, name)
    if budget is not None and budget < 1:
        raise invalid(name, f"{name} must be at least 1, got {budget}.")
    return budget


def _num_top(body: ChatBody, bounds: Bounds) -> int:
    wanted = check_top("top_logprobs", body.top_logprobs, bounds)
    if wanted and not body.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true.")
    return wanted


def _error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    return error_json(error, status, request_id, "messages")


FORM = BodyForm((ChatBody, ThinkingBody), {**COMMON_NOT_SERVED, **NOT_SERVED, "chat_template": ()})

_MESSAGES = [{"role": "user", "content": "a"}]
_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
_ALL = {
    "messages": _MESSAGES,
    "tools": _TOOLS,
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "return_token_ids": True,
    "return_cached_tokens_details": True,
}
_USAGE = {"include_usage": True, "continuous_usage_stats": True}
SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"messages": _MESSAGES},
    _ALL,
    {**_ALL, "stream": True, "stream_options": _USAGE},
    {"messages": _MESSAGES, "tools": _TOOLS, "stream": True, "stream_options": {"include_usage": True}},
    {"messages": _MESSAGES, "prompt_logprobs": 1, "stream": False},
)

DIALECT = Dialect(
    name="openai_chat",
    routes=tuple(
        Route(path, form=FORM, samples=SAMPLES, data_keyed=frozenset({"prompt_logprobs"}))
        for path in ("/v1/chat/completions", "/invocations")
    ),
    parse=parse,
    error=_error,
)
