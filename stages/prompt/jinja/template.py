"""A checkpoint's chat template: a Chat to the text it makes, its control tokens told from everybody's words.

Theory of operation. At start each text is compiled and probed (`probing.py`) for the shape of messages it takes, and
its code is read for the switch of its thinking. A chat then becomes messages of that shape, with control texts in
them broken (`marks.py`); the text is rendered within a budget (`dialect.py`).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import define, frozen
from jinja2 import Template, TemplateSyntaxError

from stages.errors import ConfigError, InvalidRequest
from stages.messages import Chat, Tool
from stages.prompt.jinja.dialect import (
    Budget,
    BudgetExceeded,
    TemplateRefused,
    make_environment,
    render_within,
)
from stages.prompt.jinja.marks import ControlTexts, Marker, control_texts, free_mark
from stages.prompt.jinja.probing import Message, Traits, probe, reasoning_fields
from stages.prompt.jinja.thinking import (
    CLOSING,
    OPENING,
    SWITCHES,
    Thinking,
    begins_inside,
    continues_inside,
    thinking_of,
)
from stages.prompt.segments import Marked
from stages.settings import TemplateSource

ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
# In an assistant's words these are what they say, whether or not the template speaks of them.
THINKING_TAGS = (*OPENING, *CLOSING)
# Behind the message to go on from; the space tells whether the template trims it.
CONTINUED = f"{chr(0xF0100)} "
PROBE_S = 2.0


@frozen(eq=False)
class Compiled:
    """One text of a template and what is known of it."""

    template: Template
    traits: Traits
    thinking: Thinking


@define(eq=False)
class JinjaTemplate:
    """Renders chats; raises InvalidRequest with the template's own words when it refuses one."""

    source: TemplateSource
    texts: ControlTexts
    now_s: Callable[[], float]
    compiled: Mapping[str, Compiled]

    def __call__(self, chat: Chat) -> Marked:
        """Render a chat."""
        if not self.compiled:
            why = self.source.missing
            raise InvalidRequest(f"This model has no usable chat template: {why}.", "messages", "invalid_value")
        compiled = self.compiled["tool_use" if chat.tools and "tool_use" in self.compiled else "default"]
        marker = self._marker(chat)
        variables = self._variables(chat, compiled, marker)
        final = _final(chat)
        messages = _messages(chat, compiled, marker)
        if final is not None:
            _extend(messages[-1], CONTINUED)
        text = self._rendered(
            compiled,
            {
                **variables,
                "messages": messages,
                "tools": [marker.value(_tool(tool)) for tool in chat.tools] or None,
                "add_generation_prompt": final is None and chat.opens_turn,
                "continue_final_message": final is not None,
            },
        )
        if final is None:
            in_reasoning = begins_inside(text) if chat.opens_turn else None
            if in_reasoning is None:
                in_reasoning = compiled.thinking.is_on(variables)
        else:
            last = chat.messages[-1].get("parts", (final,))[-1]
            text = _cut(text, marker.text(last, THINKING_TAGS))
            in_reasoning = continues_inside(final)
        return Marked(text, marker.mark, in_reasoning)

    def _marker(self, chat: Chat) -> Marker:
        texts = control_texts(()) if self.source.trusts_special_tokens else self.texts
        try:
            mark = free_mark((chat.messages, [tool.definition for tool in chat.tools], chat.template, chat.facts))
        except ValueError:
            raise InvalidRequest("The messages use up all private characters.", "messages") from None
        return Marker(texts, mark)

    def _variables(self, chat: Chat, compiled: Compiled, marker: Marker) -> dict[str, Any]:
        """Return what the template may read besides messages and tools; the request's switches over the defaults."""
        asked: dict[str, Any] = marker.switch(chat.template)
        for name, other in (SWITCHES, SWITCHES[::-1]):
            if name in asked:
                asked.setdefault(other, asked[name])
        variables = {
            # As in transformers, which always has it.
            "documents": None,
            **self.source.variables,
            **marker.switch(chat.facts),
            **self.source.defaults,
            **asked,
        }
        if compiled.thinking.kind == "switch":
            variables.setdefault(compiled.thinking.name, compiled.thinking.default)
        return variables

    def _rendered(self, compiled: Compiled, variables: Mapping[str, Any]) -> str:
        try:
            return render_within(compiled.template, variables, Budget(self.now_s))
        except TemplateRefused as error:
            raise InvalidRequest(str(error), "messages", "invalid_value") from None
        except BudgetExceeded as error:
            text = f"The chat template cannot render these messages: {error}."
            raise InvalidRequest(text, "messages", "invalid_value") from None
        except Exception as error:  # a template is a program of somebody else's and fails in any way it likes
            text = f"The chat template fails on these messages: {type(error).__name__}: {error}"
            raise InvalidRequest(text, "messages", "invalid_value") from None


def open_jinja(
    source: TemplateSource,
    control: Iterable[str],
    now_s: Callable[[], float],
    today: Callable[[], datetime] = datetime.now,
) -> JinjaTemplate:
    """Compile and probe a template; raises ConfigError when it is not Jinja. control has the added tokens' texts."""
    environment = make_environment(today)
    compiled: dict[str, Compiled] = {}
    for name, text in source.texts.items():
        try:
            template = environment.from_string(text)
            thinking = thinking_of(text, environment)
        except TemplateSyntaxError as error:
            raise ConfigError(f"the chat template is not valid: line {error.lineno}: {error.message}") from None

        def attempt(messages: Sequence[Message], template: Template = template) -> str | None:
            try:
                return render_within(template, {**source.variables, "messages": messages}, Budget(now_s, PROBE_S))
            except Exception:  # whatever it is, these messages are none for it
                return None

        compiled[name] = Compiled(template, probe(attempt, text), thinking)
    return JinjaTemplate(source, control_texts(control), now_s, compiled)


def _final(chat: Chat) -> str | None:
    """Return the text of the assistant's message that is to be gone on from, None when there is none."""
    if not chat.continue_final_message or not chat.messages:
        return None
    last = chat.messages[-1]
    content = last.get("content")
    if last.get("role") != "assistant" or not isinstance(content, str):
        return None
    if last.get("tool_calls"):
        where = f"messages.{len(chat.messages) - 1}.tool_calls"
        raise InvalidRequest("A message with tool_calls is complete and cannot be continued.", where)
    return content


def _extend(message: Message, text: str) -> None:
    content = message.get("content", "")
    if isinstance(content, str):
        message["content"] = content + text
    else:
        content[-1]["text"] += text


def _cut(text: str, final: str) -> str:
    """Return a prompt up to where its last message was to be gone on from."""
    end = text.rfind(CONTINUED[0])
    if end < 0 or final.strip() not in text:
        raise InvalidRequest(
            "The chat template does not show the final message as it is, so it cannot be continued.",
            "continue_final_message",
            "invalid_value",
        )
    return text[:end] if text.startswith(CONTINUED, end) else text[:end].rstrip()


def _messages(chat: Chat, compiled: Compiled, marker: Marker) -> list[Message]:
    messages = [_message(message, f"messages.{index}", compiled, marker) for index, message in enumerate(chat.messages)]
    if not compiled.traits.takes_developer:
        messages = _without_developers(messages)
    if not compiled.traits.takes_late_system:
        messages = _without_late_systems(messages, merges=not compiled.traits.takes_two_users)
    for message in messages:
        parts = message.pop("parts", None)
        takes_parts = compiled.traits.takes_parts_only or (parts and message["role"] in compiled.traits.joins_parts_of)
        if takes_parts and isinstance(message.get("content"), str):
            message["content"] = [{"type": "text", "text": text} for text in parts or [message["content"]]]
    return messages


def _message(message: Mapping[str, Any], path: str, compiled: Compiled, marker: Marker) -> Message:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"Unknown message role {role!r}.", f"{path}.role")
    kept = THINKING_TAGS if role == "assistant" else ()
    # Templates ask whether a key is there, not whether it is null.
    result: Message = {
        key: [marker.text(text, kept) for text in value] if key == "parts" else marker.value(value, kept)
        for key, value in message.items()
        if value is not None and key != "role"
    }
    result["role"] = role
    if not isinstance(result.get("content", ""), str):
        raise InvalidRequest("The content of a message must be text.", f"{path}.content")
    if "parts" in result:
        result["content"] = "\n".join(result["parts"])
    if compiled.traits.needs_content:
        result.setdefault("content", "")
    reasoning = result.pop("reasoning_content", None)
    if reasoning is not None and role == "assistant":
        if compiled.traits.reads_reasoning:
            result |= reasoning_fields(reasoning)
        elif reasoning and not (compiled.traits.hides_calls and result.get("tool_calls") and not result.get("content")):
            result["content"] = f"<think>{reasoning}</think>{result.get('content', '')}"
            result.pop("parts", None)
    if calls := result.pop("tool_calls", None):
        result["tool_calls"] = [_call(call, compiled.traits) for call in calls]
    return result


def _call(call: Mapping[str, Any], traits: Traits) -> Message:
    arguments = call.get("arguments", {})
    if traits.wants_arguments_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": call.get("name", ""), "arguments": arguments}
    return {**({"id": call["id"]} if call.get("id") else {}), "type": "function", "function": function}


def _without_developers(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with developers' as systems', joined with the first system's where they follow it."""
    result: list[Message] = []
    for message in messages:
        is_developers = message["role"] == "developer"
        turn = {**message, "role": "system"} if is_developers else message
        if is_developers and len(result) == 1 and result[0]["role"] == "system":
            texts = [text for text in (result[0].get("content"), turn.get("content")) if text]
            result = [{"role": "system", "content": "\n\n".join(texts)}]
        else:
            result.append(turn)
    return result


def _without_late_systems(messages: Sequence[Message], *, merges: bool) -> list[Message]:
    """Return the messages with systems after the first one as users' turns, joined with a user's beside them if so."""
    result: list[Message] = []
    was_system = False
    for index, message in enumerate(messages):
        is_late = index > 0 and message["role"] == "system"
        turn = {**message, "role": "user"} if is_late else message
        beside = bool(result) and result[-1]["role"] == turn["role"] == "user" and (is_late or was_system)
        if merges and beside:
            before = {key: value for key, value in result[-1].items() if key != "parts"}
            result[-1] = {**before, "content": f"{before.get('content', '')}\n\n{turn.get('content', '')}"}
        else:
            result.append(turn)
        was_system = is_late
    return result


def _tool(tool: Tool) -> Mapping[str, Any]:
    definition = tool.definition
    return definition if "function" in definition else {"type": "function", "function": definition}
