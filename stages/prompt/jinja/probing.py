"""What a chat template can take, found out at start by rendering small conversations. Core."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen

Message = dict[str, Any]
# Renders messages, or gives None where the template fails; `tools` are offered or not.
Attempt = Callable[[Sequence[Message]], str | None]
WORD, OTHER_WORD = "probe0word", "probe1word"
ANSWER: Message = {"role": "assistant", "content": "b"}
USER: Message = {"role": "user", "content": "a"}
CALLING: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "123456789", "type": "function", "function": {"name": "f", "arguments": {}}}],
}
# Roles and, each in a conversation that may be told, what is said before and after.
PARTED: Mapping[str, tuple[Sequence[Message], Sequence[Message]]] = {
    "system": ((), (USER,)),
    "developer": ((), (USER,)),
    "user": ((), ()),
    "assistant": ((USER,), (USER,)),
    "tool": ((USER, CALLING), ()),
}


@frozen
class Traits:
    """How messages must look for a template to render them."""

    # Content as a list of parts, or the text itself.
    takes_parts_only: bool = False
    # Roles whose content may as well be several parts, which the template joins in its own way.
    joins_parts_of: frozenset[str] = frozenset()
    # Arguments of calls as JSON text, or the object itself.
    wants_arguments_text: bool = False
    # Whether a message without content must have an empty one.
    needs_content: bool = False
    reads_reasoning: bool = False
    # Whether a message with content shows its calls no more.
    hides_calls: bool = False
    # A system message anywhere but first, two user messages in a row, a developer's.
    takes_late_system: bool = True
    takes_two_users: bool = True
    takes_developer: bool = True


def probe(attempt: Attempt, source: str) -> Traits:
    """Return the traits of a template; one that fails on everything has the default ones."""
    parts_only = _shows(attempt, [_user([{"type": "text", "text": WORD}])]) and not _shows(attempt, [_user(WORD)])

    def tried(*messages: Message) -> str | None:
        return attempt([_in_parts(message) for message in messages] if parts_only else messages)

    plain = tried(USER, ANSWER, USER) is not None
    return Traits(
        takes_parts_only=parts_only,
        joins_parts_of=frozenset() if parts_only else frozenset(filter(partial(_joins_parts, attempt), PARTED)),
        wants_arguments_text=_wants_text(tried),
        needs_content=tried(USER, _calling({WORD: WORD}), _result()) is None
        and tried(USER, {**_calling({WORD: WORD}), "content": ""}, _result()) is not None,
        reads_reasoning="reasoning_content" in source or _reads_reasoning(tried),
        hides_calls=_hides_calls(tried),
        takes_late_system=not plain or tried(USER, ANSWER, {"role": "system", "content": "c"}, USER) is not None,
        takes_two_users=tried(USER, USER) is not None,
        takes_developer=WORD in (tried({"role": "developer", "content": WORD}, USER) or ""),
    )


def _user(content: object) -> Message:
    return {**USER, "content": content}


def _shows(attempt: Attempt, messages: Sequence[Message]) -> bool:
    return WORD in (attempt(messages) or "")


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _calling(arguments: object) -> Message:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "123456789", "type": "function", "function": function}]}


def _result() -> Message:
    return {"role": "tool", "tool_call_id": "123456789", "content": "r"}


def _joins_parts(attempt: Attempt, role: str) -> bool:
    """Return whether two parts of a role's are shown as texts, not left out nor written out as data."""
    before, after = PARTED[role]
    parts = [{"type": "text", "text": text} for text in (WORD, OTHER_WORD)]
    about = {"tool_call_id": "123456789"} if role == "tool" else {}
    shown = attempt([*before, {"role": role, "content": parts, **about}, *after]) or ""
    return WORD in shown and OTHER_WORD in shown and not any(data in shown for data in ("{'type'", '{"type"'))


def _wants_text(tried: Callable[..., str | None]) -> bool:
    """Return whether arguments are shown as they are: an object then fails, or comes out as Python writes it."""
    for content in ({}, {"content": ""}):
        as_object = tried(USER, {**_calling({WORD: WORD}), **content}, _result())
        as_text = tried(USER, {**_calling(f'{{"{WORD}": "{WORD}"}}'), **content}, _result())
        if as_text is not None and f'{{"{WORD}": "{WORD}"}}' in as_text:
            return as_object is None or f"{{'{WORD}': '{WORD}'}}" in as_object
    return False


def _hides_calls(tried: Callable[..., str | None]) -> bool:
    bare = {**_calling({"k": WORD}), "content": ""}
    shown = [WORD in (tried(USER, {**bare, "content": content}, _result()) or "") for content in ("", "b")]
    return shown == [True, False]


def _reads_reasoning(tried: Callable[..., str | None]) -> bool:
    answer: Mapping[str, Any] = {**ANSWER, **reasoning_fields(WORD)}
    call = {**_calling({"k": "v"}), "content": "", **reasoning_fields(WORD)}
    conversations = ((USER, answer), (USER, answer, USER), (USER, call, _result()))
    return any(WORD in (tried(*turns) or "") for turns in conversations)


def reasoning_fields(text: str) -> Message:
    """Return a message's reasoning under the names that templates read it by."""
    return {"thinking": text, "reasoning": text, "reasoning_content": text}
