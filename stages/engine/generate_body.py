"""The body of `/generate` that one choice is submitted with: every field an engine's answer depends on. Core.

An engine gets what the client asked for, not what was made of it for our own scheduler: the client's seed or none, the
rest of the context as no limit, and none of the end tokens that the engine knows by itself.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from attrs import frozen

from stages.errors import InvalidRequest
from stages.messages import Constraint, Submit, TextGrammar, ToolGrammar

# No top_k, as SGLang writes it.
ALL_TOKENS = 1 << 30
GREEDY_BELOW = 1e-6

# What a grammar of tool calls is to an engine: one of sampling_params' constraints by name, or none.
ToolConstraint = Callable[[ToolGrammar], Mapping[str, str]]


@frozen
class PassedGrammar:
    """A constraint that the engine behind compiles; satisfies stages.messages.Grammar."""

    constraint: Constraint


def no_tool_constraint(grammar: ToolGrammar) -> Mapping[str, str]:
    """Return nothing for calls that may come; raises InvalidRequest for those that must, which would not be held to."""
    if grammar.is_required:
        raise InvalidRequest("A required tool call cannot be enforced by this server.", "tool_choice")
    return {}


def rid_of(submit: Submit) -> str:
    """Return the id that the engine knows a choice by."""
    return f"{submit.key.request_id}-{submit.key.choice}" if submit.engine_rid is None else submit.engine_rid


def generate_fields(
    submit: Submit,
    *,
    stream: bool,
    own_end_ids: frozenset[int] = frozenset(),
    tool_constraint: ToolConstraint = no_tool_constraint,
) -> dict[str, Any]:
    """Return the body as an object, which a render route shows; own_end_ids are ids the engine ends at by itself.

    Raises InvalidRequest for what no engine of this API can be asked for.
    """
    start = submit.prompt_logprobs_from
    return {
        "rid": rid_of(submit),
        **_placement(submit),
        "input_ids": submit.prompt_ids,
        "require_reasoning": bool(submit.in_reasoning),
        "sampling_params": {**_sampling(submit, own_end_ids, tool_constraint), **submit.passed_sampling},
        "stream": stream,
        "return_logprob": submit.logprobs or start is not None,
        "logprob_start_len": -1 if start is None else start,
        "top_logprobs_num": submit.num_top_logprobs,
        **({"token_ids_logprob": submit.logprob_token_ids} if submit.logprob_token_ids else {}),
        "return_hidden_states": False,
        **submit.passed_fields,
    }


def generate_body(
    submit: Submit,
    *,
    own_end_ids: frozenset[int] = frozenset(),
    tool_constraint: ToolConstraint = no_tool_constraint,
) -> bytes:
    """Return the exact body that a choice is submitted with: streamed, and without text beside its logprobs.

    Raises InvalidRequest for what no engine of this API can be asked for.
    """
    fields = generate_fields(submit, stream=True, own_end_ids=own_end_ids, tool_constraint=tool_constraint)
    return orjson.dumps({**fields, "return_text_in_logprobs": False})


def _placement(submit: Submit) -> dict[str, Any]:
    given = {"priority": submit.priority, "routing_key": submit.routing_key}
    return {name: value for name, value in given.items() if value is not None}


def _sampling(submit: Submit, own_end_ids: frozenset[int], tool_constraint: ToolConstraint) -> dict[str, Any]:
    """Return sampling_params with all their keys, null where nothing is asked for."""
    sampling, penalties, form = submit.sampling, submit.penalties, submit.form
    is_greedy = sampling.temperature < GREEDY_BELOW
    constraint = _constraint(submit, tool_constraint)
    budget = submit.rules.thinking_budget_tokens if submit.rules is not None else None
    return {
        "max_new_tokens": None if submit.is_open_ended else submit.max_new_tokens,
        "stop": list(submit.stop) or None,
        "stop_token_ids": sorted(submit.stop_token_ids - own_end_ids) or None,
        "stop_regex": list(submit.stop_regex) or None,
        "temperature": 1.0 if is_greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 1 if is_greedy else sampling.top_k or ALL_TOKENS,
        "min_p": sampling.min_p,
        "frequency_penalty": penalties.frequency,
        "presence_penalty": penalties.presence,
        "repetition_penalty": penalties.repetition,
        "min_new_tokens": submit.min_new_tokens,
        "n": 1,
        **{name: constraint.get(name) for name in ("json_schema", "regex", "ebnf", "structural_tag")},
        "ignore_eos": submit.ignores_eos,
        "skip_special_tokens": form.skip_special_tokens,
        "spaces_between_special_tokens": True,
        "no_stop_trim": form.keep_stop,
        "stream_interval": None,
        "logit_bias": {str(token_id): bias for token_id, bias in submit.logit_bias} or None,
        "sampling_seed": sampling.seed,
        "custom_params": None if budget is None else {"thinking_budget": budget},
    }


def _constraint(submit: Submit, tool_constraint: ToolConstraint) -> Mapping[str, str]:
    """Return the constraint among sampling_params, by name; raises InvalidRequest for one that has no place there."""
    if submit.rules is None:
        return {}
    if submit.rules.allowed_token_ids is not None:
        text = "allowed_token_ids is not served in front of a /generate engine, which has no such field."
        raise InvalidRequest(text, "allowed_token_ids")
    if submit.rules.grammar is None:
        return {}
    constraint = submit.rules.grammar.constraint
    return tool_constraint(constraint) if isinstance(constraint, ToolGrammar) else text_constraint(constraint)


def text_constraint(grammar: TextGrammar) -> Mapping[str, str]:
    """Return a text's constraint as one of sampling_params, by name."""
    if grammar.kind == "json_object":
        return {"json_schema": '{"type":"object"}'}
    if grammar.kind == "choice":
        return {"regex": "|".join(f"({re.escape(text)})" for text in orjson.loads(grammar.text))}
    return {grammar.kind: grammar.text}
