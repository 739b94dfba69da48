"""A strict reader of Messages streams: raises AssertionError at the first event out of order, and joins the rest."""

import json
from collections.abc import Sequence
from typing import Any

import orjson

PIECE_OF = {"thinking": "thinking_delta", "text": "text_delta", "tool_use": "input_json_delta"}
KEY_OF = {"thinking": "thinking", "text": "text", "tool_use": "partial_json"}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each is named by its type and is one line of JSON."""
    assert stream.endswith(b"\n\n")
    events = []
    for frame in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert data.startswith("data: ")
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def message_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message the events join to, in the form of a whole answer."""
    told = [event for event in events if event["type"] != "ping"]
    start, *blocks, delta, stop = told
    assert (start["type"], delta["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    same = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert [message["usage"][key] for key in same] == [delta["usage"][key] for key in same]
    while blocks:
        index = len(message["content"])
        block = blocks.pop(0)
        assert (block["type"], block["index"]) == ("content_block_start", index)
        message["content"].append(_block(block["content_block"], index, blocks))
    return {**message, **delta["delta"], "usage": delta["usage"]}


def _block(start: dict[str, Any], index: int, events: list[dict[str, Any]]) -> dict[str, Any]:
    kind = start["type"]
    pieces: list[str] = []
    signature = ""
    while (event := events.pop(0))["type"] == "content_block_delta":
        assert event["index"] == index
        assert not signature
        if event["delta"]["type"] == "signature_delta":
            assert kind == "thinking"
            signature = event["delta"]["signature"]
            assert signature
            continue
        assert event["delta"]["type"] == PIECE_OF[kind]
        assert event["delta"][KEY_OF[kind]]
        pieces.append(event["delta"][KEY_OF[kind]])
    assert event == {"type": "content_block_stop", "index": index}
    text = "".join(pieces)
    if kind == "thinking":
        assert start == {"type": kind, "thinking": "", "signature": ""}
        return {**start, "thinking": text, "signature": signature}
    if kind == "text":
        assert start == {"type": kind, "text": ""}
        return {**start, "text": text}
    assert start["input"] == {}
    return {**start, "input": _whole(text)}


def _whole(text: str) -> Any:
    """A call's input, or {} of one that was cut off."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    assert isinstance(value, dict)
    return value
