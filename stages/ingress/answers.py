"""What the dialects' answers look like: their own encoders run over scripted events, for the document; core.

A route says with `samples` which bodies bring out all that its answers may hold. Each is parsed as a call is, its asks
are played by the scripts here, and what the encoder makes of them, whole and as a stream, shows the shape.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from attrs import evolve, field, frozen

from stages.errors import EngineFailure, TrnrtError
from stages.ingress.dialect import Call, Collected, Dialect, Lookup, Parsed, Route
from stages.messages import (
    Ask,
    Decode,
    Decoded,
    Delta,
    Detokenize,
    Detokenized,
    Ended,
    Event,
    Finish,
    ParsedText,
    ParseText,
    Prompt,
    Sampling,
    Submit,
    TextBlock,
    Tokenize,
    Tokenized,
    TokenLogprob,
    TokensRow,
    ToolCallDelta,
    Usage,
    Work,
    WorkDone,
)
from stages.settings import ModelSettings

END_ID = 1
PROMPT = Prompt((5, 6, 7), in_reasoning=True)
MODEL = ModelSettings(
    served_model_name="",
    model_path="model",
    model_type="glm5_next",
    architectures=("Glm5NextForCausalLM",),
    context_length_tokens=4096,
    vocab_size=512,
    eos_token_ids=frozenset({END_ID}),
    reasoning_parser="glm45",
    tool_call_parser="glm47",
    default_sampling=Sampling(temperature=0.5, top_p=0.9, min_p=0.1),
)
FINISHES = (
    Finish("stop", END_ID),
    Finish("stop", "END"),
    Finish("stop"),
    Finish("length"),
    Finish("abort", message="Aborted"),
)


@frozen(eq=False)
class Shown:
    """JSON values that a route answers with: whole ones, and the events of its streams."""

    whole: list[Any] = field(factory=list)
    events: list[Any] = field(factory=list)


def answers_of(dialect: Dialect, route: Route, model_name: str) -> Shown:
    """Return what a route's samples are answered with; as a stream, or not, alone where one says so."""
    model = evolve(MODEL, served_model_name=model_name)
    shown = Shown()
    for sample in route.samples:
        body = {"model": model_name, **sample}
        asked = dialect.parse(_call(body, route), model)
        if isinstance(asked, Lookup):
            shown.whole.append(_json(asked.body([_done(work) for work in asked.works])))
            continue
        for finish in FINISHES:
            for parts in (0, 1, 3):
                if not sample.get("stream"):
                    whole = {**body, "stream": False}
                    shown.whole.extend(_whole(_parsed(dialect, whole, route, model), finish, parts))
                if sample.get("stream") is not False:
                    streamed = _parsed(dialect, {**body, "stream": True}, route, model)
                    shown.events.extend(_streamed(streamed, finish, parts))
    return shown


def _call(body: Mapping[str, Any], route: Route) -> Call:
    return Call(dict(body), {}, route.path, "0" * 32, 1_700_000_000, lambda: 0.25)


def _parsed(dialect: Dialect, body: Mapping[str, Any], route: Route, model: ModelSettings) -> Parsed:
    parsed = dialect.parse(_call(body, route), model)
    # Invariant: whether a body asks for generation does not depend on its being streamed.
    assert isinstance(parsed, Parsed)
    return parsed


def _whole(parsed: Parsed, finish: Finish, parts: int) -> Iterator[Any]:
    collected = [Collected(PROMPT, tuple(_events(ask, finish, parts)), 0.25) for ask in parsed.asks]
    try:
        yield _json(parsed.encoder.body(collected)[1])
    except TrnrtError:
        return  # such an end is an error here: no answer of the route's


def _streamed(parsed: Parsed, finish: Finish, parts: int) -> Iterator[Any]:
    frames = list(parsed.encoder.start())
    try:
        for index, ask in enumerate(parsed.asks):
            for event in _events(ask, finish, parts):
                frames += parsed.encoder.event(index, PROMPT, event)
        frames += parsed.encoder.finish()
    except TrnrtError as error:
        frames += parsed.encoder.failed(error)
    for one in frames:
        yield from _values(one)
    yield from (value for one in parsed.encoder.failed(EngineFailure("a stage failed")) for value in _values(one))


def _values(frame: bytes) -> Iterator[Any]:
    """Yield the JSON values in a frame: of its data lines, or of its lines where it is no event stream."""
    for line in frame.splitlines():
        data = line.removeprefix(b"data: ")
        if data.startswith(b"{"):
            yield orjson.loads(data)


def _json(value: object) -> Any:
    return orjson.loads(orjson.dumps(value))


# ---------------------------------------------------------------------------------------------------------------------
# Scripts
# ---------------------------------------------------------------------------------------------------------------------


def _events(ask: Ask, finish: Finish, parts: int) -> Iterator[Event]:
    """Yield what every choice of an ask brings: none of the parts, text alone, or reasoning, text and calls."""
    for choice in range(ask.num_choices):
        deltas = list(deltas_of(ask, parts))
        for number, delta in enumerate(deltas):
            scores = _scores(ask) if choice == number == 0 else ()
            yield evolve(delta, choice=choice, usage=_usage(number + 1, parts), prompt_logprobs=scores)
        yield Ended(choice, finish, _usage(len(deltas), parts))


def deltas_of(ask: Ask | Submit, parts: int) -> Iterator[Delta]:
    """Yield what an ask's choice brings before its end, the usage left out."""
    # Two tokens: a number of the text, and one whose logprob is beyond what JSON can carry.
    top = ((8, -0.5, b"a"), (9, float("-inf"), b"\xf0\x9f"))[: ask.num_top_logprobs]
    wanted = tuple((token_id, -2.0, b"b") for token_id in ask.logprob_token_ids)
    entries = TokenLogprob(8, -0.5, b"a", top, wanted), TokenLogprob(9, float("-inf"), b"\xf0", top, wanted)
    logprobs = entries if ask.logprobs else ()
    if parts > 1 and ask.form.parse_reasoning:
        yield Delta(0, (8, 9), reasoning="hm", logprobs=logprobs)
    if parts:
        yield Delta(0, (8, 9), text="a", logprobs=logprobs)
    if parts > 1 and ask.form.parse_tools:
        names = [tool.name for tool in ask.form.tools] or ["f"]
        for index, name in enumerate(names):
            calls = (ToolCallDelta(index, name), ToolCallDelta(index, None, '{"a":'), ToolCallDelta(index, None, "1}"))
            yield Delta(0, (8, 9), tool_calls=calls, logprobs=logprobs)


def _scores(ask: Ask) -> tuple[TokenLogprob, ...]:
    """Return what scores of the prompt an ask's first choice brings: the first token of them has none."""
    if ask.prompt_logprobs_from is None:
        return ()
    wanted = tuple((token_id, -2.0, b"b") for token_id in ask.logprob_token_ids)
    first, *rest = PROMPT.token_ids[ask.prompt_logprobs_from :]
    top = ((8, -0.5, b"a"),)[: ask.num_top_logprobs]
    return TokenLogprob(first, float("nan"), b"x"), *(TokenLogprob(one, -1.0, b"y", top, wanted) for one in rest)


def _usage(number: int, parts: int) -> Usage:
    tokens = 2 * number
    return Usage(3, tokens, 2, min(1, tokens), 1, 1) if parts > 1 else Usage(3, tokens)


def _done(work: Work) -> WorkDone:
    if isinstance(work, Tokenize):
        names = (("a", "b"),) * len(work.prompts) if work.with_names else None
        return Tokenized(((8, 9),) * len(work.prompts), names)
    if isinstance(work, Detokenize):
        return Detokenized(("a",) * len(work.sequences))
    if isinstance(work, ParseText):
        blocks = (TextBlock("reasoning", "hm"), TextBlock("text", "a")) if work.text != "plain" else ()
        return ParsedText(blocks, (ToolCallDelta(0, "f", '{"a":1}'),) if work.tools and blocks else ())
    if isinstance(work, Decode):
        return Decoded(PROMPT, tuple(tuple(_row_events(row)) for row in work.rows(PROMPT)))
    return PROMPT


def _row_events(row: TokensRow) -> Iterator[Event]:
    choice = row.submit.key.choice
    yield Delta(choice, row.token_ids, text="a", usage=row.usage)
    if row.finish is not None:
        yield Ended(choice, row.finish, row.usage)
