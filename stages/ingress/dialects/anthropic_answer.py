"""Answers of the Messages API: events to stream events, or to one message.

A stream is message_start and a ping, once the prompt has met the cache and before any of it is computed, so that its
input tokens are the real ones and come early; for each block content_block_start, its deltas, content_block_stop; then
message_delta and message_stop. There is no [DONE]. Joined, it equals the whole answer.

input_tokens are those the cache did not have: with cache_read_input_tokens they add up to the prompt, as
count_tokens counts it. Nothing is ever written to the cache at a price, so cache_creation_input_tokens is 0.
"""

from collections.abc import Iterable, Sequence
from http import HTTPStatus

import orjson
from attrs import define, field, frozen

from stages.errors import Aborted, ContextOverflow, InvalidRequest
from stages.ingress.dialect import Collected
from stages.ingress.dialects.anthropic_blocks import Block, Blocks, Change, Grew, Opened
from stages.ingress.dialects.choices import Calls
from stages.ingress.dialects.common import derived_id, event_frame
from stages.ingress.dialects.openai_common import raise_refusal
from stages.ingress.error_bodies import anthropic_error
from stages.messages import Ended, Event, Finish, Prompt, Usage

DELTA_OF_KIND = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}

CONTEXT_FULL = "model_context_window_exceeded"
PING = event_frame({"type": "ping"})


@frozen
class MessageHead:
    """What is known of an answer before it begins."""

    id: str
    model: str
    max_tokens: int
    # thinking.display omitted: thinking blocks are there, without their text.
    hides_thinking: bool = False
    # What ends the model's turns by itself, which no client asked for.
    own_stop: tuple[str, ...] = ()

    def message(self, content: list[object], finish: dict[str, object], usage: dict[str, object]) -> dict[str, object]:
        """Return a message object of this head."""
        top: dict[str, object] = {"id": self.id, "type": "message", "role": "assistant", "model": self.model}
        return {**top, "content": content, **finish, "stop_details": None, "usage": usage}

    def stop(self, ended: Ended, calls: Calls) -> dict[str, object]:
        """Return stop_reason and stop_sequence; a stop string found is told even where calls came before it."""
        finish = ended.finish
        if finish.kind == "length":
            # Fewer than were asked for: there was no room for more in the context.
            is_full = ended.usage.completion_tokens < self.max_tokens
            return {"stop_reason": CONTEXT_FULL if is_full else "max_tokens", "stop_sequence": None}
        if isinstance(finish.matched, str) and finish.matched not in self.own_stop:
            return {"stop_reason": "stop_sequence", "stop_sequence": finish.matched}
        return {"stop_reason": "tool_use" if calls.are_complete() else "end_turn", "stop_sequence": None}

    def opening(self, block: Block) -> dict[str, object]:
        """Return a block as it stands when it begins."""
        if block.kind == "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        if block.kind == "text":
            return {"type": "text", "text": ""}
        return {"type": "tool_use", "id": self._call_id(block), "name": block.name, "input": {}}

    def signature(self, block: Block) -> str:
        """Return a thinking block's signature: opaque, never empty, and not looked at when it comes back."""
        return derived_id(self.id, "thinking", block.index)

    def whole(self, block: Block) -> dict[str, object]:
        """Return a block that has ended."""
        opening = self.opening(block)
        if block.kind == "thinking":
            text = "" if self.hides_thinking else block.text
            return {**opening, "thinking": text, "signature": self.signature(block)}
        if block.kind == "text":
            return {**opening, "text": block.text}
        return {**opening, "input": _input(block.text)}

    def _call_id(self, block: Block) -> str:
        return block.call_id or f"toolu_{derived_id(self.id, 'call', block.call)[:24]}"


@define(eq=False)
class MessageEncoder:
    """Events to the stream events of one message, or to the message."""

    head: MessageHead
    blocks: Blocks
    _began: bool = field(default=False, init=False)
    _ended: Ended | None = field(default=None, init=False)
    _prompt_tokens: int = field(default=0, init=False)

    def start(self) -> list[bytes]:
        """Return nothing: how much of the prompt was cached is not known yet."""
        return []

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the stream events of one event, message_start before the first."""
        if isinstance(event, Ended):
            _raise_unfinished(event.finish)
        frames = [] if self._began else self._begin(prompt, event.usage)
        if not isinstance(event, Ended):
            return frames + self._frames(self.blocks.take(event))
        self._ended = event
        return frames + self._frames(self.blocks.end())

    def finish(self) -> list[bytes]:
        """Return message_delta and message_stop."""
        # Invariant: a stream is finished only after its choice's Ended.
        assert self._ended is not None
        delta = {
            "type": "message_delta",
            "delta": {**self.head.stop(self._ended, self.blocks.calls), "stop_details": None},
            "usage": usage_json(self._ended.usage, self._prompt_tokens),
        }
        return [event_frame(delta), event_frame({"type": "message_stop"})]

    def failed(self, error: Exception) -> list[bytes]:
        """Return the error event, with which the stream ends."""
        status = getattr(error, "status", HTTPStatus.INTERNAL_SERVER_ERROR)
        return [event_frame(error_json(error, status, ""))]

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole message."""
        (one,) = collected
        for event in one.events:
            if isinstance(event, Ended):
                _raise_unfinished(event.finish)
                self._ended = event
            else:
                self.blocks.take(event)
        self.blocks.end()
        # Invariant: an answer is encoded only after its choice's Ended.
        assert self._ended is not None
        content: list[object] = [self.head.whole(block) for block in self.blocks.blocks]
        usage = usage_json(self._ended.usage, len(one.prompt.token_ids))
        return HTTPStatus.OK, self.head.message(content, self.head.stop(self._ended, self.blocks.calls), usage)

    def _begin(self, prompt: Prompt, usage: Usage) -> list[bytes]:
        self._began = True
        self._prompt_tokens = len(prompt.token_ids)
        start = Usage(usage.prompt_tokens, 0, usage.cached_tokens)
        no_end: dict[str, object] = {"stop_reason": None, "stop_sequence": None}
        message = self.head.message([], no_end, usage_json(start, self._prompt_tokens))
        return [event_frame({"type": "message_start", "message": message}), PING]

    def _frames(self, changes: Iterable[Change]) -> list[bytes]:
        return [frame for change in changes for frame in self._change(change)]

    def _change(self, change: Change) -> list[bytes]:
        block = change.block
        if isinstance(change, Opened):
            opening = self.head.opening(block)
            return [event_frame({"type": "content_block_start", "index": block.index, "content_block": opening})]
        if isinstance(change, Grew):
            if block.kind == "thinking" and self.head.hides_thinking:
                return []
            kind, key = DELTA_OF_KIND[block.kind]
            return [_delta_frame(block, {"type": kind, key: change.piece})]
        frames = [event_frame({"type": "content_block_stop", "index": block.index})]
        if block.kind != "thinking":
            return frames
        return [_delta_frame(block, {"type": "signature_delta", "signature": self.head.signature(block)}), *frames]


def usage_json(usage: Usage, prompt_tokens: int) -> dict[str, object]:
    """Return Anthropic's usage object; output_tokens include those of thinking."""
    return {
        "input_tokens": prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }


def error_json(error: Exception, status: int, request_id: str) -> dict[str, object]:
    """Return Anthropic's error body; a prompt beyond the context is told in the words agents look for."""
    if isinstance(error, ContextOverflow):
        prompt, context = error.prompt_tokens, error.context_tokens
        error = InvalidRequest(f"prompt is too long: {prompt} tokens > {context - 1} maximum")
    return anthropic_error(error, status, request_id)


def _raise_unfinished(finish: Finish) -> None:
    """Raise what an end stands for that is none of a message: a refusal, a failure, an abort."""
    raise_refusal(finish)
    if finish.kind == "abort":
        raise Aborted


def _delta_frame(block: Block, delta: dict[str, object]) -> bytes:
    return event_frame({"type": "content_block_delta", "index": block.index, "delta": delta})


def _input(text: str) -> object:
    """Return a call's arguments as they were written, digit for digit; {} for a call that was cut off."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return orjson.Fragment(text) if isinstance(value, dict) else {}
