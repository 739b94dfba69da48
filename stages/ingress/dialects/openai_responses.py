"""`POST /v1/responses`: OpenAI's Responses API without its store; the whole conversation comes with every call."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from stages.ingress.dialect import BodyForm, Call, Dialect, Parsed, Route
from stages.ingress.dialects.constraints import constrain, tool_grammar
from stages.ingress.dialects.fields import clean_json, shown
from stages.ingress.dialects.grammars import read_format
from stages.ingress.dialects.openai_common import (
    NOT_SERVED as COMMON_NOT_SERVED,
)
from stages.ingress.dialects.openai_common import (
    CommonBody,
    check_model,
    check_request_id,
    check_top,
    error_json,
    invalid,
    read_body,
    read_limits,
    read_sampling,
    refuse_unserved,
)
from stages.ingress.dialects.openai_responses_answer import Output, ResponseEncoder, Showing
from stages.ingress.dialects.openai_responses_input import read_input
from stages.ingress.dialects.openai_responses_tools import read_catalog, read_tool_choice
from stages.ingress.dialects.openai_thinking import read_template
from stages.ingress.dialects.placement import place
from stages.messages import Ask, Chat, TextForm
from stages.settings import Bounds, ModelSettings

NOT_SERVED: Mapping[str, tuple[object, ...]] = {
    "previous_response_id": ("",),
    "conversation": (),
    "prompt": (),
    "store": (False,),
    "background": (False,),
    "logprobs": (False,),
    "n": (1,),
    "function_call": (),
    "echo": (False,),
    "return_token_ids": (False,),
    "input_ids": (),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
}

# Fields of the chat API, and what they are called here.
MOVED: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "functions": "tools",
}

ENCRYPTED_REASONING = "reasoning.encrypted_content"
OUTPUT_LOGPROBS = "message.output_text.logprobs"
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")


@frozen(kw_only=True)
class WireText:
    """text: the form of the answer; verbosity is taken and has no effect."""

    format: dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    verbosity: str | None = None


@frozen(kw_only=True)
class WireReasoning:
    """reasoning: its effort is read where every dialect's is; generate_summary is an older name of summary."""

    effort: str | float | None = None
    summary: str | None = None
    generate_summary: str | None = None


@frozen(kw_only=True)
class ResponsesBody(CommonBody):
    """The body of a response."""

    input: str | list[Any] | None = field(default=None, metadata=shown(required=True))
    instructions: str | None = None
    max_output_tokens: int | None = field(default=None, metadata=shown(minimum=1))
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    parallel_tool_calls: bool = True
    text: WireText | None = None
    reasoning: WireReasoning | None = None
    include: list[str] | None = None
    top_logprobs: int | None = field(default=None, metadata=shown(minimum=0))
    truncation: str | None = field(default=None, metadata=shown(enum=[None, "disabled", "auto"]))
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    rid: str | None = None


def parse(call: Call, model: ModelSettings) -> Parsed:
    """Return the response asked for; raises RequestError naming the field."""
    body = read_body(ResponsesBody, call.body)
    _refuse(call.body, body)
    if body.input is None:
        raise invalid("input", "input is required: a string or a list of items.")
    history = read_input(body.input, body.instructions)
    catalog = read_catalog([("tools", body.tools or []), *history.tools])
    choice = read_tool_choice(body.tool_choice, catalog)
    call_tools = choice.may_call
    if call_tools and model.tool_call_parser is None:
        raise invalid("tools", "This server has no tool call parser; send tool_choice none.", "unsupported_parameter")
    tools = tuple(one.tool for one in catalog.values()) if call_tools else ()
    ask = Ask(
        request_id=_response_id(body, call),
        prompt=Chat(history.messages(), tools, read_template(call.body)),
        sampling=read_sampling(body, model.default_sampling, model.bounds),
        penalties=model.default_penalties,
        limits=read_limits(body, _budget(body), model),
        form=TextForm(
            skip_special_tokens=body.skip_special_tokens,
            keep_stop=body.keep_stop(),
            parse_reasoning=model.reasoning_parser is not None,
            parse_tools=call_tools,
            tools=tools,
        ),
        stream=body.stream,
        logprobs=OUTPUT_LOGPROBS in (body.include or ()),
        num_top_logprobs=_num_top(body, model.bounds),
    )
    calls = tool_grammar(choice, tools, model, is_parallel=body.parallel_tool_calls)
    form = read_format(body.text.format if body.text is not None else None, "text.format", is_flat=True)
    ask = constrain(ask, body, model, form, calls)
    (ask,) = place((ask,), body, call)
    showing = Showing(
        catalog,
        nonce=f"{call.request_id} {call.created_s}",
        as_summary=_summary(body) is not None,
        with_blob=ENCRYPTED_REASONING in (body.include or ()),
        max_calls=None if body.parallel_tool_calls else 1,
        num_top=ask.num_top_logprobs,
    )
    response = _response(body, call, ask, check_model(body.model, model))
    encoder = ResponseEncoder(response, Output(showing), call.elapsed_s, body.return_cached_tokens_details)
    return Parsed((ask,), body.stream, encoder, ping=encoder.keepalive)


def _refuse(raw: Mapping[str, Any], body: ResponsesBody) -> None:
    if body.text is not None and body.text.verbosity not in (None, *VERBOSITIES):
        raise invalid("text.verbosity", f"text.verbosity must be one of {', '.join(VERBOSITIES)}.")
    for name, new_name in MOVED.items():
        if raw.get(name) is not None:
            text = f"{name} is not a field of the Responses API; use {new_name}."
            raise invalid(name, text, "unsupported_parameter")
    refuse_unserved(raw, NOT_SERVED)
    if body.truncation not in (None, "disabled", "auto"):
        raise invalid("truncation", "truncation must be disabled or auto.")


def _response_id(body: ResponsesBody, call: Call) -> str:
    """Return the answer's id, by which it can be aborted: the client's own as it stands, as SGLang has it."""
    for name, given in (("rid", body.rid), ("request_id", body.request_id)):
        if given:
            return check_request_id(name, given)
    return f"resp_{call.request_id}"


def _budget(body: ResponsesBody) -> int | None:
    budget = body.max_output_tokens
    if budget is not None and budget < 1:
        raise invalid("max_output_tokens", f"max_output_tokens must be at least 1, got {budget}.")
    return budget


def _num_top(body: ResponsesBody, bounds: Bounds) -> int:
    wanted = check_top("top_logprobs", body.top_logprobs, bounds)
    if wanted and OUTPUT_LOGPROBS not in (body.include or ()):
        raise invalid("top_logprobs", f"top_logprobs needs include to list {OUTPUT_LOGPROBS}.")
    return wanted


def _summary(body: ResponsesBody) -> str | None:
    if body.reasoning is None:
        return None
    for name in ("summary", "generate_summary"):
        wanted: str | None = getattr(body.reasoning, name)
        if wanted is not None and wanted not in SUMMARIES:
            raise invalid(f"reasoning.{name}", f"reasoning.{name} must be one of {', '.join(SUMMARIES)}.")
    return body.reasoning.summary or body.reasoning.generate_summary


def _response(body: ResponsesBody, call: Call, ask: Ask, model_name: str) -> dict[str, Any]:
    """Return the fields that are the same in every response object of the call: what was asked, and what was taken."""
    effort = body.reasoning.effort if body.reasoning is not None else None
    text: dict[str, Any] = {"format": clean_json((body.text and body.text.format) or {"type": "text"})}
    if body.text is not None and body.text.verbosity is not None:
        text["verbosity"] = body.text.verbosity
    return {
        "id": ask.request_id,
        "object": "response",
        "created_at": call.created_s,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model_name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": _summary(body)},
        "service_tier": None,
        "store": False,
        "background": False,
        "temperature": ask.sampling.temperature,
        "text": text,
        "tool_choice": clean_json(body.tool_choice) if body.tool_choice is not None else "auto",
        "tools": clean_json(body.tools or []),
        "top_logprobs": ask.num_top_logprobs,
        "top_p": ask.sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }


def _error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    return error_json(error, status, request_id, "input")


FORM = BodyForm((ResponsesBody,), {**COMMON_NOT_SERVED, **NOT_SERVED, **dict.fromkeys(MOVED, ())})

_ECHOED = {
    "instructions": "a",
    "max_output_tokens": 9,
    "max_tool_calls": 1,
    "metadata": {"a": "b"},
    "user": "a",
    "temperature": 0.5,
    "top_p": 0.5,
    "reasoning": {"effort": "high", "summary": "auto"},
    "include": [ENCRYPTED_REASONING, OUTPUT_LOGPROBS],
    "top_logprobs": 2,
    "return_cached_tokens_details": True,
}
SAMPLES: tuple[Mapping[str, Any], ...] = (
    {"input": "a"},
    {
        **_ECHOED,
        "input": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "g"}],
    },
    {**_ECHOED, "input": "a", "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]},
)
ROUTE = Route("/v1/responses", form=FORM, samples=SAMPLES, data_keyed=frozenset({"metadata", "tools", "tool_choice"}))

DIALECT = Dialect(name="openai_responses", routes=(ROUTE,), parse=parse, error=_error)
