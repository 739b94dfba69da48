"""Chat template of GLM-5.3 and GLM-5.3-Flash: a Chat to segments. Core.

Theory of operation. The prompt is a run of turns with nothing between them; a role's control token begins a turn and
so ends the one before:

    [gMASK]<sop> <|system|>Reasoning Effort: Max  [<|system|>tools]  turn, turn, ...  <|assistant|><think>

An assistant turn always has a thinking block, empty when there is nothing to show in it, and generation begins inside
an open one unless thinking is switched off, which renders the empty block a past turn without reasoning has.
The list of tools explains the call format with the call's own control tokens, as the model was trained.

Source: the format in the checkpoint's chat_template.jinja; tests compare the two on random conversations.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.errors import InvalidRequest
from stages.messages import Chat, Tool
from stages.prompt.segments import Control, Segment, joined

Message = Mapping[str, Any]

GMASK, SOP = Control("[gMASK]"), Control("<sop>")
SYSTEM, USER, ASSISTANT, OBSERVATION = (
    Control(f"<|{role}|>") for role in ("system", "user", "assistant", "observation")
)
THINK, END_THINK = Control("<think>"), Control("</think>")
TOOL_CALL, END_TOOL_CALL = Control("<tool_call>"), Control("</tool_call>")
RESPONSE, END_RESPONSE = Control("<tool_response>"), Control("</tool_response>")
ARG_KEY, END_ARG_KEY = Control("<arg_key>"), Control("</arg_key>")
ARG_VALUE, END_ARG_VALUE = Control("<arg_value>"), Control("</arg_value>")

EFFORTS = {"low": "Low", "high": "High"}
UNLISTED_KEYS = ("defer_loading", "strict")

TOOLS_HEAD = (
    "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
TOOLS_TAIL = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
)


def render(chat: Chat) -> tuple[Segment, ...]:
    """Render a chat as segments; raises InvalidRequest naming the message that cannot be rendered."""
    return joined(_segments(chat))


TEMPLATE = render


def _segments(chat: Chat) -> Iterator[Segment]:
    effort = EFFORTS.get(str(chat.template.get("reasoning_effort")), "Max")
    yield from (GMASK, SOP, SYSTEM, f"Reasoning Effort: {effort}")
    if chat.tools:
        yield from _tools(chat.tools)
    closed = chat.messages
    final = _continued(chat)
    if final is not None:
        closed = closed[:-1]
    keep_from = _last_user(chat.messages) if chat.template.get("clear_thinking") else -1
    index = 0
    while index < len(closed):
        role = _role(closed[index], index)
        if role == "tool":
            end = _end_of_tools(closed, index)
            yield from _observation(closed, index, end)
            index = end
            continue
        yield from _turn(role, closed[index], index, keep_thinking=index > keep_from)
        index += 1
    if final is not None:
        yield from final
    elif chat.opens_turn:
        yield from _opening(chat)


def _turn(role: str, message: Message, index: int, *, keep_thinking: bool) -> Iterator[Segment]:
    content = _text(message, index)
    if role == "assistant":
        reasoning, content = _reasoning(message, content)
        yield from (ASSISTANT, THINK, reasoning if keep_thinking else "", END_THINK, content.strip())
        yield from _calls(message, index)
        return
    yield from (USER if role == "user" else SYSTEM, content)


def _opening(chat: Chat) -> Iterator[Segment]:
    """Yield what generation begins with: an open thinking block, or a closed one when thinking is off."""
    yield from (ASSISTANT, THINK)
    if any(chat.template.get(switch) in (False, 0) for switch in ("enable_thinking", "thinking")):
        yield END_THINK


def _continued(chat: Chat) -> tuple[Segment, ...] | None:
    """Return the last message left open to go on from, or None when there is nothing to continue.

    A message with reasoning alone is continued inside its thinking block.
    """
    if not chat.continue_final_message or not chat.messages:
        return None
    index = len(chat.messages) - 1
    message = chat.messages[index]
    if _role(message, index) != "assistant":
        return None
    if message.get("tool_calls"):
        raise InvalidRequest(
            "A message with tool_calls is complete and cannot be continued.", f"messages.{index}.tool_calls"
        )
    reasoning, content = _reasoning(message, _text(message, index))
    if content.strip():
        return (ASSISTANT, THINK, reasoning, END_THINK, content.strip())
    return (ASSISTANT, THINK, reasoning) if reasoning else None


def _reasoning(message: Message, content: str) -> tuple[str, str]:
    """Split an assistant message into its reasoning and its content; a thinking block in the text is recognised."""
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str):
        return reasoning, content
    if END_THINK.text not in content:
        return "", content
    before, after = content.split(END_THINK.text, 1)[0], content.rsplit(END_THINK.text, 1)[1]
    return before.rsplit(THINK.text, 1)[-1], after


def _calls(message: Message, index: int) -> Iterator[Segment]:
    for number, call in enumerate(message.get("tool_calls") or ()):
        where = f"messages.{index}.tool_calls.{number}"
        name, arguments = call.get("name"), call.get("arguments")
        if not isinstance(name, str):
            raise InvalidRequest("A tool call needs a name.", f"{where}.name")
        if not isinstance(arguments, Mapping):
            raise InvalidRequest("The arguments of a tool call must be an object.", f"{where}.arguments")
        yield from (TOOL_CALL, name)
        for key, value in arguments.items():
            yield from (ARG_KEY, str(key), END_ARG_KEY, ARG_VALUE, _value(value), END_ARG_VALUE)
        yield END_TOOL_CALL


def _observation(messages: Sequence[Message], start: int, end: int) -> Iterator[Segment]:
    """Yield one block for the run of tool messages [start, end), in the order of the calls where that is certain."""
    calls = messages[start - 1].get("tool_calls") or () if start > 0 else ()
    call_ids = [call.get("id") for call in calls]
    results = {messages[index].get("tool_call_id"): index for index in range(start, end)}
    order: Sequence[int] = range(start, end)
    if _certain(call_ids) and len(results) == end - start and all(key in call_ids for key in results):
        order = [results[key] for key in call_ids if key in results]
    yield OBSERVATION
    for index in order:
        yield from (RESPONSE, _text(messages[index], index), END_RESPONSE)


def _certain(ids: list[Any]) -> bool:
    return all(ids) and len(set(ids)) == len(ids)


def _tools(tools: Sequence[Tool]) -> Iterator[Segment]:
    yield from (SYSTEM, TOOLS_HEAD)
    for tool in tools:
        function = tool.definition.get("function", tool.definition)
        if not function.get("defer_loading"):
            parts = (f'"{key}": {_json(value)}' for key, value in function.items() if key not in UNLISTED_KEYS)
            yield "{" + ", ".join(parts) + "}\n"
    yield from (TOOLS_TAIL, TOOL_CALL, "{function-name}")
    for number in (1, 2):
        yield from (ARG_KEY, f"{{arg-key-{number}}}", END_ARG_KEY, ARG_VALUE, f"{{arg-value-{number}}}", END_ARG_VALUE)
    yield from ("...", END_TOOL_CALL)


def _role(message: Message, index: int) -> str:
    role = message.get("role")
    if role == "developer":
        return "system"
    if role not in ("system", "user", "assistant", "tool"):
        raise InvalidRequest(f"Unknown message role {role!r}.", f"messages.{index}.role")
    return str(role)


def _text(message: Message, index: int) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise InvalidRequest("The content of a message must be text.", f"messages.{index}.content")
    return content


def _last_user(messages: Sequence[Message]) -> int:
    return max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=-1)


def _end_of_tools(messages: Sequence[Message], start: int) -> int:
    end = start
    while end < len(messages) and messages[end].get("role") == "tool":
        end += 1
    return end


def _value(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
