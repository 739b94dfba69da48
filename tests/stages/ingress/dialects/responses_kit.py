"""Reads a stream of the Responses API as strictly as its strictest client, and joins it to the response it tells of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from attrs import define, field

from stages.ingress.dialects.openai_responses import DIALECT
from stages.settings import ModelSettings
from tests.stages.ingress.dialects.kit import MODEL, Events, frames

LAST = ("response.completed", "response.incomplete", "response.failed")
# What an item's deltas are called, by its type and by where its text stands.
STEMS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_", "custom_tool_call": "ctc_"}
WHOLE = {"reasoning": "text", "message": "text", "function_call": "arguments", "custom_tool_call": "input"}


def numbered(body: bytes) -> list[Any]:
    """Return the data of each event, in the one form there is: a line with its type, a line with its JSON."""
    *parts, rest = body.split(b"\n\n")
    assert rest == b""
    events = []
    for number, part in enumerate(parts):
        first, second = part.split(b"\n")
        data = orjson.loads(second.removeprefix(b"data: "))
        assert first == b"event: " + data["type"].encode()
        assert data["sequence_number"] == number
        events.append(data)
    return events


@define
class Reader:
    """Takes events one by one and demands that each may follow the one before."""

    response: Any = None
    last: str = ""
    output: list[Any] = field(factory=list)
    item: Any = None
    stem: str = ""
    text: str | None = None
    logprobs: list[Any] = field(factory=list)
    part_is_open: bool = False

    def take(self, event: Any) -> None:
        kind = event["type"]
        assert self.last not in LAST
        if self.last == "":
            assert kind == "response.created"
            self.response = event["response"]
            assert (self.response["status"], self.response["output"]) == ("in_progress", [])
            assert self.response["usage"] is None
        elif self.last == "response.created":
            assert kind == "response.in_progress"
            assert event["response"] == self.response
        elif kind in LAST:
            self._end(event)
        elif kind == "response.output_item.added":
            self._added(event)
        elif kind == "response.output_item.done":
            self._done(event)
        else:
            self._inside(kind, event)
        self.last = kind

    def _added(self, event: Any) -> None:
        assert self.item is None
        self.item = event["item"]
        assert event["output_index"] == len(self.output)
        assert self.item["status"] == "in_progress"
        assert self.item["id"].startswith(PREFIXES[self.item["type"]])
        assert self.item["id"] not in [item["id"] for item in self.output]
        kind = self.item["type"]
        assert self.item.get(WHOLE[kind], "") == ""
        assert self.item.get("content", []) == self.item.get("summary", []) == []
        self.stem, self.text, self.logprobs, self.part_is_open = STEMS[kind], None, [], False

    def _inside(self, kind: str, event: Any) -> None:
        assert self.item is not None
        assert (event["item_id"], event["output_index"]) == (self.item["id"], len(self.output))
        has_parts = self.item["type"] in ("reasoning", "message")
        if kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            assert has_parts
            assert self.text is None
            assert event["part"]["text"] == ""
            if kind.startswith("response.reasoning_summary"):
                self.stem = "response.reasoning_summary_text"
            self.part_is_open = True
        elif kind == f"{self.stem}.delta":
            assert self.part_is_open == has_parts
            assert event["delta"]
            self.text = (self.text or "") + event["delta"]
            self.logprobs += event.get("logprobs", ())
        elif kind == f"{self.stem}.done":
            assert self.part_is_open == has_parts
            assert event[WHOLE[self.item["type"]]] == (self.text or "")
            assert event.get("logprobs", []) == self.logprobs
        else:
            assert kind in ("response.content_part.done", "response.reasoning_summary_part.done")
            assert self.last == f"{self.stem}.done"
            assert event["part"]["text"] == self.text
            assert event["part"].get("logprobs", []) == self.logprobs
            self.part_is_open = False
        if has_parts:
            index = "summary_index" if self.stem == "response.reasoning_summary_text" else "content_index"
            assert event[index] == 0

    def _done(self, event: Any) -> None:
        item = event["item"]
        has_parts = item["type"] in ("reasoning", "message")
        assert self.last == (self.last if has_parts else f"{self.stem}.done")
        assert self.last.endswith("_part.done") or not has_parts
        assert event["output_index"] == len(self.output)
        assert item["status"] in ("completed", "incomplete")
        for name in ("id", "type", "call_id", "name"):
            assert item.get(name) == self.item.get(name)
        assert text_of(item) == (self.text or "")
        if item["type"] == "message":
            assert item["content"][0]["logprobs"] == self.logprobs
        self.output.append(item)
        self.item = None

    def _end(self, event: Any) -> None:
        final = event["response"]
        assert event["type"] == f"response.{final['status']}"
        assert self.item is None or final["status"] == "failed"
        assert final["output"] == self.output
        changed = {"status", "output", "usage", "completed_at", "error", "incomplete_details", "sglext"}
        assert {name for name in final if final[name] != self.response.get(name)} <= changed
        assert self.response.keys() <= final.keys()
        self.response = final


def text_of(item: Mapping[str, Any]) -> str:
    """Return an item's text, wherever it stands."""
    if item["type"] not in ("reasoning", "message"):
        return str(item[WHOLE[item["type"]]])
    (part,) = [*item["content"], *item.get("summary", ())]
    return str(part["text"])


def read(events: Iterable[Any]) -> Any:
    """Return the last response of a stream whose events follow one another as they must."""
    reader = Reader()
    for event in events:
        reader.take(event)
    assert reader.last in LAST
    return reader.response


def streamed(body: Mapping[str, Any], events: Events, model: ModelSettings = MODEL) -> Any:
    """Return the response a stream of the events ends in."""
    return read(numbered(b"".join(frames(DIALECT, body, events, model))))


def shape(response: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the type and text of each output item."""
    return [(item["type"], text_of(item)) for item in response["output"]]
