"""The many ways to say how hard to think, to the switches the chat template knows.

From strongest to weakest: chat_template_kwargs, reasoning {effort, enabled}, reasoning_effort, thinking. An effort of
none turns thinking off, any other turns it on.
"""

from collections.abc import Mapping
from typing import Any

from attrs import fields, frozen

from stages.ingress.dialects.openai_common import invalid, read_body

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
HIGHEST_EFFORT = 0.99
TRUE_WORDS = ("1", "true", "yes", "y", "on")


@frozen(kw_only=True)
class WireReasoning:
    """reasoning: {effort, enabled}, under both names that clients have for each."""

    effort: str | float | None = None
    reasoning_effort: str | float | None = None
    enabled: bool | float | str | None = None
    enable: bool | float | str | None = None

    def is_on(self) -> bool | None:
        """Return whether it asks for thinking, in words, numbers or plainly; None where it does not say."""
        value = self.enabled if self.enabled is not None else self.enable
        return value.strip().lower() in TRUE_WORDS if isinstance(value, str) else None if value is None else bool(value)


@frozen(kw_only=True)
class WireThinking:
    """thinking: {type, clear_thinking}."""

    type: str = "enabled"
    clear_thinking: bool | None = None


@frozen(kw_only=True)
class WireKwargs:
    """The template switches of chat_template_kwargs that are checked; others go to the template as they are."""

    reasoning_effort: str | float | None = None
    enable_thinking: bool | None = None
    thinking: bool | None = None
    clear_thinking: bool | None = None


CHECKED = frozenset(attribute.name for attribute in fields(WireKwargs))


@frozen(kw_only=True)
class ThinkingBody:
    """The fields of a body that speak of thinking."""

    reasoning_effort: str | float | None = None
    reasoning: WireReasoning | None = None
    thinking: bool | WireThinking | None = None
    chat_template_kwargs: WireKwargs | None = None


def read_template(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template switches a body sets; raises InvalidRequest naming the field."""
    body = read_body(ThinkingBody, dict(raw))
    others = raw.get("chat_template_kwargs") if body.chat_template_kwargs is not None else None
    switches: dict[str, Any] = {key: value for key, value in (others or {}).items() if key not in CHECKED}
    _read_thinking(switches, body.thinking)
    _read_effort(switches, body.reasoning_effort, "reasoning_effort")
    if body.reasoning is not None:
        is_on = body.reasoning.is_on()
        if is_on is not None:
            switches["enable_thinking"] = is_on
        _read_effort(switches, body.reasoning.reasoning_effort, "reasoning.reasoning_effort")
        _read_effort(switches, body.reasoning.effort, "reasoning.effort")
    _read_kwargs(switches, body.chat_template_kwargs or WireKwargs())
    return switches


def _read_thinking(switches: dict[str, Any], thinking: bool | WireThinking | None) -> None:
    if isinstance(thinking, bool):
        switches["enable_thinking"] = thinking
    elif thinking is not None:
        if thinking.type not in ("enabled", "disabled"):
            raise invalid("thinking.type", "thinking.type must be enabled or disabled.")
        switches["enable_thinking"] = thinking.type == "enabled"
        if thinking.clear_thinking is not None:
            switches["clear_thinking"] = thinking.clear_thinking


def _read_effort(switches: dict[str, Any], effort: str | float | None, param: str) -> None:
    if effort is None:
        return
    if not (effort in EFFORTS or _is_share(effort)):
        text = f"{param} must be one of {', '.join(EFFORTS)}, or a number from 0 to {HIGHEST_EFFORT}."
        raise invalid(param, text)
    switches["reasoning_effort"] = effort
    switches["enable_thinking"] = effort != "none"


def _is_share(effort: str | float) -> bool:
    try:
        return 0 <= float(effort) <= HIGHEST_EFFORT
    except ValueError:
        return False


def _read_kwargs(switches: dict[str, Any], kwargs: WireKwargs) -> None:
    if kwargs.reasoning_effort is not None:
        switches["reasoning_effort"] = kwargs.reasoning_effort
    enable = kwargs.enable_thinking if kwargs.enable_thinking is not None else kwargs.thinking
    if enable is not None:
        switches["enable_thinking"] = enable
    if kwargs.clear_thinking is not None:
        switches["clear_thinking"] = kwargs.clear_thinking
