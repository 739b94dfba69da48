"""An answer's text taken apart by the parsers that take apart what the model generates.

The parsers read token ids, so the text becomes ids first, its tags matched; from there on it is the detokenizer's own
code, which keeps the order of reasoning and visible text.
"""

from collections.abc import Iterable, Iterator, Sequence

import trio
from attrs import evolve

from stages.detokenizer.choice import Choice, Decoding
from stages.detokenizer.decoding import decoding_of
from stages.errors import InvalidRequest, StartupError
from stages.mailbox import Mailbox
from stages.messages import (
    ChoiceKey,
    Delta,
    Event,
    Finish,
    ParsedText,
    ParseText,
    Sampling,
    Submit,
    TextBlock,
    TextForm,
    TokensRow,
    ToolCallDelta,
)
from stages.prompt.tokenizer import PromptTokenizer

OPENING, CLOSING = "<think>", "</think>"
MAX_STEP_TOKENS = 512


def parse_text(work: ParseText, tokenizer: PromptTokenizer) -> ParsedText:
    """Return what `work.text` holds; raises InvalidRequest naming a parser that cannot be had."""
    decoding = _decoding(work, tokenizer)
    (token_ids,) = tokenizer.encode_texts([work.text], add_special_tokens=False)
    if len(token_ids) > work.max_tokens:
        text = f"text has {len(token_ids)} tokens, which is longer than any answer: at most {work.max_tokens}."
        raise InvalidRequest(text, "text", "invalid_value")
    submit = _submit(work, begins_inside(token_ids, tokenizer))
    # In pieces the detokenizer is quick with.
    steps = [tuple(token_ids[at : at + MAX_STEP_TOKENS]) for at in range(0, len(token_ids), MAX_STEP_TOKENS)]
    deltas = list(_deltas(Choice(submit, decoding), submit, steps))
    return ParsedText(tuple(_blocks(deltas)), tuple(_calls(deltas)))


def begins_inside(token_ids: Sequence[int], tokenizer: PromptTokenizer) -> bool:
    """Return whether a text goes on from an open thinking block: it closes one before it opens any."""
    tags = {tokenizer.control_ids.get(tag): tag for tag in (OPENING, CLOSING)}
    return next((tags[token_id] for token_id in token_ids if token_id in tags), OPENING) == CLOSING


def _decoding(work: ParseText, tokenizer: PromptTokenizer) -> Decoding:
    """Return the parsers; raises InvalidRequest naming the field."""
    for param, reasoning, tools in (
        ("reasoning_parser", work.reasoning_parser, None),
        ("tool_call_parser", None, work.tool_parser),
    ):
        try:
            decoding_of(tokenizer.vocabulary, reasoning, tools)
        except StartupError as error:
            raise InvalidRequest(str(error), param, "invalid_value") from None
    return decoding_of(tokenizer.vocabulary, work.reasoning_parser, work.tool_parser)


def _submit(work: ParseText, in_reasoning: bool) -> Submit:
    """Return a choice as the detokenizer wants it, of a mailbox nobody writes to."""
    mailbox, reader = trio.open_memory_channel[Event](0)
    mailbox.close()
    reader.close()
    return Submit(
        key=ChoiceKey("", 0),
        prompt_ids=(),
        sampling=Sampling(),
        seed=0,
        max_new_tokens=0,
        min_new_tokens=0,
        stop_token_ids=frozenset(),
        stop=(),
        form=TextForm(
            skip_special_tokens=False,
            parse_reasoning=work.reasoning_parser is not None,
            parse_tools=work.tool_parser is not None,
            tools=work.tools,
        ),
        in_reasoning=in_reasoning,
        logprobs=False,
        num_top_logprobs=0,
        mailbox=Mailbox(mailbox),
    )


def _deltas(choice: Choice, submit: Submit, steps: Sequence[tuple[int, ...]]) -> Iterator[Delta]:
    for number, step in enumerate(steps, start=1):
        finish = Finish("stop") if number == len(steps) else None
        for event in choice.take(TokensRow(submit, step, finish=finish)):
            if isinstance(event, Delta):
                yield event


def _blocks(deltas: Iterable[Delta]) -> Iterator[TextBlock]:
    run: list[str] = []
    kind = ""
    for delta in deltas:
        for its_kind, text in (("reasoning", delta.reasoning), ("text", delta.text)):
            if text and its_kind != kind:
                yield from _ended(kind, run)
                kind, run = its_kind, []
            if text:
                run.append(text)
    yield from _ended(kind, run)


def _ended(kind: str, run: list[str]) -> Iterator[TextBlock]:
    if run:
        yield TextBlock("reasoning" if kind == "reasoning" else "text", "".join(run))


def _calls(deltas: Iterable[Delta]) -> Iterator[ToolCallDelta]:
    first: dict[int, ToolCallDelta] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        for piece in delta.tool_calls:
            if piece.name is not None:
                first[piece.index] = piece
            arguments.setdefault(piece.index, []).append(piece.arguments)
    for index, piece in first.items():
        yield evolve(piece, arguments="".join(arguments[index]))
