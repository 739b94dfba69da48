"""Routes that make another route's answer of tokens that somebody else's engine generated; core.

The body has the request that was rendered, and `outputs`: the engine's frames in order of arrival, each with the index
of its choice. A request that is not streamed brings all frames of all choices and gets the whole answer. A streamed one
brings what it has and gets the chunks that came of it, and a state to send with the next frames: nothing is kept here.

The state is what was told so far, each choice's as one frame, and of the prompts what decoding behind them needs. What
was told is decoded again each time, which costs little, and makes the next chunks exactly those of an undivided stream.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from attrs import define, evolve, field, frozen

from stages.detokenizer.vocabulary import WINDOW_TOKENS
from stages.engine.framing import BroughtFrames
from stages.ingress.dialect import BodyForm, Call, Collected, Dialect, Lookup, Parsed, Route
from stages.ingress.dialects.common import DONE
from stages.ingress.dialects.fields import shown
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.messages import Ask, Decode, Decoded, Ended, Event, Prompt, Submit, TokensRow, WorkDone
from stages.settings import ModelSettings

SUFFIX = "/derender"
MAX_ID_CHARACTERS = 128

# Makes the choices of an ask as they would be submitted.
Submits = Callable[[Ask, Prompt], Sequence[Submit]]


@frozen(kw_only=True)
class DerenderBody:
    """The body."""

    request: dict[str, Any] | None = field(default=None, metadata=shown(required=True))
    outputs: list[Any] | None = field(default=None, metadata=shown(required=True))
    state: dict[str, Any] | None = None


@frozen(kw_only=True)
class State:
    """What a client carries from one call to the next."""

    id: str = ""
    created: int = 0
    prompts: list[Any] = field(factory=list)
    choices: list[Any] = field(factory=list)


@frozen(kw_only=True)
class StatePrompt:
    """Of a prompt: how long it is, its last ids, and whether thinking began in it."""

    num_tokens: int = 0
    last_ids: list[int] = field(factory=list)
    in_reasoning: bool | None = None


FORM = BodyForm((DerenderBody,))


@define(eq=False)
class _Part:
    """What is decoded of one ask: its frames by choice, those told earlier first."""

    ask: Ask
    model: ModelSettings
    told: Mapping[int, Mapping[str, Any]]
    # Place in `outputs`, choice and frame.
    new: list[tuple[int, int, Mapping[str, Any]]] = field(factory=list)
    brought: dict[int, BroughtFrames] = field(factory=dict)
    num_told: int = 0

    def rows(self, submits: Submits, prompt: Prompt) -> list[TokensRow]:
        """Return the rows of all frames, those told earlier first."""
        size, limit = self.model.vocab_size, self.model.context_length_tokens
        for submit in submits(self.ask, prompt):
            self.brought[submit.key.choice] = BroughtFrames(submit, size, limit)
        told = [
            row for choice, frame in self.told.items() for row in self.brought[choice].again(frame, "state.choices")
        ]
        self.num_told = len(told)
        return told + [self.brought[choice].take(frame, f"outputs.{place}") for place, choice, frame in self.new]


def derender_dialect(inner: Dialect, path: str, submits: Submits) -> Dialect:
    """Return the dialect of `path`/derender: what `inner` would have answered, had these tokens been its engine's."""
    asked = next(route for route in inner.routes if route.path == path).samples[0]

    def parse(call: Call, model: ModelSettings) -> Lookup:
        body = read_body(DerenderBody, call.body)
        if body.request is None:
            raise invalid("request", "request must be the body that was rendered.")
        if body.outputs is None:
            raise invalid("outputs", "outputs must be a list of frames.")
        state = None if body.state is None else _read_state(body.state)
        again = evolve(call, body=dict(body.request), path=path)
        if state is not None:
            again = evolve(again, request_id=state.id, created_s=state.created)
        parsed = inner.parse(again, model)
        if not isinstance(parsed, Parsed):
            raise invalid("request", "There is nothing to answer in this request.")
        _check(parsed, state)
        prompts = [ask.prompt for ask in parsed.asks] if state is None else _prompts(state, len(parsed.asks), model)
        parts = _parts(parsed.asks, model, body.outputs, state)
        works = tuple(
            Decode(prompt, partial(part.rows, submits), model.reasoning_parser, model.tool_call_parser)
            for prompt, part in zip(prompts, parts, strict=True)
        )
        answer = _stepwise if parsed.stream else _whole
        return Lookup(works, partial(answer, parsed, parts, again))

    return evolve(
        inner,
        name=f"{inner.name}_derender",
        routes=(Route(f"{path}{SUFFIX}", form=FORM, samples=tuple(_samples(asked))),),
        parse=parse,
        generates=False,
    )


def _samples(asked: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for is_stream in (False, True):
        for finish in ({"type": "stop", "matched": None}, {"type": "length"}, *((None,) if is_stream else ())):
            outputs = [{"output_ids": [8], "meta_info": {"finish_reason": finish}}]
            yield {"request": {**asked, "stream": is_stream}, "outputs": outputs}


# ---------------------------------------------------------------------------------------------------------------------
# What is brought
# ---------------------------------------------------------------------------------------------------------------------


def _check(parsed: Parsed, state: State | None) -> None:
    if state is not None and not parsed.stream:
        raise invalid("state", "state goes with a streamed request; others bring all their frames at once.")
    if parsed.stream and any(ask.prompt_logprobs_from is not None for ask in parsed.asks):
        raise invalid("request", "Logprobs of a prompt, and echo of one of ids, are not served in steps.")


def _parts(asks: Sequence[Ask], model: ModelSettings, outputs: Sequence[Any], state: State | None) -> list[_Part]:
    places = [(part, choice) for part, ask in enumerate(asks) for choice in range(ask.num_choices)]
    told: list[dict[int, Mapping[str, Any]]] = [{} for _ in asks]
    if state is not None:
        if len(state.choices) != len(places):
            raise invalid("state.choices", f"state is not of this request: it has {len(state.choices)} choices.")
        for (part, choice), frame in zip(places, state.choices, strict=True):
            if frame is not None:
                told[part][choice] = _frame(frame, "state.choices")
    parts = [_Part(ask, model, frames) for ask, frames in zip(asks, told, strict=True)]
    for place, given in enumerate(outputs):
        frame = _frame(given, f"outputs.{place}")
        index = frame.get("index", 0)
        if type(index) is not int or not 0 <= index < len(places):
            raise invalid(f"outputs.{place}.index", f"outputs.{place}.index must be in [0, {len(places) - 1}].")
        part, choice = places[index]
        parts[part].new.append((place, choice, frame))
    return parts


def _frame(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise invalid(where, f"{where} must be a frame as /generate streams them.")
    return value


def _read_state(value: dict[str, Any]) -> State:
    state = read_body(State, value, "state")
    if not 1 <= len(state.id) <= MAX_ID_CHARACTERS:
        raise invalid("state.id", f"state.id must have between 1 and {MAX_ID_CHARACTERS} characters.")
    return state


def _prompts(state: State, count: int, model: ModelSettings) -> list[Prompt]:
    if len(state.prompts) != count:
        raise invalid("state.prompts", f"state is not of this request: it has {len(state.prompts)} prompts.")
    return [_prompt(read_body(StatePrompt, value, "state.prompts"), model) for value in state.prompts]


def _prompt(told: StatePrompt, model: ModelSettings) -> Prompt:
    """Return a prompt of which only the end is known, which is all of it that decoding reads."""
    last = tuple(told.last_ids)
    if not len(last) <= told.num_tokens <= model.context_length_tokens:
        raise invalid("state.prompts", "state.prompts has a length that no prompt can have.")
    if not all(0 <= token_id < model.vocab_size for token_id in last):
        raise invalid("state.prompts", f"state.prompts has a token id outside [0, {model.vocab_size - 1}].")
    return Prompt((0,) * (told.num_tokens - len(last)) + last, told.in_reasoning)


# ---------------------------------------------------------------------------------------------------------------------
# What comes of it
# ---------------------------------------------------------------------------------------------------------------------


def _whole(parsed: Parsed, parts: Sequence[_Part], call: Call, done: Sequence[WorkDone]) -> object:
    collected = []
    for part, one in zip(parts, _decoded(done), strict=True):
        events = tuple(event for of_row in one.events for event in of_row)
        if missing := sorted(set(range(part.ask.num_choices)) - _ended(events)):
            raise invalid("outputs", f"outputs has no end of choice {missing[0]}: no frame with a finish_reason.")
        collected.append(Collected(one.prompt, events))
    return parsed.encoder.body(collected)[1]


def _stepwise(parsed: Parsed, parts: Sequence[_Part], call: Call, done: Sequence[WorkDone]) -> object:
    encoder = parsed.encoder
    frames = encoder.start()
    ended: list[bool] = []
    told: list[tuple[int, Prompt, Event]] = []
    new: list[tuple[int, tuple[int, Prompt, Event]]] = []
    for index, (part, one) in enumerate(zip(parts, _decoded(done), strict=True)):
        events = [[(index, one.prompt, event) for event in of_row] for of_row in one.events]
        told += [event for of_row in events[: part.num_told] for event in of_row]
        places = [place for place, _, _ in part.new]
        of_new = zip(places, events[part.num_told :], strict=True)
        new += [(place, event) for place, of_row in of_new for event in of_row]
        has_ended = _ended([event for of_row in one.events for event in of_row])
        ended += [choice in has_ended for choice in range(part.ask.num_choices)]
    if told:
        for event in told:
            encoder.event(*event)
        frames = []
    for _, event in sorted(new, key=lambda placed: placed[0]):
        frames += encoder.event(*event)
    is_done = all(ended)
    if is_done and new:
        frames += encoder.finish()
    return {
        "chunks": [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames if frame != DONE],
        "ended": [index for index, has_ended in enumerate(ended) if has_ended],
        "is_done": is_done,
        "state": None if is_done else _state(parts, call, [one.prompt for one in _decoded(done)]),
    }


def _state(parts: Sequence[_Part], call: Call, prompts: Sequence[Prompt]) -> object:
    return {
        "id": call.request_id,
        "created": call.created_s,
        "prompts": [
            {
                "num_tokens": len(prompt.token_ids),
                "last_ids": prompt.token_ids[-WINDOW_TOKENS:],
                "in_reasoning": prompt.in_reasoning,
            }
            for prompt in prompts
        ],
        "choices": [
            part.brought[choice].as_one() if part.brought[choice].has_any else None
            for part in parts
            for choice in range(part.ask.num_choices)
        ],
    }


def _decoded(done: Sequence[WorkDone]) -> list[Decoded]:
    decoded = []
    for one in done:
        # Invariant: a Decode is answered with a Decoded.
        assert isinstance(one, Decoded)
        decoded.append(one)
    return decoded


def _ended(events: Sequence[Event]) -> set[int]:
    return {event.choice for event in events if isinstance(event, Ended)}
