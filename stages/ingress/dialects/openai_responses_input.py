"""Input of the Responses API to the neutral messages of a chat.

Theory of operation. The input is a flat list of items; what the model did in one turn (reasoning, message, calls) is
several of them. Items are read one by one into turns: assistant items that follow one another join one turn, as long as
they come in the order a turn is generated in; anything else begins a new turn. Outputs of calls go behind the turn that
made the call, wherever they stand in the input.

What this server's own answers hold renders to the tokens that were generated, so that each turn of an agent finds the
one before in the prefix cache.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field, frozen

from stages.ingress.dialects.fields import clean
from stages.ingress.dialects.openai_common import invalid, read_body
from stages.ingress.dialects.openai_messages import parse_arguments
from stages.ingress.dialects.openai_responses_blob import MAX_UNPACKED_BYTES, unpack
from stages.ingress.dialects.openai_responses_tools import CUSTOM_INPUT, flat_name

ROLES = ("system", "developer", "user", "assistant")
TEXT_PARTS = ("input_text", "output_text", "text")

# Left by other providers, or by tools that run on OpenAI's platform: nothing this model said or can be told.
SKIPPED = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)


@frozen(kw_only=True)
class WireMessage:
    """A message, in any of its three forms; id, status and phase are ignored."""

    role: str
    content: str | list[Any]


@frozen(kw_only=True)
class WireReasoning:
    """A reasoning item."""

    summary: list[dict[str, Any]] | None = None
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


@frozen(kw_only=True)
class WireCall:
    """A function_call or custom_tool_call item."""

    call_id: str
    name: str
    arguments: str = ""
    input: str = ""
    namespace: str | None = None


@frozen(kw_only=True)
class WireOutput:
    """A function_call_output or custom_tool_call_output item."""

    call_id: str
    output: str | list[Any]


@frozen(kw_only=True)
class WireTools:
    """An additional_tools item."""

    tools: list[Any]


@define
class Turn:
    """One message in pieces, and the outputs of the calls it made."""

    role: str
    texts: list[str] = field(factory=list)
    thoughts: list[str] = field(factory=list)
    calls: list[dict[str, Any]] = field(factory=list)
    # The call a tool's message answers.
    call_id: str | None = None
    outputs: list["Turn"] = field(factory=list)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the message and then the outputs."""
        message: dict[str, Any] = {"role": self.role, "content": "\n".join(filter(None, self.texts))}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.call_id is not None:
            message["tool_call_id"] = self.call_id
        yield message
        for output in self.outputs:
            yield from output.messages()


@define
class History:
    """The input read so far; tools are the lists of additional_tools items with their paths."""

    turns: list[Turn] = field(factory=list)
    tools: list[tuple[str, list[Any]]] = field(factory=list)
    # Who made the call of that id.
    callers: dict[str, Turn] = field(factory=dict)
    # What the blobs that are still to come may unpack to.
    blob_bytes_left: int = MAX_UNPACKED_BYTES

    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """Return every turn followed by the outputs of its calls."""
        return tuple(message for turn in self.turns for message in turn.messages())

    def add(self, role: str, text: str) -> None:
        """Begin a turn."""
        self.turns.append(Turn(role, [text]))

    def add_text(self, text: str) -> None:
        """Add text the assistant wrote."""
        self._assistant().texts.append(text)

    def add_reasoning(self, text: str) -> None:
        """Add what the assistant thought, which always comes first in a turn."""
        turn = self._assistant()
        if any(turn.texts) or turn.calls:
            turn = self._begin_assistant()
        turn.thoughts.append(text)

    def add_call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Add a call the assistant made."""
        turn = self._assistant()
        turn.calls.append({"id": call_id, "name": name, "arguments": arguments})
        self.callers[call_id] = turn

    def add_output(self, call_id: str, text: str) -> None:
        """Add what a call gave; one that nobody made is a turn of its own."""
        caller = self.callers.get(call_id)
        (self.turns if caller is None else caller.outputs).append(Turn("tool", [text], call_id=call_id))

    def _assistant(self) -> Turn:
        last = self.turns[-1] if self.turns else None
        return last if last and last.role == "assistant" and not last.outputs else self._begin_assistant()

    def _begin_assistant(self) -> Turn:
        self.turns.append(Turn("assistant"))
        return self.turns[-1]


def read_input(value: str | list[Any], instructions: str | None) -> History:
    """Return the input as turns, the instructions first; raises InvalidRequest naming the path of what is wrong."""
    history = History()
    if instructions:
        history.add("system", instructions)
    if isinstance(value, str):
        history.add("user", value)
        return history
    for index, item in enumerate(value):
        _read_item(history, item, f"input.{index}")
    return history


def _read_item(history: History, item: Any, path: str) -> None:
    if not isinstance(item, dict):
        raise invalid(path, f"{path} must be an object.")
    kind = _kind(item, path)
    if kind == "message":
        _read_message(history, read_body(WireMessage, item, path), path)
    elif kind == "reasoning":
        text = _reasoning(history, read_body(WireReasoning, item, path), path)
        if text:
            history.add_reasoning(text)
    elif kind == "function_call":
        call = read_body(WireCall, item, path)
        history.add_call(call.call_id, flat_name(call.name, call.namespace), _arguments(call.arguments))
    elif kind == "custom_tool_call":
        call = read_body(WireCall, item, path)
        history.add_call(call.call_id, flat_name(call.name, call.namespace), {CUSTOM_INPUT: call.input})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = read_body(WireOutput, item, path)
        history.add_output(output.call_id, _text(output.output, f"{path}.output"))
    elif kind == "additional_tools":
        history.tools.append((f"{path}.tools", read_body(WireTools, item, path).tools))
    elif kind == "item_reference":
        text = "Items of earlier responses are not stored by this server; send the item itself."
        raise invalid(path, text, "unsupported_parameter")
    elif kind not in SKIPPED:
        raise invalid(f"{path}.type", f"Input items of type '{kind[:64]}' are not supported.", "unsupported_value")


def _kind(item: Mapping[str, Any], path: str) -> str:
    kind = item.get("type")
    if isinstance(kind, str):
        return clean(kind)
    if kind is not None:
        raise invalid(f"{path}.type", f"{path}.type must be a string.")
    if "role" in item:
        return "message"
    if "id" in item:
        return "item_reference"
    raise invalid(f"{path}.type", f"{path} needs a type, or a role.")


def _read_message(history: History, wire: WireMessage, path: str) -> None:
    role = wire.role
    if role not in ROLES:
        raise invalid(f"{path}.role", f"Role '{wire.role[:64]}' is not supported.", "unsupported_value")
    text = _text(wire.content, f"{path}.content", refusals=role == "assistant")
    if role == "assistant":
        history.add_text(text)
    else:
        history.add(role, text)


def _text(content: str | list[Any], path: str, *, refusals: bool = False) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{path}.{index}", refusals) for index, part in enumerate(content))


def _part(part: Any, path: str, refusals: bool) -> str:
    if not isinstance(part, dict):
        raise invalid(path, f"{path} must be an object.")
    kind = part.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{path}.type", f"{path}.type must be a string.")
    key = "refusal" if refusals and kind == "refusal" else "text"
    if key == "text" and kind not in TEXT_PARTS:
        problem = f"Model only supports text input; received unsupported content type '{clean(kind[:64])}'."
        raise invalid(path, problem, "unsupported_value")
    if not isinstance(part.get(key), str):
        raise invalid(f"{path}.{key}", f"{path}.{key} must be a string.")
    return clean(part[key])


def _reasoning(history: History, wire: WireReasoning, path: str) -> str:
    """Return what was thought: this server's own blob, which is exact, else the content, else the summary."""
    own = unpack(wire.encrypted_content, history.blob_bytes_left) if wire.encrypted_content else None
    if own is not None:
        history.blob_bytes_left -= len(own.encode())
        return own
    for name, parts, separator in (("content", wire.content, ""), ("summary", wire.summary, "\n")):
        texts = []
        for index, part in enumerate(parts or ()):
            if not isinstance(part.get("text"), str):
                raise invalid(f"{path}.{name}.{index}.text", f"{path}.{name}.{index}.text must be a string.")
            texts.append(clean(part["text"]))
        if any(texts):
            return separator.join(texts)
    return ""


def _arguments(text: str) -> dict[str, Any]:
    """Return a past call's arguments; what is no JSON object, a call that was cut off for one, is shown as it is."""
    try:
        value = parse_arguments(text)
    except (ValueError, RecursionError):
        return {"arguments": text}
    return value if isinstance(value, dict) else {"arguments": value}
