"""Whether a model thinks, from its chat template: the switch its code reads and what that is when nobody sets it. Core.

What the end of a rendered prompt shows comes first: an open thinking block, or one that was closed at once. Only where
it shows neither does the switch say what the model will do.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from attrs import frozen
from jinja2 import Environment

SWITCHES = ("enable_thinking", "thinking")
OPENING = ("<think>", "[THINK]", "<|START_THINKING|>", "<seed:think>", "◁think▷")
CLOSING = ("</think>", "[/THINK]", "<|END_THINKING|>", "</seed:think>", "◁/think▷")


@frozen
class Thinking:
    """always: on in every answer; effort: on where an effort is asked for; switch: as `name` says, else `default`."""

    kind: Literal["always", "effort", "switch", "unknown"]
    name: str = ""
    default: bool = False

    def is_on(self, variables: Mapping[str, Any]) -> bool | None:
        """Return whether the model thinks under these template variables, None when there is no telling."""
        if self.kind == "always":
            return True
        if self.kind == "effort":
            return variables.get("reasoning_effort") not in (None, "none")
        return bool(variables.get(self.name, self.default)) if self.kind == "switch" else None


def thinking_of(source: str, environment: Environment) -> Thinking:
    """Return what a template's source says of thinking."""
    if "<|channel|>" in source:
        return Thinking("always")
    if "reasoning_effort" in source and "[THINK]" in source:
        return Thinking("effort")
    code = " ".join(_code(source, environment))
    for name in SWITCHES:
        if re.search(rf"\b{name}\b", code):
            default = _default(code, name)
            return Thinking("unknown") if default is None else Thinking("switch", name, default)
    return Thinking("unknown")


def begins_inside(prompt: str) -> bool | None:
    """Return whether a prompt ends in an open thinking block, False for one just closed, None for neither."""
    end = prompt.rstrip()
    return True if end.endswith(OPENING) else False if end.endswith(CLOSING) else None


def continues_inside(answer: str) -> bool:
    """Return whether a partial answer ends inside a thinking block it opened."""
    return max(map(answer.rfind, OPENING)) > max(map(answer.rfind, CLOSING))


def _code(source: str, environment: Environment) -> Iterable[str]:
    """Yield the template's code, token by token, without its texts, comments and string literals."""
    in_code = False
    for _, kind, value in environment.lex(source):
        if kind in ("block_begin", "variable_begin"):
            in_code = True
            yield "{%"
        elif kind in ("block_end", "variable_end"):
            in_code = False
            yield "%}"
        elif in_code and kind != "whitespace":
            yield '""' if kind == "string" else value


def _default(code: str, name: str) -> bool | None:
    """Return what the code takes for the switch when it is not set; evidence of off weighs more than of on."""
    unset = rf"(?:not {name} is defined|{name} is not defined)"
    found = {
        value.lower() == "true"
        for pattern in (
            rf"\b{name} \| default \( (true|false) \)",
            rf"\bif {unset} %}} {{% set {name} = (true|false)\b",
            rf"\b{name} if {name} is defined else (true|false)\b",
            rf"\bnamespace \((?: \w+ = [^(),]+,)* {name} = (true|false)\b",
        )
        for value in re.findall(pattern, code, re.IGNORECASE)
    }
    on = (rf"\b{name} is defined and (?:{name} is false|not {name})\b", rf"\b{name} is not defined or {name}\b")
    if any(re.search(pattern, code, re.IGNORECASE) for pattern in on):
        found.add(True)
    return None if not found else False not in found
