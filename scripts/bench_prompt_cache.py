"""Measures a chat's next turn with and without the prompt token cache: CPU time of its parts, and what it holds.

    python scripts/bench_prompt_cache.py [MODEL ...]

A MODEL is a folder with a tokenizer and its chat template (the shipped model, in our format and in Jinja, when none is
given). A history of about 1,000, 16,000 and 128,000 tokens, of an agent that reads files, has been rendered once; the
turn that is timed adds an answer and a question. CPU time is of the thread, the best of several, so that other load on
the machine matters little.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attrs import evolve, frozen

from stages.messages import Chat, Prompt, Tool
from stages.prompt.cache.encoder import CachingEncoder
from stages.prompt.cache.switch import PromptCache
from stages.prompt.segments import Marked
from stages.prompt.stage import Prompter, open_prompter
from stages.settings import PromptSettings, TemplateSource
from trnrt.model_folder import read_model_folder

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "trnrt/models/demo_files"
HISTORY_TOKENS = (1_000, 16_000, 128_000)
REPEATS = 5
WORDS = (
    "the",
    "of",
    "file",
    "return",
    "value",
    "when",
    "because",
    "server",
    "queue",
    "token",
    "prompt",
    "then",
    "line",
)
T = TypeVar("T")


@frozen
class Figures:
    """CPU seconds of one turn."""

    num_tokens: int
    without_s: float
    with_s: float
    first_s: float
    audited_s: float
    render_s: float
    cut_s: float


def main() -> None:
    """Print a table for each model."""
    for name, settings in cases(sys.argv[1:]):
        print(f"\n{name}")
        print("| history | without, ms | with, ms | ratio | first time | audited | render | cut | bytes a token |")
        print("|---|---|---|---|---|---|---|---|---|")
        for num_tokens in HISTORY_TOKENS:
            cache = PromptCache(1 << 30, audit_share=0.0)
            plain, cached = open_prompter(settings), open_prompter(settings, cache)
            assert cache.is_on, cache.reason
            figures, a_token = measured(plain, cached, cache, num_tokens)
            print(
                f"| {figures.num_tokens:,} | {figures.without_s * 1e3:.2f} | {figures.with_s * 1e3:.2f} "
                f"| {figures.without_s / figures.with_s:.1f} | {figures.first_s / figures.without_s:.2f} "
                f"| {figures.audited_s / figures.without_s:.2f} "
                f"| {figures.render_s * 1e3:.2f} | {figures.cut_s * 1e3:.2f} | {a_token:.1f} |"
            )


def cases(folders: list[str]) -> Iterator[tuple[str, PromptSettings]]:
    """Yield what to measure: a name, and the tokenizer and template."""
    if not folders:
        yield "shipped model, our format", PromptSettings(str(DEMO), "glm5")
        text = (DEMO / "chat_template.jinja").read_text()
        yield "shipped model, Jinja", PromptSettings(str(DEMO), TemplateSource({"default": text}))
    for folder in folders:
        model = read_model_folder(folder)
        yield folder, PromptSettings(str(model.tokenizer_folder), model.template)


def measured(plain: Prompter, cached: Prompter, cache: PromptCache, num_tokens: int) -> tuple[Figures, float]:
    """Return the figures of a turn, and the bytes that the cache has for each of its tokens."""
    chat = history(plain, num_tokens)
    first_s, _ = timed(lambda: cached.answers([chat]), clear(cache))
    held_bytes = cache.store.num_bytes
    turns = [next_turn(chat, number) for number in range(2 * REPEATS)]
    with_s = min(once(partial(cached.answers, [turn])) for turn in turns[:REPEATS])
    without_s, (answer,) = timed(lambda: plain.answers([turns[0]]))
    assert [answer] == cached.answers([turns[0]])
    assert isinstance(answer, Prompt)
    render_s, rendered = timed(lambda: plain._prepared(turns[0]))
    encoder = cached.encoder
    cut_s = 0.0
    if isinstance(rendered, Marked) and isinstance(encoder, CachingEncoder) and encoder.seams is not None:
        seams = encoder.seams
        cut_s, _ = timed(lambda: seams.pieces(rendered.text))
    cache.audit_share, cache._due = 1.0, 1.0
    audited_s = min(once(partial(cached.answers, [turn])) for turn in turns[REPEATS:])
    figures = Figures(len(answer.token_ids), without_s, with_s, first_s, audited_s, render_s, cut_s)
    return figures, held_bytes / len(answer.token_ids)


def clear(cache: PromptCache) -> Callable[[], None]:
    """Return what empties the cache before each repetition."""
    return cache.store.clear


def once(work: Callable[[], object]) -> float:
    """Return the CPU seconds of what can be done a first time once only."""
    start_s = time.thread_time()
    work()
    return time.thread_time() - start_s


def timed(work: Callable[[], T], before: Callable[[], None] = lambda: None) -> tuple[float, T]:
    """Return the least CPU seconds of some repetitions, and the result."""
    best_s = float("inf")
    for _ in range(REPEATS):
        before()
        start_s = time.thread_time()
        result = work()
        best_s = min(best_s, time.thread_time() - start_s)
    return best_s, result


def history(prompter: Prompter, num_tokens: int) -> Chat:
    """Return a conversation of about so many tokens: questions, thoughts, calls and the files they read."""
    tools = tuple(Tool(name, {"name": name, "parameters": {"type": "object"}}) for name in ("read", "write"))
    chat = Chat(({"role": "system", "content": "Be brief."},), tools)
    size, number = 0, 0
    while size < num_tokens:
        # Whole conversations are only rendered now and then, or this would take longer than what it measures.
        for _ in range(max(1, (num_tokens - size) // 2_000)):
            chat = evolve(chat, messages=(*chat.messages, *exchange(number)))
            number += 1
        (answer,) = prompter.answers([asked(chat, "Go on")])
        assert isinstance(answer, Prompt), answer
        size = len(answer.token_ids)
    return asked(chat, "Go on")


def exchange(number: int) -> list[dict[str, Any]]:
    """Return what one question leads to; no two are alike."""
    call = {"id": f"{number:09}", "name": "read", "arguments": {"path": f"/src/{number}.py", "lines": number}}
    lines = "\n".join(f"def part_{number}_{line}(a, b): return {sentence(number + line, 6)}" for line in range(20))
    return [
        {"role": "user", "content": f"{number}: {sentence(number, 30)}?"},
        {"role": "assistant", "content": "", "reasoning_content": sentence(number + 3, 60), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": lines},
        {"role": "assistant", "content": sentence(number + 7, 80), "reasoning_content": sentence(number + 5, 20)},
    ]


def sentence(seed: int, num_words: int) -> str:
    """Return words in some order that the seed decides."""
    return f"{seed} " + " ".join(
        WORDS[(seed * 7 + word * word + seed * word) % len(WORDS)] for word in range(num_words)
    )


def asked(chat: Chat, question: str) -> Chat:
    """Return the chat with one more question."""
    return evolve(chat, messages=(*chat.messages, {"role": "user", "content": question}))


def next_turn(chat: Chat, number: int) -> Chat:
    """Return the chat with its answer, that nobody has seen, and the next question."""
    answer = {
        "role": "assistant",
        "content": f"{number} {sentence(number, 150)}",
        "reasoning_content": f"{number} {sentence(number + 1, 150)}",
    }
    return asked(evolve(chat, messages=(*chat.messages, answer)), f"Why {number}?")


if __name__ == "__main__":
    main()
