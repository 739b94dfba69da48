"""Runs text parsers over text cut into pieces, and tells what they said."""

from collections.abc import Iterable
from itertools import pairwise

from attrs import frozen

from stages.detokenizer.parsers.answer import Thought, answer_of
from stages.detokenizer.parsers.loading import load_reasoning_parser, load_tool_parser
from stages.messages import Tool, ToolCallDelta
from tests.stages.detokenizer.rows import tool

WEATHER = tool(
    "get_weather",
    city={"type": "string"},
    days={"type": "integer"},
    metric={"type": "boolean"},
    tags={"type": "array"},
    place={"type": "object"},
    note={"type": ["string", "null"]},
)
TOOLS = (WEATHER, tool("get_time", tz={"type": "string"}))


@frozen
class Said:
    """All that was said, joined; order is the kinds as they followed each other."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    ids: tuple[str | None, ...] = ()
    order: tuple[str, ...] = ()


def say(
    pieces: Iterable[str],
    tools: str | None = None,
    reasoning: str | None = None,
    in_reasoning: bool | None = None,
    functions: tuple[Tool, ...] = TOOLS,
    is_required: bool = False,
) -> Said:
    thinking = load_reasoning_parser(reasoning) if reasoning is not None else None
    answer = answer_of(
        thinking.make(in_reasoning) if thinking is not None else None,
        thinking.markers if thinking is not None else (),
        load_tool_parser(tools).make(functions, is_required) if tools is not None else None,
    )
    parts = [part for piece in pieces for part in answer.push(piece)] + answer.flush()
    content = thought = ""
    calls: list[tuple[str, str]] = []
    ids: list[str | None] = []
    order: list[str] = []
    for part in parts:
        kind = "content"
        if isinstance(part, ToolCallDelta):
            assert part.index == len(calls)
            assert part.name
            calls.append((part.name, part.arguments))
            ids.append(part.call_id)
            kind = "call"
        elif isinstance(part, Thought):
            thought += part.text
            kind = "reasoning" if part.text else ""
        else:
            content += part
            kind = "content" if part else ""
        if kind and (kind == "call" or not order or order[-1] != kind):
            order.append(kind)
    return Said(content, thought, tuple(calls), tuple(ids), tuple(order))


def cut(text: str, *places: int) -> list[str]:
    edges = sorted({0, len(text), *(place for place in places if 0 < place < len(text))})
    return [text[start:end] for start, end in pairwise(edges)]
