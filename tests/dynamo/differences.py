"""Where Dynamo's preprocessor and this renderer differ, each difference by its cause."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, Literal

from attrs import frozen

from tests.dynamo.beside import DEFAULTS, Case, Model, compare, judged, prompt_ids, prompt_text
from tests.dynamo.cases import CONSTRAINTS, SAMPLING, Body, prompts, user
from tests.stages.prompt.jinja.styles import STYLES

Kind = Literal["prompts", "sampling", "constraints"]
WITH_TAGS = ("hermes", "qwen25", "qwen3_coder", "glm47", "kimi_k2", "deepseek_v3_2", "deepseek_v4", "nemotron_nano")
WITH_SCHEMAS = ("llama3_json", "mistral", "phi4", "pythonic", "jamba", "nemotron_deci", "minimax_m2", "minimax_m3")
PARSERS = (*WITH_TAGS, *WITH_SCHEMAS, "gemma4", "deepseek_v3", "deepseek_v3_1")
EVERY_TOKEN = 1 << 30
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": EVERY_TOKEN,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
}


@frozen
class Cause:
    """What Dynamo does otherwise: the models (none is any) and the cases it is found in, the first match counting."""

    what: str
    kind: Kind
    cases: tuple[str, ...]
    models: tuple[str, ...] = ()
    # The prompts are the same but for white space.
    is_spacing: bool = False
    # Ours is not transformers' either, which does worse or nothing here.
    departs: bool = False

    def explains(self, kind: Kind, case: Case) -> bool:
        if kind != self.kind or (self.models and case.model not in self.models):
            return False
        return any(fnmatch(case.name, pattern) for pattern in self.cases) and (not self.is_spacing or _spaced(case))


CAUSES = (
    Cause("reasoning put before no content hides the calls", "prompts", ("reasoning and a call",), ("granite",)),
    Cause("a token that takes the white space behind it does not", "prompts", ("*",), ("phi",), True),
    Cause("a strict tool whose schema leaves additionalProperties open is refused", "prompts", ("a strict tool",)),
    Cause("a tool gets a description and properties, and loses keys", "prompts", ("a tool w*", "a tool, parameters*")),
    Cause(
        "tojson knows neither sort_keys nor separators",
        "prompts",
        ("*tool*", "*choice*", "* schema"),
        ("hermes", "kimi"),
    ),
    Cause("a template that adds arguments to text is given objects", "prompts", ("*call*", "a result*"), ("deepseek",)),
    Cause("arguments of no text are no object", "prompts", ("a call, no arguments",)),
    Cause("integers beyond 64 bits become floats", "prompts", ("a call, arguments with a big integer",)),
    Cause("arguments stay text where the template takes both", "prompts", ("a call, arguments*",), ("qwen3", "kimi")),
    Cause("a developer's words are dropped, or refused", "prompts", ("*developer*",), departs=True),
    Cause("a call without content is refused where the template reads one", "prompts", ("a call, content null*",)),
    Cause("a list of no parts is refused, or shown as one", "prompts", ("no parts",), departs=True),
    Cause("parts are lines where the template joins them", "prompts", ("two parts*", "a result in p*"), ("glm4",)),
    Cause("two users in a row become one", "prompts", ("two users",), ("mistral",)),
    Cause("a late system stays one", "prompts", ("a system at the end",), ("gemma",), departs=True),
    Cause("nothing is shown as null", "prompts", ("empty text",), ("granite",)),
    Cause("temperature 0 is passed on, not made greedy", "sampling", ("temperature 0",)),
    Cause("logit_bias is dropped", "sampling", ("logit_bias",)),
    Cause("a named tool may be called more than once, or its arguments alone are written", "constraints", ("named",)),
    Cause("one schema is a choice of one", "constraints", ("required*",)),
    Cause("strict tools are no constraint", "constraints", ("auto, strict*", "auto, one strict"), ("llama3_json",)),
)


@frozen
class Difference:
    """A case that came out otherwise; cause is None where nobody knows why."""

    kind: Kind
    case: Case
    cause: Cause | None


@frozen
class Compared:
    """All that was compared."""

    num_cases: Mapping[Kind, int]
    differences: Sequence[Difference]


def compare_all(python: str) -> Compared:
    """Compare prompts of every style, sampling with and without defaults, constraints of every parser."""
    asked: dict[Kind, list[Case]] = {}
    asked["prompts"] = compare(python, {style: Model(style) for style in STYLES}, dict.fromkeys(STYLES, prompts()))
    plain: dict[str, Model] = {"plain": Model("chatml"), "defaults": Model("chatml", defaults=DEFAULTS)}
    asked["sampling"] = compare(python, plain, dict.fromkeys(plain, _hello(SAMPLING)))
    tools = {parser: Model("chatml", tool_parser=parser, structural_tag={}) for parser in PARSERS}
    asked["constraints"] = compare(python, tools, dict.fromkeys(tools, _hello(CONSTRAINTS)))
    agree = {"prompts": _same_prompt, "sampling": _same_sampling, "constraints": _same_constraint}
    found = [
        Difference(kind, case, next((cause for cause in CAUSES if cause.explains(kind, case)), None))
        for kind, cases in asked.items()
        for case in cases
        if not agree[kind](case)
    ]
    return Compared({kind: len(cases) for kind, cases in asked.items()}, found)


def judgement(case: Case) -> str:
    """Return whose prompt is that of transformers: ours, theirs, neither's, or that it has none."""
    expected = judged(case.model, case.body)
    if isinstance(expected, str):
        return "none"
    return {True: "ours", False: "theirs" if expected == prompt_ids(case.theirs) else "neither"}[
        expected == prompt_ids(case.ours)
    ]


def constraint(answer: Mapping[str, Any]) -> Any:
    """Return the grammar an engine is asked for by an answer of either, None for none."""
    if "error" in answer:
        return answer
    if "sampling_params" in answer:
        texts = ((name, answer["sampling_params"][name]) for name in ("structural_tag", "json_schema"))
        return next(({name: json.loads(text)} for name, text in texts if text), None)
    guided = answer["sampling_options"].get("guided_decoding") or {}
    names = {"structural_tag": "structural_tag", "json": "json_schema"}
    return next(({names[name]: guided[name]} for name in names if guided.get(name)), None)


def sampling(answer: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """Return how an answer of either is drawn and what ends it, the model's defaults put in where it leaves them."""
    if "error" in answer:
        return answer
    if "sampling_params" in answer:
        params = {**answer["sampling_params"], "seed": answer["sampling_params"]["sampling_seed"]}
        drawn = {name: params[name] for name in NEUTRAL}
        ends = [params[name] for name in ("max_new_tokens", "stop", "stop_token_ids", "ignore_eos", "min_new_tokens")]
        shape = [params["logit_bias"], answer["top_logprobs_num"] if answer["return_logprob"] else None]
        shape.append(params["skip_special_tokens"])
    else:
        given = {name: value for name, value in answer["sampling_options"].items() if value is not None}
        drawn = {name: given.get(name, default) for name, default in {**NEUTRAL, **defaults}.items()}
        drawn["top_k"] = EVERY_TOKEN if drawn["top_k"] == -1 else drawn["top_k"]
        conditions, output = answer["stop_conditions"], answer["output_options"]
        ends = [conditions[name] for name in ("max_tokens", "stop", "stop_token_ids")]
        ends += [bool(conditions["ignore_eos"]), conditions["min_tokens"] or 0]
        shape = [given.get("logit_bias"), output["logprobs"], output["skip_special_tokens"] is not False]
    # Dynamo's numbers have 32 bits.
    drawn = {name: round(value, 6) if isinstance(value, float) else value for name, value in drawn.items()}
    return drawn, ends, shape, constraint(answer)


def _hello(bodies: Mapping[str, Body]) -> dict[str, Body]:
    return {name: {"messages": [user()], **body} for name, body in bodies.items()}


def _spaced(case: Case) -> bool:
    theirs, ours = ("".join(prompt_text(case.model, answer).split()) for answer in (case.theirs, case.ours))
    return theirs == ours


def _same_prompt(case: Case) -> bool:
    return prompt_ids(case.theirs) == prompt_ids(case.ours)


def _same_sampling(case: Case) -> bool:
    defaults = DEFAULTS if case.model == "defaults" else {}
    return bool(sampling(case.theirs, defaults) == sampling(case.ours, defaults))


def _same_constraint(case: Case) -> bool:
    return bool(constraint(case.theirs) == constraint(case.ours))
