"""Conversations that a prompt token cache is tried on before it is used: each has the ids it has without a cache.

They grow turn by turn as a client's do, and then change: other tools, an edited message, the reasoning left out, a
message to go on from, control tokens written by people. A text template's tokens are tried beside what merges gladly.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from stages.errors import InvalidRequest
from stages.messages import Chat, Tool
from stages.prompt.cache.encoder import CachingEncoder, difference
from stages.prompt.cache.switch import PromptCache
from stages.prompt.segments import Marked, Segment

CHECK_BYTES = 16 * 1024 * 1024
MAX_TOKENS_TRIED = 256
EDGES = ("a", " a", " ", "\n", "\n\n", "\t ", "1", "\u0301e", "你", "🙂", "'s", "▁", "")
MARK = "\U000f0000"


def self_check(encoder: CachingEncoder, template: Callable[[Chat], "tuple[Segment, ...] | Marked"]) -> str | None:
    """Return what a cache of its own gets wrong with this tokenizer and template, None when all is equal."""
    try:
        return _wrong(encoder, template)
    except Exception as error:  # the library raises bare Exception for texts that a vocabulary has no ids for
        return f"the self-check failed: {error!r}"


def _wrong(encoder: CachingEncoder, template: "Callable[[Chat], tuple[Segment, ...] | Marked]") -> str | None:
    tried = CachingEncoder(encoder.tokenizer, PromptCache(CHECK_BYTES, audit_share=0.0), encoder.seams)
    whole = encoder.tokenizer
    has_segments = False
    for chat in conversations(tuple(islice(whole.control_ids, 8))):
        try:
            rendered = template(chat)
        except InvalidRequest:
            continue  # no conversation for this template
        if isinstance(rendered, Marked):
            ids, expected = tried.encode_marked([rendered]), whole.encode_marked([rendered])
        else:
            has_segments = True
            ids, expected = tried.encode_segments([rendered]), whole.encode_segments([rendered])
        if ids != expected:
            return f"a conversation of the self-check has {difference(ids[0], expected[0])}"
    # Segments are never cut, so the seams of texts are nothing to them.
    tokens = sorted(encoder.seams.safe) if encoder.seams is not None and not has_segments else []
    for text in beside_tokens(tokens):
        for marked in (Marked(text), Marked(text + MARK, MARK)):
            if tried.encode_marked([marked]) != whole.encode_marked([marked]):
                return f"a text of the self-check has other ids: {text!r}"
    return None


def conversations(control: tuple[str, ...]) -> Iterator[Chat]:
    """Yield chats, each having most in common with one before it."""
    tools = (_tool("weather"), _tool("clock"))
    turns: list[Mapping[str, Any]] = [{"role": "system", "content": " Be terse.\n"}]
    for number in range(3):
        turns.append({"role": "user", "content": f" {number}: what's new\n\n in 你好? "})
        yield Chat(tuple(turns))
        yield Chat(tuple(turns), tools)
        turns.append({"role": "assistant", "content": f"Nothing{number}", "reasoning_content": " Hm,\nhm. "})
        yield Chat(tuple(turns), continue_final_message=True)
    call = {"id": "123456789", "name": "weather", "arguments": {"city": "Paris ", "days": 3}}
    turns += [
        {"role": "user", "content": "And now"},
        {"role": "assistant", "content": "", "reasoning_content": "x", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "123456789", "content": "18 C,\nclear"},
    ]
    for shown in (tools, tools[:1], tools[::-1], ()):
        yield Chat(tuple(turns), shown)
    yield Chat(tuple(turns), tools, {"clear_thinking": True})
    yield Chat(tuple(turns), tools, {"enable_thinking": False, "reasoning_effort": "low"})
    for index, edited in enumerate(turns):
        if edited["role"] in ("user", "assistant"):
            yield Chat((*turns[:index], {**edited, "content": "edited "}, *turns[index + 1 :]), tools)
    for text in control:
        yield Chat((*turns[:2], {"role": "assistant", "content": f"a {text}"}, {"role": "user", "content": text * 2}))


def _tool(name: str) -> Tool:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return Tool(name, {"name": name, "description": f"Tell the {name}.", "parameters": parameters})


def beside_tokens(tokens: "list[str]") -> Iterator[str]:
    """Yield texts with tokens between what a tokenizer may merge, or put a blank before."""
    for number, token in enumerate(tokens[:MAX_TOKENS_TRIED]):
        other = tokens[number - 1]
        sides = (EDGES[number % len(EDGES)], EDGES[(number * 5 + 3) % len(EDGES)])
        yield f"{sides[0]}{token}{sides[1]}{token}{other}{sides[0]} {token}{sides[1]}{other}"
    if tokens:
        yield tokens[0].join(one + other for one in EDGES for other in EDGES)
