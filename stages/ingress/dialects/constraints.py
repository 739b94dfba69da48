"""Fields that say which tokens may come and which come likelier, the same in every dialect that is no native one.

Masks (grammars, allowed_token_ids, thinking budgets, min_tokens) and changed logits (penalties, logit_bias) need inputs
that the compiled graphs have only with --structured-outputs and --penalties. A field that asks for one is refused
without it by `need`, the one place that says so; what clients send whether or not they need it (an empty logit_bias,
penalties of zero, strict tools, a Messages thinking budget) never is.
"""

from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialects.fields import Flag, flag_name, shown
from stages.ingress.dialects.grammars import Found, GrammarFields, read_grammar
from stages.messages import Ask, Constraint, Penalties, TextForm, Tool, ToolGrammar
from stages.settings import ModelSettings

MAX_LOGIT_BIAS = 100
MAX_KEY_DIGITS = 20
# Fields that have values which need no flag.
PARTLY_SERVED = ("tool_choice", "response_format", "text.format")
# Grammars in which no tool call can stand; a structural tag or an EBNF may spell one out.
WITHOUT_CALLS = ("json_schema", "json_object", "regex", "choice")


@frozen(kw_only=True, slots=False)
class ConstraintFields(GrammarFields):
    """The fields; a wire class of a request's body inherits them."""

    frequency_penalty: float = field(default=0.0, metadata=shown(needs="penalties"))
    presence_penalty: float = field(default=0.0, metadata=shown(needs="penalties"))
    repetition_penalty: float | None = field(default=None, metadata=shown(needs="penalties"))
    logit_bias: dict[str, float] | None = field(default=None, metadata=shown(needs="penalties"))
    allowed_token_ids: list[int] | None = field(default=None, metadata=shown(needs="structured_outputs"))
    thinking_token_budget: int | None = field(default=None, metadata=shown(needs="structured_outputs"))


@frozen
class ToolChoice:
    """A tool_choice, whatever its dialect: whether tools may or must be called, and which; names None is any."""

    may_call: bool
    is_required: bool = False
    names: tuple[str, ...] | None = None
    # One tool was named: exactly one call of it is wanted.
    is_named: bool = False


def need(flag: Flag, field: str, model: ModelSettings) -> None:
    """Raise InvalidRequest naming field and flag where the server was started without the flag."""
    if not getattr(model, flag):
        text = f"{field} requires the server to be launched with {flag_name(flag)}."
        raise InvalidRequest(text, field, "unsupported_value" if field in PARTLY_SERVED else "unsupported_parameter")


def constrain(
    ask: Ask,
    body: ConstraintFields,
    model: ModelSettings,
    form: Found | None = None,
    tools: ToolGrammar | None = None,
    *,
    after_reasoning: bool = True,
) -> Ask:
    """Return the ask with what its body asks of tokens; raises InvalidRequest naming the field, and the flag it needs.

    Penalties the ask has already are the model's, for a body without any.
    `form` is what the dialect's own format field asks for, `tools` what its tools and tool_choice do.
    """
    text = read_grammar(body, form, after_reasoning=after_reasoning)
    if text is not None:
        need("structured_outputs", text[0], model)
    return evolve(
        ask,
        form=_form(ask, text, model),
        constraint=_one(text, tools),
        constraint_field=None if text is None else text[0],
        penalties=read_penalties(
            body.frequency_penalty,
            body.presence_penalty,
            body.repetition_penalty,
            model,
            default=ask.penalties.repetition,
        ),
        logit_bias=_logit_bias(body.logit_bias, model),
        allowed_token_ids=_allowed(body.allowed_token_ids, model),
        thinking_budget_tokens=_budget(body.thinking_token_budget, model, ask.thinking_budget_tokens),
    )


def tool_grammar(
    choice: ToolChoice, tools: Sequence[Tool], model: ModelSettings, *, is_parallel: bool
) -> ToolGrammar | None:
    """Return how calls are constrained, None for not at all; raises InvalidRequest naming the flag it needs.

    Strict tools and calls that must not be parallel are wishes without the flag: clients send both by default.
    """
    if not choice.may_call:
        return None
    names = choice.names if choice.names is not None else tuple(tool.name for tool in tools)
    if choice.is_required or choice.names is not None:
        need("structured_outputs", "tool_choice", model)
        return ToolGrammar(tuple(tools), choice.is_required, names, is_parallel and not choice.is_named)
    if model.structured_outputs and (not is_parallel or any(tool.is_strict for tool in tools)):
        return ToolGrammar(tuple(tools), is_required=False, names=names, is_parallel=is_parallel)
    return None


def read_penalties(
    frequency: float,
    presence: float,
    repetition: float | None,
    model: ModelSettings,
    names: tuple[str, str, str] = ("frequency_penalty", "presence_penalty", "repetition_penalty"),
    default: float = 1.0,
) -> Penalties:
    """Return penalties in range, `default` for a repetition of None; raises InvalidRequest naming field or flag."""
    if repetition is None:
        repetition = default
    for name, value in zip(names[:2], (frequency, presence), strict=True):
        if not -2 <= value <= 2:
            raise _wrong(name, f"{name} must be in [-2, 2], got {value}.")
    if not 0 < repetition <= 2:
        raise _wrong(names[2], f"{names[2]} must be in (0, 2], got {repetition}.")
    for name, value, neutral in zip(names, (frequency, presence, repetition), (0, 0, 1), strict=True):
        if value != neutral:
            need("penalties", name, model)
    return Penalties(float(frequency), float(presence), float(repetition))


def key_id(key: str, vocab_size: int) -> int | None:
    """Return the token id a key of logit_bias stands for, None where it is no id of the vocabulary."""
    if not (key.isascii() and key.isdigit() and len(key) <= MAX_KEY_DIGITS and int(key) < vocab_size):
        return None
    return int(key)


def biases(given: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Return biases by rising id, those of nothing left out."""
    return tuple((token_id, float(bias)) for token_id, bias in sorted(given.items()) if bias)


def _form(ask: Ask, text: Found | None, model: ModelSettings) -> TextForm:
    """Return the form with no calls looked for where none can stand, and stop strings that wait for min_tokens."""
    form = ask.form
    if text is not None and text[1].kind in WITHOUT_CALLS:
        form = evolve(form, parse_tools=False)
    if model.structured_outputs and ask.limits.min_new_tokens:
        form = evolve(form, stops_after_tokens=ask.limits.min_new_tokens)
    return form


def _one(text: Found | None, tools: ToolGrammar | None) -> Constraint | None:
    """Return the constraint there is; a text's grammar goes before tools that may be called, but must not be."""
    if text is None:
        return tools
    if tools is not None and tools.is_required:
        name = text[0]
        fields = "response_format, regex, or ebnf" if name in ("response_format", "regex", "ebnf") else name
        message = (
            f"tool_choice 'required' or a named tool cannot be combined with {fields}: the tool-call constraint and "
            "the output constraint cannot both be honored."
        )
        raise _wrong("tool_choice", message)
    return text[1]


def _logit_bias(given: Mapping[str, float] | None, model: ModelSettings) -> tuple[tuple[int, float], ...]:
    by_id: dict[int, float] = {}
    for key, bias in (given or {}).items():
        if (token_id := key_id(key, model.vocab_size)) is None:
            raise _wrong("logit_bias", f"logit_bias must have keys in [0, {model.vocab_size - 1}], got {key[:64]}.")
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            text = f"logit_bias must have values in [-{MAX_LOGIT_BIAS}, {MAX_LOGIT_BIAS}], got {bias}."
            raise _wrong(f"logit_bias.{key}", text)
        by_id[token_id] = bias
    found = biases(by_id)
    if found:
        need("penalties", "logit_bias", model)
    return found


def _allowed(given: Sequence[int] | None, model: ModelSettings) -> frozenset[int] | None:
    if given is None:
        return None
    if not given:
        raise _wrong("allowed_token_ids", "allowed_token_ids must not be empty.")
    for token_id in given:
        if not 0 <= token_id < model.vocab_size:
            text = f"allowed_token_ids must be in [0, {model.vocab_size - 1}], got {token_id}."
            raise _wrong("allowed_token_ids", text)
    need("structured_outputs", "allowed_token_ids", model)
    return frozenset(given)


def _budget(given: int | None, model: ModelSettings, otherwise: int | None) -> int | None:
    """Return thinking_token_budget, or what the dialect's own field says where it asks for nothing."""
    if given is None or given == -1:
        return otherwise
    if given < 0:
        text = f"thinking_token_budget must be -1 (none) or at least 0, got {given}."
        raise _wrong("thinking_token_budget", text)
    need("structured_outputs", "thinking_token_budget", model)
    return given


def _wrong(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, name, "invalid_value")
