"""Anthropic's system prompt and messages to the neutral form of stages.messages.Chat: text only.

Consecutive messages of one role are one turn. What the template has one place for comes in its order: a user's tool
results go before the text beside them, an assistant's thinking before its text and that before its calls. Blocks of
text are joined with a newline, an assistant's with nothing, as they were generated.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import field, frozen

from stages.errors import InvalidRequest
from stages.ingress.dialects.fields import clean, clean_json, shown
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.messages import Tool

# A line that claude-code begins its system prompt with; its hash changes with every request and no cache would hit.
BILLING_HEADER = "x-anthropic-billing-header:"
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
NOT_TEXT = ("image", "document", "container_upload")
# Blocks of an assistant's turn that Anthropic's own servers made and understand.
SKIPPED = ("redacted_thinking", "server_tool_use", "mcp_tool_use")
SKIPPED_SUFFIX = "_tool_result"
ERROR_PREFIX = "Error: "

Message = dict[str, Any]


@frozen(kw_only=True)
class WireMessage:
    """A message as sent."""

    role: str = field(metadata=shown(enum=list(ROLES)))
    content: str | list[Any]


@frozen
class _Block:
    """A content block and where it stands."""

    value: Mapping[str, Any]
    path: str

    @property
    def kind(self) -> str:
        """Return the block's type; raises InvalidRequest when it has none."""
        return self.text("type")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string of the block; raises InvalidRequest when it is another thing, or absent without default."""
        value = self.value.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise invalid(f"{self.path}.{key}", f"{self.path}.{key} must be a string.")
        return clean(value)

    def blocks(self, key: str) -> "list[_Block]":
        """Return the blocks under a key, a string there being one of text; raises InvalidRequest for other things."""
        return _blocks(self.value.get(key), f"{self.path}.{key}")

    def refusal(self, where: str) -> InvalidRequest:
        """Return the error of a block of a type that has no place where it is."""
        kind = self.kind
        if kind in NOT_TEXT:
            text = f"{self.path}: {kind} blocks are not supported by this server, the model reads text only."
        else:
            text = f"{self.path}.type: a block of type '{kind[:64]}' is not supported in {where}."
        return invalid(self.path, text, "unsupported_value")


@frozen
class _Turn:
    """The blocks of consecutive messages of one role; path is that of the last message."""

    role: str
    path: str
    blocks: list[_Block] = field(factory=list)


@frozen
class Conversation:
    """Messages in neutral form; continues says that the last one, the assistant's, is to be gone on with."""

    messages: tuple[Message, ...]
    continues: bool


def read_conversation(system: str | list[Any] | None, raw: list[Any] | None, tools: Iterable[Tool]) -> Conversation:
    """Return the conversation in neutral form; raises InvalidRequest naming the path of what is wrong."""
    if not raw:
        raise invalid("messages", "messages must have at least one message.")
    by_name = {tool.name: tool for tool in tools}
    messages: list[Message] = []
    if text := _system_text(_blocks(system, "system"), "system"):
        messages.append({"role": "system", "content": text})
    turns = _turns(raw)
    for turn in turns:
        messages += _READERS[turn.role](turn, by_name)
    return _opened(messages, turns[-1])


def _opened(messages: list[Message], last_turn: _Turn) -> Conversation:
    """Return the conversation with a last assistant message left open, or without it when there is nothing in it."""
    last = messages[-1]
    if last["role"] != "assistant":
        return Conversation(tuple(messages), continues=False)
    if last.get("tool_calls"):
        text = f"{last_turn.path}: a tool_use block needs a tool_result block in the message after it."
        raise invalid(last_turn.path, text)
    if last["content"].strip() or last.get("reasoning_content"):
        return Conversation(tuple(messages), continues=True)
    return Conversation(tuple(messages[:-1]), continues=False)


def _turns(raw: list[Any]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, item in enumerate(raw):
        path = f"messages.{index}"
        wire = read_body(WireMessage, item, path)
        role = ROLES.get(wire.role)
        if role is None:
            text = f"{path}.role must be user, assistant or system, got '{wire.role[:64]}'."
            raise invalid(f"{path}.role", text, "unsupported_value")
        blocks = _blocks(wire.content, f"{path}.content")
        if turns and turns[-1].role == role:
            # In place: copying what came before would take the square of the number of messages.
            before = turns.pop().blocks
            before.extend(blocks)
            blocks = before
        turns.append(_Turn(role, path, blocks))
    return turns


def _blocks(content: Any, path: str) -> list[_Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return [_Block({"type": "text", "text": content}, path)]
    if not isinstance(content, list):
        raise invalid(path, f"{path} must be a string or a list of blocks.")
    for index, value in enumerate(content):
        if not isinstance(value, dict):
            raise invalid(f"{path}.{index}", f"{path}.{index} must be an object.")
    return [_Block(value, f"{path}.{index}") for index, value in enumerate(content)]


# ---------------------------------------------------------------------------------------------------------------------
# One turn to messages, by role
# ---------------------------------------------------------------------------------------------------------------------


def _system(turn: _Turn, tools: Mapping[str, Tool]) -> Iterator[Message]:
    yield {"role": "system", "content": _system_text(turn.blocks, "a system message")}


def _system_text(blocks: list[_Block], where: str) -> str:
    texts = []
    for block in blocks:
        if block.kind != "text":
            raise block.refusal(where)
        text = block.text("text")
        if text.lstrip().lower().startswith(BILLING_HEADER):
            text = text.lstrip().partition("\n")[2]
            if not text.strip():
                continue
        texts.append(text)
    return "\n".join(texts)


def _user(turn: _Turn, tools: Mapping[str, Tool]) -> Iterator[Message]:
    texts: list[str] = []
    results: list[Message] = []
    for block in turn.blocks:
        if block.kind == "text":
            texts.append(block.text("text"))
        elif block.kind == "search_result":
            texts.append(_search_result(block))
        elif block.kind == "tool_result":
            results.append(_tool_result(block, tools))
        else:
            raise block.refusal("a user message")
    yield from results
    if any(texts) or not results:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant(turn: _Turn, tools: Mapping[str, Tool]) -> Iterator[Message]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for block in turn.blocks:
        kind = block.kind
        if kind == "text":
            texts.append(block.text("text"))
        elif kind == "thinking":
            thoughts.append(block.text("thinking", ""))
        elif kind == "tool_use":
            calls.append(_tool_use(block))
        elif kind == "tool_result" or not (kind in SKIPPED or kind.endswith(SKIPPED_SUFFIX)):
            raise block.refusal("an assistant message")
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    yield message


_READERS: Mapping[str, Callable[[_Turn, Mapping[str, Tool]], Iterator[Message]]] = {
    "system": _system,
    "user": _user,
    "assistant": _assistant,
}


# ---------------------------------------------------------------------------------------------------------------------
# One block
# ---------------------------------------------------------------------------------------------------------------------


def _tool_use(block: _Block) -> Message:
    value = block.value.get("input")
    if not isinstance(value, dict):
        raise invalid(f"{block.path}.input", f"{block.path}.input must be an object.")
    return {"id": block.text("id"), "name": block.text("name"), "arguments": clean_json(value)}


def _tool_result(block: _Block, tools: Mapping[str, Tool]) -> Message:
    text = "\n".join(_result_text(inner, tools) for inner in block.blocks("content"))
    if block.value.get("is_error") is True:
        text = ERROR_PREFIX + text
    return {"role": "tool", "content": text, "tool_call_id": block.text("tool_use_id")}


def _result_text(block: _Block, tools: Mapping[str, Tool]) -> str:
    if block.kind == "text":
        return block.text("text")
    if block.kind == "search_result":
        return _search_result(block)
    if block.kind == "tool_reference":
        return _tool_reference(block, tools)
    raise block.refusal("a tool_result")


def _tool_reference(block: _Block, tools: Mapping[str, Tool]) -> str:
    """Return a tool found by search as the template lists tools; the name alone of one that is not in `tools`."""
    name = block.text("tool_name")
    if name not in tools:
        return name
    function = {key: value for key, value in tools[name].definition.items() if key != "defer_loading"}
    return f"<tools>\n{json.dumps(function, ensure_ascii=False)}\n</tools>"


def _search_result(block: _Block) -> str:
    texts = []
    for inner in block.blocks("content"):
        if inner.kind != "text":
            raise inner.refusal("a search_result")
        texts.append(inner.text("text"))
    return "\n".join([block.text("title", ""), block.text("source", ""), *texts])
