"""Fields that are the engine's behind this server and pass to it as they are, over any dialect that generates; core.

A batch has one value for all its prompts, or a list of one each; a bootstrap room that is one number counts up from it,
prompt by prompt, since no two may share one.
"""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialect import Call, Dialect, Lookup, Parsed
from stages.messages import Ask
from stages.settings import ModelSettings

MAX_ROOM = 2**63 - 1
ROOM = "bootstrap_room"


@frozen
class _Passed:
    """A field: what it is, and whether its dialects know it too, or an engine alone."""

    kind: type
    is_known: bool = False
    may_be_list: bool = True


PASSED: Mapping[str, _Passed] = {
    "cache_salt": _Passed(str, is_known=True),
    "extra_key": _Passed(str, is_known=True),
    "bootstrap_host": _Passed(str),
    "bootstrap_port": _Passed(int),
    ROOM: _Passed(int),
    "routed_dp_rank": _Passed(int, may_be_list=False),
    "disagg_prefill_dp_rank": _Passed(int, may_be_list=False),
}
# An older name of routed_dp_rank.
OLD_RANK = "data_parallel_rank"
CUSTOM = "custom_params"
HIDDEN_STATES = "return_hidden_states"
# What the dialects must not see: they would refuse it, or pass it over.
ENGINE_ONLY = frozenset((*(name for name, field in PASSED.items() if not field.is_known), OLD_RANK, CUSTOM))


def passing(dialect: Dialect, *, hidden_states: bool = False) -> Dialect:
    """Return a dialect whose asks carry the engine's own fields; it refuses, by name, those of a wrong form.

    With hidden_states their asks may want the engine's hidden states, which no dialect has a place for in an answer.
    """

    def parse(call: Call, model: ModelSettings) -> Parsed | Lookup:
        wants_states = hidden_states and call.body.get(HIDDEN_STATES) is True
        hidden = {*ENGINE_ONLY, *((HIDDEN_STATES,) if wants_states else ())}
        body = {name: value for name, value in call.body.items() if name not in hidden}
        parsed = dialect.parse(evolve(call, body=body), model)
        if not isinstance(parsed, Parsed):
            return parsed
        given = _given(call.body, len(parsed.asks))
        if wants_states:
            given[HIDDEN_STATES] = [True] * len(parsed.asks)
        custom = call.body.get(CUSTOM)
        if not isinstance(custom, dict | None):
            raise InvalidRequest(f"{CUSTOM} must be an object.", CUSTOM, "invalid_type")
        return evolve(parsed, asks=tuple(_passed(ask, index, given, custom) for index, ask in enumerate(parsed.asks)))

    return evolve(dialect, parse=parse)


def _passed(ask: Ask, index: int, given: Mapping[str, list[Any]], custom: Mapping[str, Any] | None) -> Ask:
    named = {name: values[index] for name, values in given.items() if values[index] not in (None, "")}
    if custom:
        budget = ask.thinking_budget_tokens
        custom = {**({} if budget is None else {"thinking_budget": budget}), **custom}
    sampling = {CUSTOM: custom} if custom else {}
    return evolve(
        ask, passed_fields={**ask.passed_fields, **named}, passed_sampling={**ask.passed_sampling, **sampling}
    )


def _given(body: Mapping[str, Any], count: int) -> dict[str, list[Any]]:
    """Return the fields that were given, one value a prompt."""
    values = {name: body[name] for name in PASSED if body.get(name) is not None}
    if body.get(OLD_RANK) is not None:
        values.setdefault("routed_dp_rank", body[OLD_RANK])
    return {name: _each(name, value, count) for name, value in values.items()}


def _each(name: str, value: Any, count: int) -> list[Any]:
    field = PASSED[name]
    if not isinstance(value, list):
        _check(name, field, value)
        if name != ROOM:
            return [value] * count
        if value + count - 1 > MAX_ROOM:
            raise InvalidRequest(f"{name} is too large for a batch of {count}, got {value}.", name, "invalid_value")
        return [value + index for index in range(count)]
    if not field.may_be_list:
        raise InvalidRequest(f"{name} must be one number.", name, "invalid_type")
    if len(value) != count:
        text = f"{name} has {len(value)} elements for a batch of {count}."
        raise InvalidRequest(text, name, "invalid_value")
    for one in value:
        if one is not None:
            _check(name, field, one)
    return value


def _check(name: str, field: _Passed, value: Any) -> None:
    if type(value) is not field.kind:
        what = "a text" if field.kind is str else "a whole number"
        raise InvalidRequest(f"{name} must be {what}.", name, "invalid_type")
    if isinstance(value, int) and not -MAX_ROOM <= value <= MAX_ROOM:
        raise InvalidRequest(f"{name} is out of range, got {value}.", name, "invalid_value")
