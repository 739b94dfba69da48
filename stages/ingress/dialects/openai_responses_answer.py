"""Answers of the Responses API: events to numbered stream events, or to one response.

A stream is response.created, response.in_progress, each output item from added to done, and one of response.completed,
response.incomplete and response.failed, which holds the response a call without a stream gets. Both are made by the
same Output, so they cannot differ. The first two go out before the prompt is computed; keepalives break a silence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from attrs import define, field, frozen

from stages.errors import ContextOverflow, RequestError
from stages.ingress.dialect import Collected
from stages.ingress.dialects.choices import Tally
from stages.ingress.dialects.common import derived_id, event_frame
from stages.ingress.dialects.openai_common import call_id, error_json, raise_refusal, sglext_json
from stages.ingress.dialects.openai_responses_items import (
    CallName,
    CustomCall,
    EventOf,
    FunctionCall,
    Item,
    Json,
    Message,
    Place,
    Reasoning,
)
from stages.ingress.dialects.openai_responses_logprobs import TextLogprobs
from stages.ingress.dialects.openai_responses_tools import Catalog
from stages.messages import Delta, Ended, Event, Finish, Prompt, ToolCallDelta, Usage

PREFIXES: Mapping[type, str] = {Reasoning: "rs", Message: "msg", FunctionCall: "fc", CustomCall: "ctc"}
INCOMPLETE = {"reason": "max_output_tokens"}


@frozen
class Showing:
    """How output is told: reasoning as a summary, with its blob, and at most so many calls (None for all).

    The nonce makes the ids of items: a function of it, so that every event and the final response agree on them.
    """

    catalog: Catalog
    nonce: str
    as_summary: bool = False
    with_blob: bool = False
    max_calls: int | None = None
    # Alternatives beside each token's logprob.
    num_top: int = 0


@define(eq=False)
class Output:
    """The output so far: items that are done, and the one that is open."""

    showing: Showing
    done: list[Json] = field(factory=list)
    item: Item | None = None
    logprobs: TextLogprobs = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.logprobs = TextLogprobs(self.showing.num_top)

    def add(self, delta: Delta) -> Iterator[EventOf]:
        """Take in a Delta and yield the events it makes."""
        self.logprobs.add(delta.logprobs)
        if delta.reasoning:
            if not isinstance(self.item, Reasoning):
                yield from self._open(
                    Reasoning(self._place(Reasoning), self.showing.as_summary, self.showing.with_blob)
                )
            yield from self._push(delta.reasoning)
        if delta.text:
            message = self.item
            if not isinstance(message, Message):
                message = Message(self._place(Message))
                yield from self._open(message)
            yield from message.push(delta.text, self.logprobs.take(delta.text))
        for piece in delta.tool_calls:
            if self.showing.max_calls is None or piece.index < self.showing.max_calls:
                yield from self._add_call(piece)

    def close(self, *, is_cut_off: bool) -> Iterator[EventOf]:
        """End the open item, if any; one that is cut off before it is whole is incomplete."""
        if self.item is None:
            return
        item, self.item = self.item, None
        is_call = isinstance(item, FunctionCall | CustomCall)
        yield from item.closing()
        self.done.append(item.json("completed" if item.is_whole() or not (is_cut_off or is_call) else "incomplete"))
        fields = {"output_index": item.place.output_index, "item": self.done[-1]}
        yield "response.output_item.done", fields

    def _add_call(self, piece: ToolCallDelta) -> Iterator[EventOf]:
        if piece.name is not None:
            yield from self._open(self._call(piece, piece.name))
        if piece.arguments:
            yield from self._push(piece.arguments)

    def _call(self, piece: ToolCallDelta, name: str) -> Item:
        declared = self.showing.catalog.get(name)
        identity = piece.call_id or call_id(self.showing.nonce, 0, piece.index)
        if declared is None:
            return FunctionCall(self._place(FunctionCall), CallName(identity, name))
        named = CallName(identity, declared.name, declared.namespace)
        if declared.is_custom:
            return CustomCall(self._place(CustomCall), named)
        return FunctionCall(self._place(FunctionCall), named)

    def _place(self, kind: type) -> Place:
        index = len(self.done) + (self.item is not None)
        return Place(f"{PREFIXES[kind]}_{derived_id(self.showing.nonce, 'item', index)}", index)

    def _open(self, item: Item) -> Iterator[EventOf]:
        yield from self.close(is_cut_off=False)
        self.item = item
        fields = {"output_index": item.place.output_index, "item": item.json("in_progress")}
        yield "response.output_item.added", fields
        yield from item.opening()

    def _push(self, text: str) -> Iterator[EventOf]:
        assert self.item is not None  # a call's first piece has its name
        yield from self.item.push(text)


@define(eq=False)
class ResponseEncoder:
    """Events to the numbered events of a response, or to one response.

    `response` is what is the same in every response object of the call.
    """

    response: Mapping[str, Any]
    output: Output
    elapsed_s: Callable[[], float] | None
    with_cache_details: bool = False
    counts: Tally = field(factory=Tally)
    num_sent: int = 0
    ended: Finish | None = None

    def start(self) -> list[bytes]:
        """Return the events that say the response exists and runs."""
        fields = {"response": self._response("in_progress")}
        return self._frames([("response.created", fields), ("response.in_progress", fields)])

    def keepalive(self) -> bytes:
        """Return an event that says nothing, as OpenAI sends it: codex ends a stream that brings it only comments."""
        (frame,) = self._frames([("keepalive", {})])
        return frame

    def event(self, ask_index: int, prompt: Prompt, event: Event) -> list[bytes]:
        """Return the events one event makes."""
        return self._frames(self._take(prompt, event))

    def finish(self) -> list[bytes]:
        """Return the one event that ends the stream."""
        response = self._ended_response()
        return self._frames([(f"response.{response['status']}", {"response": response})])

    def failed(self, error: Exception) -> list[bytes]:
        """Return response.failed with the items that were done; the open one is neither ended nor in the response."""
        status = getattr(error, "status", HTTPStatus.INTERNAL_SERVER_ERROR)
        told: Any = error_json(error, status, "", "input")["error"]
        response = self._response("failed", {"error": {"code": _failure_code(error), "message": told["message"]}})
        return self._frames([("response.failed", {"response": response})])

    def body(self, collected: Sequence[Collected]) -> tuple[int, object]:
        """Return the whole response."""
        for event in collected[0].events:
            for _ in self._take(collected[0].prompt, event):
                pass
        return HTTPStatus.OK, self._ended_response()

    def _take(self, prompt: Prompt, event: Event) -> Iterator[EventOf]:
        self.counts.add(0, len(prompt.token_ids), event)
        if isinstance(event, Ended):
            raise_refusal(event.finish)
            self.ended = event.finish
            yield from self.output.close(is_cut_off=event.finish.kind != "stop")
        else:
            yield from self.output.add(event)

    def _ended_response(self) -> Json:
        assert self.ended is not None  # the feed ends with the only choice's Ended
        if self.ended.kind == "length":
            return self._response("incomplete", {"incomplete_details": INCOMPLETE})
        if self.ended.kind == "abort":
            error = {"code": "server_error", "message": self.ended.message or "Aborted"}
            return self._response("failed", {"error": error})
        completed = {"completed_at": self.response["created_at"] + int(self.elapsed_s()) if self.elapsed_s else None}
        return self._response("completed", completed)

    def _response(self, status: str, more: Mapping[str, object] | None = None) -> Json:
        response: Json = {**self.response, "status": status, "output": list(self.output.done), **(more or {})}
        if self.counts.latest:
            usage = self.counts.total()
            response["usage"] = usage_json(usage)
            if self.with_cache_details:
                response |= sglext_json(usage)
        return response

    def _frames(self, events: Iterable[EventOf]) -> list[bytes]:
        frames = []
        for kind, fields in events:
            frames.append(event_frame({"type": kind, "sequence_number": self.num_sent, **fields}))
            self.num_sent += 1
        return frames


def usage_json(usage: Usage) -> dict[str, object]:
    """Return the usage object of this API, whose input tokens count the cached ones too."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _failure_code(error: Exception) -> str:
    """Return a code of those the API has for a response, or the one agents look for when the context is too small."""
    if isinstance(error, ContextOverflow):
        return error.code or "invalid_prompt"
    return "invalid_prompt" if isinstance(error, RequestError) else "server_error"
