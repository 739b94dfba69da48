"""Routes that show what another route would submit to the engine, for each dialect that generates; core."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve
from attrs import fields as fields_of

from stages.errors import InvalidRequest
from stages.ingress.dialect import Call, Dialect, Lookup, Parsed, Route
from stages.ingress.dialects.passing import PASSED
from stages.messages import Ask, Prompt, WorkDone
from stages.settings import ModelSettings

SUFFIX = "/render"
DATA_KEYED = frozenset(("logit_bias", "custom_params"))

# Makes the body of each choice of an ask.
Fields = Callable[[Ask, Prompt], Sequence[Mapping[str, Any]]]


def render_dialect(inner: Dialect, path: str, fields: Fields, *, is_list: bool = False) -> Dialect:
    """Return the dialect of `path`/render: what `inner` makes of a body of `path`, not submitted but shown.

    With is_list the answer has every choice of every prompt, prompt by prompt; else there may be one only.
    """
    route = next(route for route in inner.routes if route.path == path)

    def parse(call: Call, model: ModelSettings) -> Lookup:
        # What an engine can do is the engine's to say.
        model = evolve(model, structured_outputs=True, penalties=True)
        parsed = inner.parse(evolve(call, path=path), model)
        if not isinstance(parsed, Parsed):
            raise InvalidRequest("There is nothing to render in this request.")
        if not is_list and parsed.asks[0].num_choices != 1:
            raise InvalidRequest(f"{path}{SUFFIX} requires n=1.", "n", "invalid_value")
        works = tuple(ask.prompt for ask in parsed.asks)
        return Lookup(works, partial(_shown, parsed.asks, fields, is_list))

    return evolve(
        inner,
        name=f"{inner.name}_render",
        routes=(Route(f"{path}{SUFFIX}", form=route.form, samples=tuple(_samples(route)), data_keyed=DATA_KEYED),),
        parse=parse,
        generates=False,
    )


def _shown(asks: Sequence[Ask], fields: Fields, is_list: bool, done: Sequence[WorkDone]) -> object:
    bodies: list[Mapping[str, Any]] = []
    for ask, prompt in zip(asks, done, strict=True):
        # Invariant: a prompt is answered with a Prompt.
        assert isinstance(prompt, Prompt)
        bodies.extend(fields(ask, prompt))
    return bodies if is_list else bodies[0]


# What brings out all that a body may hold, of fields that a dialect may know or not.
_TAG = '{"type":"structural_tag","format":{"type":"any_text"}}'
_MORE: tuple[Mapping[str, Any], ...] = (
    {},
    {
        "max_tokens": 4,
        "max_output_tokens": 4,
        "seed": 1,
        "logit_bias": {"5": 1},
        "thinking_token_budget": 5,
        "stop": ["a"],
        "stop_sequences": ["a"],
        "stop_regex": ["a"],
        "stop_token_ids": [5],
        "priority": 1,
        "routing_key": "a",
        "cache_salt": "a",
        "extra_key": "a",
        **{name: "a" if field.kind is str else 1 for name, field in PASSED.items()},
    },
    *({name: text} for name, text in (("regex", "a"), ("ebnf", 'root ::= "a"'), ("structural_tag", _TAG))),
    {"guided_json": {"type": "object"}},
)


def _samples(route: Route) -> Iterator[Mapping[str, Any]]:
    """Yield bodies of which the answers show all keys and kinds of values."""
    assert route.form is not None
    names = {field.alias for each in route.form.classes for field in fields_of(each)} - set(route.form.refused)
    base, *others = route.samples
    for more in _MORE:
        yield {**base, **{name: value for name, value in more.items() if name in names or name in PASSED}}
    yield from (sample for sample in others if sample.get("n", 1) == 1)
