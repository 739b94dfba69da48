"""`POST /v1/messages`: Anthropic's Messages API.

What a client sends and this server has no use for (cache_control, context_management, service_tier, betas, headers of
versions and betas, whatever comes next) is ignored, since clients of the day break otherwise; what would change the
answer and is not served is refused by name.
"""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Parsed, Route
from stages.ingress.dialects.anthropic_answer import PING, MessageEncoder, MessageHead, error_json
from stages.ingress.dialects.anthropic_blocks import Blocks
from stages.ingress.dialects.anthropic_input import WireMessage, read_conversation
from stages.ingress.dialects.anthropic_tools import WireTool, WireToolChoice, read_tool_choice, read_tools
from stages.ingress.dialects.common import MAX_STOP_STRINGS, derived_id
from stages.ingress.dialects.constraints import ConstraintFields, constrain, tool_grammar
from stages.ingress.dialects.fields import shown
from stages.ingress.dialects.grammars import Found, read_format
from stages.ingress.dialects.openai_common import (
    NOT_SERVED as COMMON_NOT_SERVED,
)
from stages.ingress.dialects.openai_common import (
    CommonBody,
    check_model,
    invalid,
    read_body,
    read_limits,
    read_sampling,
    refuse_unserved,
)
from stages.ingress.dialects.openai_thinking import read_template
from stages.ingress.dialects.placement import MAX_NAME_CHARACTERS, PlacementFields, place
from stages.messages import Ask, Chat, TextForm
from stages.settings import ModelSettings

MIN_THINKING_BUDGET = 1024
EFFORTS = ("low", "medium", "high", "xhigh", "max")
SESSION_HEADER = "x-claude-code-session-id"

NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "mcp_servers": ([],),
    "n": (1,),
    "stop": ([], ""),
    "stop_regex": ([], ""),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "return_token_ids": (False,),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
}


@frozen(kw_only=True)
class WireThinking:
    """thinking; budget_tokens is checked, and enforced with --structured-outputs."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


@frozen(kw_only=True)
class WireOutputConfig:
    """output_config; its task_budget is ignored."""

    effort: str | None = None
    format: dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))


@frozen(kw_only=True)
class PromptBody(PlacementFields, ConstraintFields):
    """What /v1/messages and count_tokens share: Anthropic's fields but the limit, then our own."""

    model: str = ""
    messages: list[Any] | None = field(default=None, metadata=shown(required=True, items=WireMessage, minItems=1))
    system: str | list[Any] | None = None
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: WireThinking | None = None
    tools: list[Any] | None = field(default=None, metadata=shown(items=WireTool))
    tool_choice: WireToolChoice | None = field(default=None, metadata=shown(needs="structured_outputs"))
    output_config: WireOutputConfig | None = None
    output_format: dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    seed: int | None = None
    min_p: float | None = None
    min_tokens: int = 0
    stop_token_ids: list[int | None] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True


@frozen(kw_only=True)
class MessagesBody(PromptBody):
    """The body of a message; max_tokens is required."""

    max_tokens: int | None = field(default=None, metadata=shown(required=True, minimum=1))


def parse(call: Call, model: ModelSettings) -> Parsed:
    """Return the message asked for; raises RequestError naming the field."""
    body = read_body(MessagesBody, call.body)
    if body.max_tokens is None:
        raise invalid("max_tokens", "max_tokens is required.")
    if body.max_tokens < 1:
        raise invalid("max_tokens", f"max_tokens must be at least 1, got {body.max_tokens}.")
    ask = read_ask(body, call, model, body.max_tokens)
    head = MessageHead(
        ask.request_id,
        check_model(body.model, model),
        body.max_tokens,
        hides_thinking=_hides_thinking(body),
        own_stop=model.chat_stop,
    )
    return Parsed((ask,), body.stream, MessageEncoder(head, Blocks(1 if _one_call(body) else None)))


def read_ask(body: PromptBody, call: Call, model: ModelSettings, max_tokens: int | None) -> Ask:
    """Return what a body asks for; raises RequestError naming the field."""
    refuse_unserved(call.body, NOT_SERVED)
    check_model(body.model, model)
    template = _template(body, max_tokens)
    tools = read_tools(body.tools)
    choice = read_tool_choice(body.tool_choice, tools)
    may_call = choice.may_call
    if may_call and model.tool_call_parser is None:
        raise invalid("tools", "tools: this server has no tool call parser.", "unsupported_parameter")
    conversation = read_conversation(body.system, body.messages, tools)
    offered = tools if may_call else ()
    options = CommonBody(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        min_tokens=body.min_tokens,
        stop=_stop_sequences(body),
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
    )
    ask = Ask(
        request_id=f"msg_{call.request_id}",
        prompt=Chat(conversation.messages, offered, template, conversation.continues),
        sampling=read_sampling(options, model.default_sampling, model.bounds),
        penalties=model.default_penalties,
        # As Anthropic's own models take it: claude-code asks for 32,000 tokens whatever the context holds.
        limits=evolve(read_limits(options, max_tokens, model), may_shrink=True),
        form=TextForm(
            skip_special_tokens=body.skip_special_tokens,
            parse_reasoning=model.reasoning_parser is not None,
            parse_tools=may_call,
            tools=offered,
        ),
        stream=body.stream,
        tells_start=body.stream,
        thinking_budget_tokens=_thinking_budget(body, model),
    )
    calls = tool_grammar(choice, tools, model, is_parallel=not _one_call(body))
    ask = constrain(ask, body, model, _format(body), calls)
    (placed,) = place((ask,), body, call)
    return placed if placed.session is not None else evolve(placed, session=_session(body, call))


def _stop_sequences(body: PromptBody) -> list[str]:
    stop = body.stop_sequences or []
    if len(stop) > MAX_STOP_STRINGS:
        text = f"stop_sequences must have at most {MAX_STOP_STRINGS} strings, got {len(stop)}."
        raise invalid("stop_sequences", text)
    for index, text in enumerate(stop):
        if not text.strip():
            raise invalid(f"stop_sequences.{index}", f"stop_sequences.{index} must hold more than whitespace.")
    return stop


def _session(body: PromptBody, call: Call) -> str | None:
    """Return who is talking, for want of a named session: claude-code's session or the client's user."""
    named = call.headers.get(SESSION_HEADER) or (body.metadata or {}).get("user_id")
    if not isinstance(named, str) or not named:
        return None
    return named if len(named) <= MAX_NAME_CHARACTERS else derived_id(named)


# ---------------------------------------------------------------------------------------------------------------------
# Thinking and effort: to the template's switches; chat_template_kwargs has the last word
# ---------------------------------------------------------------------------------------------------------------------


def _template(body: PromptBody, max_tokens: int | None) -> dict[str, Any]:
    switches: dict[str, Any] = {}
    if body.thinking is not None:
        switches["enable_thinking"] = _check_thinking(body.thinking, max_tokens)
    config = body.output_config or WireOutputConfig()
    if config.effort is not None:
        if config.effort not in EFFORTS:
            raise invalid("output_config.effort", f"output_config.effort must be one of {', '.join(EFFORTS)}.")
        switches["reasoning_effort"] = config.effort
    return switches | read_template({"chat_template_kwargs": body.chat_template_kwargs})


def _check_thinking(thinking: WireThinking, max_tokens: int | None) -> bool:
    """Say whether thinking is on; raises InvalidRequest for a type or a budget that makes no sense."""
    name, budget = "thinking.budget_tokens", thinking.budget_tokens
    if thinking.type == "enabled":
        if budget is None:
            raise invalid(name, f"{name} is required when thinking is enabled.")
        if budget < MIN_THINKING_BUDGET:
            raise invalid(name, f"{name} must be at least {MIN_THINKING_BUDGET}, got {budget}.")
        if max_tokens is not None and budget >= max_tokens:
            raise invalid(name, f"{name} must be less than max_tokens ({max_tokens}), got {budget}.")
        return True
    if thinking.type not in ("disabled", "adaptive", "between_tools"):
        raise invalid("thinking.type", "thinking.type must be enabled, disabled, adaptive or between_tools.")
    if thinking.type == "adaptive" and budget is not None:
        raise invalid(name, f"{name} is not allowed when thinking is adaptive.")
    return thinking.type != "disabled"


def _thinking_budget(body: PromptBody, model: ModelSettings) -> int | None:
    """Return the budget of thinking where it can be kept to; clients always send one, so it is never refused."""
    if body.thinking is None or body.thinking.type != "enabled" or not model.structured_outputs:
        return None
    return body.thinking.budget_tokens


def _format(body: PromptBody) -> Found | None:
    """Return what output_config.format asks for, under its older name too; raises InvalidRequest for both."""
    newer = body.output_config.format if body.output_config is not None else None
    if newer is not None and body.output_format is not None:
        raise invalid("output_format", "output_config.format and output_format cannot both be given.")
    if body.output_format is not None:
        return read_format(body.output_format, "output_format", is_flat=True)
    return read_format(newer, "output_config.format", is_flat=True)


def _one_call(body: PromptBody) -> bool:
    return body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use


def _hides_thinking(body: PromptBody) -> bool:
    return body.thinking is not None and body.thinking.display == "omitted"


REFUSED = {**COMMON_NOT_SERVED, **NOT_SERVED}

_MESSAGES = [{"role": "user", "content": "a"}]
SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"max_tokens": 9, "messages": _MESSAGES},
    {"max_tokens": 9, "messages": _MESSAGES, "tools": [{"name": name, "input_schema": {}} for name in ("f", "g")]},
)
ROUTE = Route("/v1/messages", form=BodyForm((MessagesBody,), REFUSED), samples=SAMPLES, data_keyed=frozenset({"input"}))

DIALECT = Dialect(
    name="anthropic_messages",
    routes=(ROUTE,),
    parse=parse,
    error=error_json,
    ping=PING,
)
