"""The Jinja that checkpoints' chat templates are written in, in a sandbox, with an end to time and output.

As `transformers` compiles them: an immutable sandbox, blocks that take their line with them, `tojson` without HTML
escapes, `raise_exception`, `strftime_now`, loop controls and `generation` blocks. Over that: `fromjson`, and a budget
that every loop step and every call draws from, since whoever writes a message decides how much there is to loop over.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from attrs import define, field
from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# A conversation of a million tokens renders in a tenth of this.
MAX_RENDER_S = 10.0
MAX_OUTPUT_CHARACTERS = 64 * 1024 * 1024
STEPS_BETWEEN_LOOKS = 64
BUDGET = "__budget__"
MAX_WIDTH = 1_000_000
_WIDE = re.compile(r"[%{][^%{}]{0,20}[0-9]{7}")


class TemplateRefused(TemplateError):
    """The template itself called raise_exception; its text is for the client."""


class BudgetExceeded(Exception):
    """A rendering took too long or made too much."""


@define(eq=False)
class Budget:
    """What one rendering may take; now_s is any clock that goes forward."""

    now_s: Callable[[], float]
    max_s: float = MAX_RENDER_S
    max_characters: int = MAX_OUTPUT_CHARACTERS
    _until_s: float = field(init=False)
    _steps: int = field(default=0, init=False)
    _characters: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._until_s = self.now_s() + self.max_s

    def step(self) -> None:
        """Count a step; raises BudgetExceeded when the time is up."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN_LOOKS == 0 and self.now_s() > self._until_s:
            raise BudgetExceeded(f"it takes longer than {self.max_s:g} s")

    def grow(self, num_characters: int) -> None:
        """Count output; raises BudgetExceeded when it is too much."""
        self._characters += num_characters
        self.check_size(self._characters)

    def check_size(self, num_characters: int) -> None:
        """Raise BudgetExceeded for a value that would be too large to print."""
        if num_characters > self.max_characters:
            raise BudgetExceeded(f"it makes more than {self.max_characters} characters")


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment whose calls and loops draw from the Budget among a rendering's variables."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute left operator right, refusing what only fills memory."""
        budget: Budget = context[BUDGET]
        if operator == "%":
            _check_widths(left)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                budget.check_size(left.bit_length() * abs(right))
        else:
            for repeated, times in ((left, right), (right, left)):
                if isinstance(repeated, str | bytes | list | tuple) and isinstance(times, int):
                    budget.check_size(len(repeated) * times)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls, as one step; its widths and counts are bounded like its output."""
        budget: Budget = context[BUDGET]
        budget.step()
        # The sandbox wraps str.format.
        _check_widths(getattr(getattr(obj, "__wrapped__", obj), "__self__", None))
        for value in args:
            if isinstance(value, int):
                budget.check_size(abs(value))
        return super().call(context, obj, *args, **kwargs)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        for loop in list(source.find_all(nodes.For)):
            tick = nodes.Filter(nodes.Const(None), "__step__", [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(tick).set_lineno(loop.lineno))
        for node in source.find_all(nodes.ExprStmt):
            node.set_environment(self)
        return super()._generate(source, *args, **kwargs)


class Generation(Extension):
    """`{% generation %}`: marks the assistant's words for training; a scope of its own, its text unchanged."""

    tags = {"generation"}  # noqa: RUF012  # declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse one block."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _check_widths(form: object) -> None:
    """Raise BudgetExceeded for a format string that pads to more than anything needs."""
    if isinstance(form, str) and ("%" in form or "{" in form) and _WIDE.search(form):
        raise BudgetExceeded("it pads to a width of seven digits")


def _bounded(function: Callable[..., str]) -> Callable[..., str]:
    """Return a filter of text whose numbers, counts and widths all, are bounded."""

    def bounded(text: Any, *args: Any, **kwargs: Any) -> str:
        for value in (text, *args, *kwargs.values()):
            if isinstance(value, int) and abs(value) > MAX_WIDTH:
                raise BudgetExceeded(f"it asks for a width of {value}")
        _check_widths(text)
        return function(text, *args, **kwargs)

    return bounded


@pass_context
def _step(context: Context, value: None) -> None:
    budget: Budget = context[BUDGET]
    budget.step()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> NoReturn:
    raise TemplateRefused(str(message))


class _Dict:
    """dict() without the class, whose attributes lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """namespace() without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def make_environment(today: Callable[[], datetime]) -> Sandbox:
    """Return the environment that templates are compiled in; today is local time for strftime_now."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters |= {"tojson": _to_json, "fromjson": json.loads, "__step__": _step}
    environment.filters |= {name: _bounded(environment.filters[name]) for name in ("center", "format", "indent")}
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: today().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


def render_within(template: Template, variables: Mapping[str, Any], budget: Budget) -> str:
    """Return the template's text; raises BudgetExceeded, or whatever the template does wrong."""
    pieces: list[str] = []
    for piece in template.generate({**variables, BUDGET: budget}):
        budget.grow(len(piece))
        pieces.append(piece)
    return "".join(pieces)
