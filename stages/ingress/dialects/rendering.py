"""Routes that show what another route would submit to the engine, for each dialect that generates; core."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve

from stages.errors import InvalidRequest
from stages.ingress.dialect import Call, Dialect, Lookup, Parsed, Route
from stages.messages import Ask, Prompt, WorkDone
from stages.settings import ModelSettings

SUFFIX = "/render"

# Makes the body of each choice of an ask.
Fields = Callable[[Ask, Prompt], Sequence[Mapping[str, Any]]]


def render_dialect(inner: Dialect, path: str, fields: Fields, *, is_list: bool = False) -> Dialect:
    """Return the dialect of `path`/render: what `inner` makes of a body of `path`, not submitted but shown.

    With is_list the answer has every choice of every prompt, prompt by prompt; else there may be one only.
    """
    route = next(route for route in inner.routes if route.path == path)

    def parse(call: Call, model: ModelSettings) -> Lookup:
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
        routes=(Route(f"{path}{SUFFIX}", form=route.form, samples=_samples(route, is_list)),),
        parse=parse,
    )


def _shown(asks: Sequence[Ask], fields: Fields, is_list: bool, done: Sequence[WorkDone]) -> object:
    bodies: list[Mapping[str, Any]] = []
    for ask, prompt in zip(asks, done, strict=True):
        # Invariant: a prompt is answered with a Prompt.
        assert isinstance(prompt, Prompt)
        bodies.extend(fields(ask, prompt))
    return bodies if is_list else bodies[0]


def _samples(route: Route, is_list: bool) -> tuple[Mapping[str, Any], ...]:
    return route.samples if is_list else tuple(sample for sample in route.samples if sample.get("n", 1) == 1)
