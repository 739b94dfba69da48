"""Builds Submits and rows, and runs a choice over ids cut into steps."""

import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import trio
from attrs import evolve, frozen

from stages.channels import open_mailbox
from stages.detokenizer.choice import Choice, Decoding
from stages.detokenizer.parsers.loading import load_id_reasoning_parser, load_id_tool_parser, tag_ids
from stages.detokenizer.vocabulary import Vocabulary, vocabulary_of
from stages.messages import (
    ChoiceKey,
    Delta,
    Ended,
    Event,
    Finish,
    Sampling,
    Submit,
    TextForm,
    TokensRow,
    Tool,
    Usage,
)
from stages.tokenizer_file import read_tokenizer_file
from tests.small_tokenizer import write_small_tokenizer

PARSED = TextForm(parse_reasoning=True, parse_tools=True)
RAW = TextForm()
LENGTH = Finish("length")


@cache
def vocabulary() -> Vocabulary:
    with tempfile.TemporaryDirectory() as folder:
        return vocabulary_of(read_tokenizer_file(str(write_small_tokenizer(Path(folder)))))


@cache
def decoding() -> Decoding:
    reasoning, tools = load_id_reasoning_parser("glm45"), load_id_tool_parser("glm47")
    assert reasoning is not None
    assert tools is not None
    return Decoding(vocabulary(), (reasoning, tag_ids(reasoning, vocabulary())), (tools, tag_ids(tools, vocabulary())))


def submit(form: TextForm = RAW, choice: int = 0, request_id: str = "r", **changes: Any) -> Submit:
    mailbox = changes.pop("mailbox", None) or open_mailbox(100, 1)[0]
    plain = Submit(
        key=ChoiceKey(request_id, choice),
        prompt_ids=(1,),
        sampling=Sampling(),
        seed=0,
        max_new_tokens=100,
        min_new_tokens=0,
        stop_token_ids=frozenset(),
        stop=(),
        form=form,
        in_reasoning=False,
        logprobs=False,
        num_top_logprobs=0,
        mailbox=mailbox,
    )
    return evolve(plain, **changes)


def rows(sent: Submit, steps: Iterable[Sequence[int]], finish: Finish | None) -> list[TokensRow]:
    """One row a step, as the scheduler sends them, usage counted up; finish goes with the last."""
    made = []
    total = 0
    steps = [tuple(step) for step in steps]
    for number, step in enumerate(steps):
        total += len(step)
        made.append(
            TokensRow(
                sent,
                step,
                logprobs=tuple(-float(token_id) for token_id in step),
                top=tuple(((token_id, -1.0), (token_id + 1, -2.0)) for token_id in step),
                finish=finish if number == len(steps) - 1 else None,
                usage=Usage(7, total, 3),
            )
        )
    return made


@frozen
class Result:
    """All of a choice's events, joined."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    token_ids: tuple[int, ...]
    finish: Finish | None
    usage: Usage | None
    logprobs: tuple[Any, ...]


def joined(events: Iterable[Event]) -> Result:
    """Join events, checking their order: one Ended at most, last; a call's name first and once."""
    text = reasoning = ""
    calls: list[list[str]] = []
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Any, ...] = ()
    ended: Ended | None = None
    for event in events:
        assert ended is None
        if isinstance(event, Ended):
            ended = event
            continue
        assert isinstance(event, Delta)
        text += event.text
        reasoning += event.reasoning
        token_ids += event.token_ids
        logprobs += event.logprobs
        for call in event.tool_calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append([call.name, call.arguments])
            else:
                assert call.index == len(calls) - 1
                calls[-1][1] += call.arguments
    return Result(
        text,
        reasoning,
        tuple((name, arguments) for name, arguments in calls),
        token_ids,
        ended.finish if ended else None,
        ended.usage if ended else None,
        logprobs,
    )


def run(sent: Submit, steps: Iterable[Sequence[int]], finish: Finish | None = LENGTH) -> Result:
    choice = Choice(sent, decoding())
    return joined(event for row in rows(sent, steps, finish) for event in choice.take(row))


def singly(token_ids: Iterable[int]) -> list[tuple[int, ...]]:
    return [(token_id,) for token_id in token_ids]


def tool(name: str, **properties: Any) -> Tool:
    parameters = {"type": "object", "properties": properties}
    return Tool(name, {"name": name, "parameters": parameters}, parameters)


def drained(mailbox: "trio.MemoryReceiveChannel[Event]") -> list[Event]:
    events: list[Event] = []
    try:
        while True:
            events.append(mailbox.receive_nowait())
    except (trio.WouldBlock, trio.EndOfChannel):
        return events
