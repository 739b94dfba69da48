"""`POST /v1/chat/completions`: OpenAI's chat API with vLLM's and SGLang's extensions.

A stream is, for each choice: the role chunk, reasoning, content, tool calls (name once, then argument pieces), the
finish chunk; at the end the usage chunk if asked for, and [DONE]. Joined, it equals the whole answer field by field;
logprob entries whose text shows in no chunk ride on the next one.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from attrs import define, field, frozen

from stages.ingress.dialect import Call, Collected, Dialect, Parsed, Route
from stages.ingress.dialects.choices import Calls, Choice, Tally, finite, fold, tally, token_text
from stages.ingress.dialects.openai_common import (
    DONE,
    MAX_TOP_LOGPROBS,
    WEIGHT_VERSION,
    CommonBody,
    Head,
    StreamOptions,
    call_id,
    check_choices,
    check_model,
    check_stream_options,
    error_frames,
    error_json,
    frame,
    head,
    invalid,
    raise_refusal,
    read_body,
    read_limits,
    read_sampling,
    refuse_unserved,
    stop_reason,
    usage_json,
)
from stages.ingress.dialects.openai_messages import read_messages
from stages.ingress.dialects.openai_thinking import read_template
from stages.ingress.dialects.openai_tools import check_tool_choice, read_tools
from stages.messages import Ask, Chat, Delta, Ended, Event, Finish, Prompt, TextForm, TokenLogprob, Tool, ToolCallDelta
from stages.settings import ModelSettings

CHUNK = "chat.completion.chunk"

_NOT_SERVED: Mapping[str, tuple[object, ...]] = {
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
class ChatBody(CommonBody):
    """The body of a chat completion."""

    messages: list[Any] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
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
    call_tools = check_tool_choice(body.tool_choice, tools)
    if call_tools and model.tool_call_parser is None:
        raise invalid("tools", "This server has no tool call parser; send tool_choice none.", "unsupported_parameter")
    top = head(call, "chatcmpl", check_model(body.model, model), body.rid, body.request_id)
    ask = Ask(
        request_id=top.id,
        prompt=_chat(body, tools if call_tools else (), read_template(call.body)),
        sampling=read_sampling(body, model.default_sampling),
        limits=read_limits(body, _budget(body), model),
        form=TextForm(
            skip_special_tokens=body.skip_special_tokens,
            keep_stop=body.keep_stop(),
            parse_reasoning=body.separate_reasoning and model.reasoning_parser is not None,
            parse_tools=call_tools,
            stream_reasoning=body.stream_reasoning,
            tools=tools if call_tools else (),
        ),
        num_choices=check_choices(body.n),
        stream=body.stream,
        logprobs=body.logprobs,
        num_top_logprobs=_num_top(body),
        priority=body.priority,
    )
    encoder = ChatEncoder(
        top,
        ask,
        model,
        options,
        show_reasoning=body.include_reasoning,
        max_calls=None if body.parallel_tool_calls else 1,
        nonce=f"{call.request_id} {call.created_s}",
    )
    return Parsed((ask,), body.stream, encoder)


def _refuse(raw: Mapping[str, Any], body: ChatBody) -> None:
    if raw.get("chat_template") is not None:
        text = "Request-supplied chat_template is not allowed."
        raise invalid("chat_template", text, "unsupported_parameter")
    refuse_unserved(raw, _NOT_SERVED)
    if body.response_format is not None and (kind := body.response_format.get("type")) != "text":
        if kind not in ("json_object", "json_schema", "structural_tag"):
            raise invalid("response_format.type", "response_format.type must be text, json_object or json_schema.")
        text = f"response_format of type {kind} is not supported by this server."
        raise invalid("response_format", text, "unsupported_value")
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
    return Chat(messages, tools, template, body.continue_final_message)


def _budget(body: ChatBody) -> int | None:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    budget: int | None = getattr(body, name)
    if budget is not None and budget < 1:
        raise invalid(name, f"{name} must be at least 1, got {budget}.")
    return budget


def _num_top(body: ChatBody) -> int:
    wanted = body.top_logprobs or 0
    if not 0 <= wanted <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, got {wanted}.")
    if wanted and not body.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true.")
    return wanted


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


@define
class _Streamed:
    """What a stream remembers of one choice: its calls, and what waits for the next chunk."""

    calls: Calls = field(factory=Calls)
    logprobs: list[TokenLogprob] = field(factory=list)
    reasoning: list[str] = field(factory=list)


@define(eq=False)
class ChatEncoder:
    """Events to chat completion chunks, or to one chat completion.

    max_calls 1 is parallel_tool_calls false: later calls are generated and left out. The nonce keeps the ids of calls
    apart when a client uses one rid for every turn of a conversation.
    """

    top: Head
    ask: Ask
    model: ModelSettings
    options: StreamOptions
    show_reasoning: bool
    max_calls: int | None
    nonce: str
    counts: Tally = field(factory=Tally)
    streamed: list[_Streamed] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.streamed = [_Streamed() for _ in range(self.ask.num_choices)]

    def start(self) -> list[bytes]:
        """Return the role chunk of every choice in rising order."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(choice, delta) for choice in range(self.ask.num_choices)]

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the chunks of one event."""
        self.counts.add(ask_index, len(prompt.token_ids), event)
        if isinstance(event, Ended):
            return self._ended(event)
        choice = self.streamed[event.choice]
        choice.logprobs.extend(event.logprobs)
        return [self._chunk(event.choice, delta, self._logprobs(choice)) for delta in self._deltas(choice, event)]

    def finish(self) -> list[bytes]:
        """Return the usage chunk if asked for, and [DONE]."""
        if not self.options.include_usage:
            return [DONE]
        return [frame({**self.top.chunk(CHUNK, []), "usage": usage_json(self.counts.total())}), DONE]

    def failed(self, error: Exception) -> list[bytes]:
        """Return the error frame and [DONE]."""
        return error_frames(error, "messages")

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole answer."""
        choices = fold(collected[0], self.ask.num_choices)
        for choice in choices:
            raise_refusal(_finish(choice.finish))
        answer = self.top.chunk("chat.completion", [self._choice(i, choice) for i, choice in enumerate(choices)])
        answer["usage"] = usage_json(tally(collected))
        answer["system_fingerprint"] = None
        answer["metadata"] = {"weight_version": WEIGHT_VERSION}
        return HTTPStatus.OK, answer

    # -- a stream -----------------------------------------------------------------------------------------------------

    def _deltas(self, choice: _Streamed, event: Delta) -> list[dict[str, object]]:
        if event.reasoning and self.show_reasoning:
            choice.reasoning.append(event.reasoning)
        pieces = [piece for piece in event.tool_calls if self._is_kept(piece)]
        deltas: list[dict[str, object]] = []
        if choice.reasoning and (self.ask.form.stream_reasoning or event.text or pieces):
            deltas.append(_reasoning_delta(choice))
        if event.text:
            deltas.append({"content": event.text})
        for piece in pieces:
            choice.calls.add(piece)
            deltas.extend(self._call_deltas(event.choice, piece))
        return deltas

    def _call_deltas(self, choice: int, piece: ToolCallDelta) -> list[dict[str, object]]:
        deltas: list[dict[str, object]] = []
        if piece.name is not None:
            first = {
                "index": piece.index,
                "id": call_id(self.nonce, choice, piece.index),
                "type": "function",
                "function": {"name": piece.name, "arguments": ""},
            }
            deltas.append({"tool_calls": [first]})
        if piece.arguments:
            deltas.append({"tool_calls": [{"index": piece.index, "function": {"arguments": piece.arguments}}]})
        return deltas

    def _ended(self, event: Ended) -> list[bytes]:
        raise_refusal(event.finish)
        choice = self.streamed[event.choice]
        frames = []
        if choice.reasoning:
            frames.append(self._chunk(event.choice, _reasoning_delta(choice), self._logprobs(choice)))
        reason = finish_reason(event.finish, choice.calls)
        frames.append(self._chunk(event.choice, {}, self._logprobs(choice), self._end(event.finish, reason)))
        return frames

    def _logprobs(self, choice: _Streamed) -> dict[str, object] | None:
        """Return the entries that wait, once: the first chunk of several takes them."""
        if not choice.logprobs:
            return None
        entries, choice.logprobs = choice.logprobs, []
        return self._logprobs_json(entries)

    def _chunk(
        self,
        choice: int,
        delta: Mapping[str, object],
        logprobs: Mapping[str, object] | None = None,
        end: Mapping[str, object] | None = None,
    ) -> bytes:
        ending = end or {"finish_reason": None, "matched_stop": None}
        entry = {"index": choice, "delta": {"reasoning_content": None, **delta}, "logprobs": logprobs, **ending}
        chunk = self.top.chunk(CHUNK, [entry])
        if self.options.continuous_usage_stats:
            chunk["usage"] = usage_json(self.counts.total())
        elif self.options.include_usage:
            chunk["usage"] = None
        return frame(chunk)

    # -- a whole answer -----------------------------------------------------------------------------------------------

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        calls = Calls({n: call for n, call in choice.calls.by_index.items() if n < (self.max_calls or n + 1)})
        reasoning = "".join(choice.reasoning) if choice.reasoning and self.show_reasoning else None
        message: dict[str, object] = {
            "role": "assistant",
            "content": "".join(choice.text),
            "refusal": None,
            "reasoning_content": reasoning,
            "reasoning": reasoning,
        }
        if calls.by_index:
            message["tool_calls"] = [
                {
                    "id": call_id(self.nonce, index, n),
                    "index": n,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for n, call in sorted(calls.by_index.items())
            ]
        finish = _finish(choice.finish)
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs_json(choice.logprobs) if self.ask.logprobs else None,
            **self._end(finish, finish_reason(finish, calls)),
        }

    # -- both ---------------------------------------------------------------------------------------------------------

    def _is_kept(self, piece: ToolCallDelta) -> bool:
        return self.max_calls is None or piece.index < self.max_calls

    def _end(self, finish: Finish, reason: str) -> dict[str, object]:
        return {
            "finish_reason": reason,
            "matched_stop": None if reason == "tool_calls" else finish.matched,
            "stop_reason": stop_reason(finish, self.model),
        }

    def _logprobs_json(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        top = self.ask.num_top_logprobs
        content = [
            {
                **_token_json(entry.token_bytes, entry.logprob),
                "top_logprobs": [_token_json(other, logprob) for _, logprob, other in entry.top[:top]],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}


def finish_reason(finish: Finish, calls: Calls) -> str:
    """Return OpenAI's finish reason: tool_calls only after a natural stop with no call left incomplete."""
    return "tool_calls" if finish.kind == "stop" and calls.are_complete() else finish.kind


def _finish(finish: Finish | None) -> Finish:
    # Invariant: a choice is encoded only after its Ended, which is always its last event.
    assert finish is not None
    return finish


def _reasoning_delta(choice: _Streamed) -> dict[str, object]:
    text = "".join(choice.reasoning)
    choice.reasoning = []
    return {"reasoning_content": text, "reasoning": text}


def _token_json(token_bytes: bytes, logprob: float) -> dict[str, object]:
    return {"token": token_text(token_bytes), "logprob": finite(logprob), "bytes": list(token_bytes)}


def _error(error: Exception, status: int, request_id: str) -> dict[str, object]:
    return error_json(error, status, request_id, "messages")


DIALECT = Dialect(
    name="openai_chat",
    routes=(Route("/v1/chat/completions"), Route("/invocations")),
    parse=parse,
    error=_error,
)
