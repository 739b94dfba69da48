"""The output items of a response, built up from what was generated, each with the events that tell of it.

Theory of operation. One item is open at a time. It says what opens it, what each piece adds, and what closes it; an
event is a pair of its type and its fields, without the sequence number. An item's last JSON is the one in its
output_item.done, which stands in the final response too.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from attrs import define, field, frozen

from stages.ingress.dialects.choices import is_object
from stages.ingress.dialects.openai_responses_blob import pack
from stages.ingress.dialects.openai_responses_custom import InputReading

Json = dict[str, Any]
EventOf = tuple[str, Json]
Status = Literal["in_progress", "completed", "incomplete"]


@frozen
class Place:
    """Where an item stands: its id, and its index in the output."""

    item_id: str
    output_index: int

    def event(self, kind: str, **fields: object) -> EventOf:
        """Return an event about the item's inside."""
        return kind, {"item_id": self.item_id, "output_index": self.output_index, **fields}


class Item(Protocol):
    """An output item while it is open."""

    place: Place

    def opening(self) -> Iterator[EventOf]:
        """Yield the events between output_item.added and the first piece."""
        ...

    def push(self, text: str) -> Iterator[EventOf]:
        """Take in a piece, not an empty one, and yield the event of what it adds."""
        ...

    def closing(self) -> Iterator[EventOf]:
        """Yield the events between the last piece and output_item.done."""
        ...

    def is_whole(self) -> bool:
        """Say whether the item is whole even if generation was cut off here."""
        ...

    def json(self, status: Status) -> Json:
        """Return the item as it stands."""
        ...


@define(eq=False)
class Reasoning:
    """What the model thought, told as content, or as a summary where one was asked for."""

    place: Place
    as_summary: bool
    with_blob: bool
    pieces: list[str] = field(factory=list)

    def opening(self) -> Iterator[EventOf]:
        """Yield the beginning of the only part."""
        kind = "response.reasoning_summary_part.added" if self.as_summary else "response.content_part.added"
        yield self._event(kind, part=self._part(""))

    def push(self, text: str) -> Iterator[EventOf]:
        """Take in a piece of the thoughts."""
        self.pieces.append(text)
        yield self._event(f"{self._stem}.delta", delta=text)

    def closing(self) -> Iterator[EventOf]:
        """Yield the whole text and the end of the part."""
        kind = "response.reasoning_summary_part.done" if self.as_summary else "response.content_part.done"
        text = "".join(self.pieces)
        yield self._event(f"{self._stem}.done", text=text)
        yield self._event(kind, part=self._part(text))

    def is_whole(self) -> bool:
        """Thoughts that were cut off are not whole."""
        return False

    def json(self, status: Status) -> Json:
        """Return the item; its blob is there once it is closed."""
        parts = [self._part("".join(self.pieces))] if status != "in_progress" else []
        summary, content = (parts, []) if self.as_summary else ([], parts)
        item: Json = {"id": self.place.item_id, "type": "reasoning", "summary": summary, "content": content}
        if self.with_blob:
            item["encrypted_content"] = pack("".join(self.pieces)) if parts else None
        return {**item, "status": status}

    @property
    def _stem(self) -> str:
        return "response.reasoning_summary_text" if self.as_summary else "response.reasoning_text"

    def _part(self, text: str) -> Json:
        return {"type": "summary_text" if self.as_summary else "reasoning_text", "text": text}

    def _event(self, kind: str, **fields: object) -> EventOf:
        index = "summary_index" if self.as_summary else "content_index"
        return self.place.event(kind, **{index: 0}, **fields)


@define(eq=False)
class Message:
    """Text for the user."""

    place: Place
    pieces: list[str] = field(factory=list)
    logprobs: list[Json] = field(factory=list)

    def opening(self) -> Iterator[EventOf]:
        """Yield the beginning of the only part."""
        yield self.place.event("response.content_part.added", content_index=0, part=self._part("", []))

    def push(self, text: str, logprobs: Sequence[Json] = ()) -> Iterator[EventOf]:
        """Take in a piece of the text, and what is told of its tokens."""
        self.pieces.append(text)
        self.logprobs.extend(logprobs)
        yield self.place.event("response.output_text.delta", content_index=0, delta=text, logprobs=list(logprobs))

    def closing(self) -> Iterator[EventOf]:
        """Yield the whole text and the end of the part."""
        text = "".join(self.pieces)
        part = self._part(text, self.logprobs)
        yield self.place.event("response.output_text.done", content_index=0, text=text, logprobs=self.logprobs)
        yield self.place.event("response.content_part.done", content_index=0, part=part)

    def is_whole(self) -> bool:
        """Text that was cut off is not whole."""
        return False

    def json(self, status: Status) -> Json:
        """Return the item."""
        content = [self._part("".join(self.pieces), self.logprobs)] if status != "in_progress" else []
        return {
            "id": self.place.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _part(self, text: str, logprobs: Sequence[Json]) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


@frozen
class CallName:
    """Which call it is and what it calls, as the client knows the tool."""

    call_id: str
    name: str
    namespace: str | None = None

    def json(self) -> Json:
        """Return the fields of a call item that say so."""
        named: Json = {"call_id": self.call_id, "name": self.name}
        return {**named, "namespace": self.namespace} if self.namespace else named


@define(eq=False)
class FunctionCall:
    """A call of a function, its arguments the text of a JSON object."""

    place: Place
    call: CallName
    pieces: list[str] = field(factory=list)

    def opening(self) -> Iterator[EventOf]:
        """Yield nothing: the arguments are no part."""
        yield from ()

    def push(self, text: str) -> Iterator[EventOf]:
        """Take in a piece of the arguments."""
        self.pieces.append(text)
        yield self.place.event("response.function_call_arguments.delta", delta=text)

    def closing(self) -> Iterator[EventOf]:
        """Yield the whole arguments."""
        text = "".join(self.pieces)
        yield self.place.event("response.function_call_arguments.done", arguments=text, name=self.call.name)

    def is_whole(self) -> bool:
        """Say whether the arguments are one JSON object."""
        return is_object("".join(self.pieces))

    def json(self, status: Status) -> Json:
        """Return the item."""
        arguments = "".join(self.pieces)
        head = {"id": self.place.item_id, "type": "function_call"}
        return {**head, **self.call.json(), "arguments": arguments, "status": status}


@define(eq=False)
class CustomCall:
    """A call of a custom tool: the model's arguments are JSON, the item's input is the text in them."""

    place: Place
    call: CallName
    reading: InputReading = field(factory=InputReading)
    pieces: list[str] = field(factory=list)

    def opening(self) -> Iterator[EventOf]:
        """Yield nothing: the input is no part."""
        yield from ()

    def push(self, text: str) -> Iterator[EventOf]:
        """Take in a piece of the arguments, and yield what input it holds."""
        yield from self._tell(self.reading.push(text))

    def closing(self) -> Iterator[EventOf]:
        """Yield what was not sent yet and the whole input."""
        yield from self._tell(self.reading.rest())
        yield self.place.event("response.custom_tool_call_input.done", input="".join(self.pieces))

    def is_whole(self) -> bool:
        """Say whether the arguments are one JSON object."""
        return is_object("".join(self.reading.arguments))

    def json(self, status: Status) -> Json:
        """Return the item."""
        head = {"id": self.place.item_id, "type": "custom_tool_call"}
        return {**head, **self.call.json(), "input": "".join(self.pieces), "status": status}

    def _tell(self, text: str) -> Iterator[EventOf]:
        if text:
            self.pieces.append(text)
            yield self.place.event("response.custom_tool_call_input.delta", delta=text)
