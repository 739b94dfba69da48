"""Whatever clients send after one another, a cached prompt is the prompt without a cache, of every template."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.messages import Chat, Prompt, Tool
from stages.prompt.cache.switch import PromptCache
from stages.prompt.stage import Prompter, open_prompter
from stages.settings import PromptSettings, TemplateSource
from tests.small_tokenizer import write_small_tokenizer
from tests.stages.prompt.jinja.styles import STYLES, VARIABLES, write_folder

NATIVE = "our glm5"
Message = Mapping[str, Any]
WRITTEN = ("<|user|>", "<|im_end|>", "<s>", "[INST]", "<think>", "</think>", "<|end|>", "\U000f0000")

OTHER = (" ", "\n", "a", " weather", "1", "é", "\u0301", "你", "🙂", "<|")
text = st.lists(st.sampled_from([*WRITTEN, *OTHER]), max_size=6).map("".join)
call = st.fixed_dictionaries(
    {
        "id": st.just("123456789"),
        "name": st.sampled_from(["weather", "clock"]),
        "arguments": st.dictionaries(st.sampled_from(["city", "n"]), text | st.integers(), max_size=2),
    }
)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """One exchange of a conversation."""
    result: list[Message] = [{"role": "user", "content": draw(text)}]
    thought = st.fixed_dictionaries({}, optional={"reasoning_content": text})
    if draw(st.booleans()):
        calls = draw(st.lists(call, min_size=1, max_size=2))
        result.append({"role": "assistant", "content": draw(text), "tool_calls": calls, **draw(thought)})
        result += [{"role": "tool", "tool_call_id": "123456789", "content": draw(text)} for _ in calls]
    return [*result, {"role": "assistant", "content": draw(text), **draw(thought)}]


tools = st.lists(
    st.builds(
        lambda name, words: Tool(name, {"name": name, "description": words, "parameters": {"type": "object"}}),
        st.sampled_from(["weather", "clock"]),
        text,
    ),
    max_size=2,
).map(tuple)
switches = st.sampled_from(
    [{}, {"clear_thinking": True}, {"enable_thinking": False, "thinking": False}, {"reasoning_effort": "low"}]
)


@st.composite
def sessions(draw: st.DrawFn) -> list[Chat]:
    """Chats as a client sends them: each grows out of the one before it, or changes something of it."""
    history: list[Message] = [{"role": "system", "content": draw(text)}] if draw(st.booleans()) else []
    chat = Chat((*history, *draw(turns())[:1]), draw(tools), draw(switches))
    result = [chat]
    for _ in range(draw(st.integers(1, 5))):
        messages = list(chat.messages)
        match draw(st.sampled_from(["turn", "turn", "edit", "drop", "tools", "switches", "continue"])):
            case "turn":
                if messages[-1]["role"] == "user":
                    messages.pop()
                chat = evolve(chat, messages=(*messages, *draw(turns()), {"role": "user", "content": draw(text)}))
            case "edit":
                at = draw(st.integers(0, len(messages) - 1))
                messages[at] = {**messages[at], "content": draw(text)}
                chat = evolve(chat, messages=tuple(messages))
            case "drop":
                at = draw(st.integers(0, len(messages) - 1))
                chat = evolve(chat, messages=(*messages[:at], *messages[at + 1 :], *draw(turns())[:1]))
            case "tools":
                chat = evolve(chat, tools=draw(tools))
            case "switches":
                chat = evolve(chat, template=draw(switches))
            case "continue":
                partial = {"role": "assistant", "content": draw(text)}
                result.append(evolve(chat, messages=(*messages, partial), continue_final_message=True))
        result.append(chat)
    return result


def source_of(style: str) -> str | TemplateSource:
    return "glm5" if style == NATIVE else TemplateSource({"default": STYLES[style]}, variables=VARIABLES)


@cache
def prompters(style: str) -> tuple[Prompter, Prompter, PromptCache]:
    """Without and with a cache, which is small enough to forget."""
    cache = PromptCache(40_000, audit_share=0.0)
    with TemporaryDirectory() as folder:
        path = write_small_tokenizer(Path(folder)) if style == NATIVE else write_folder(style, Path(folder))
        settings = PromptSettings(str(path), source_of(style))
        return open_prompter(settings), open_prompter(settings, cache), cache


@pytest.mark.parametrize("style", [NATIVE, *STYLES])
@settings(max_examples=60)
@given(session=sessions())
def test_every_prompt_of_a_session_is_the_prompt_without_a_cache(style: str, session: list[Chat]) -> None:
    plain, cached, cache = prompters(style)
    for chat in session:
        (expected,) = plain.answers([chat])
        (answer,) = cached.answers([chat])
        # A template that refuses a chat refuses it in the same words.
        assert answer == expected or str(answer) == str(expected)
        assert isinstance(answer, Prompt) or type(answer) is type(expected)
    assert cache.is_on
    assert cache.store.num_bytes <= cache.max_bytes


@pytest.mark.parametrize("style", [NATIVE, "chatml", "phi"])
@settings(max_examples=30)
@given(session=sessions())
def test_a_burst_is_answered_as_one_by_one(style: str, session: list[Chat]) -> None:
    plain, cached, _ = prompters(style)
    expected = [answer if isinstance(answer, Prompt) else str(answer) for answer in plain.answers(list(session))]
    answers = [answer if isinstance(answer, Prompt) else str(answer) for answer in cached.answers(list(session))]
    assert answers == expected


@pytest.mark.parametrize("style", [NATIVE, *STYLES])
def test_a_next_turn_encodes_what_is_new(style: str) -> None:
    plain, _, _ = prompters(style)
    with TemporaryDirectory() as folder:
        path = write_small_tokenizer(Path(folder)) if style == NATIVE else write_folder(style, Path(folder))
        cache = PromptCache(10_000_000)
        prompter = open_prompter(PromptSettings(str(path), source_of(style)), cache)
    history = [{"role": ("user", "assistant")[number % 2], "content": f"{number} weather" * 20} for number in range(21)]
    prompter.answers([Chat(tuple(history))])
    (before,) = prompter.answers([Chat(tuple(history))])
    encoded = cache.totals["encoded_tokens"]
    chat = Chat((*history, {"role": "assistant", "content": "So"}, {"role": "user", "content": "Why"}))
    (answer,) = prompter.answers([chat])
    assert (answer,) == tuple(plain.answers([chat]))
    assert isinstance(answer, Prompt)
    assert isinstance(before, Prompt)
    assert len(before.token_ids) > 1000
    # Where one turn ends only with the next one's beginning, the last turn is encoded again.
    assert cache.totals["encoded_tokens"] - encoded < len(before.token_ids) / 5
