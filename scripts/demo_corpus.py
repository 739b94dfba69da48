"""The shipped model's corpus: seeded conversations and plain texts, written by the generators beside this file.

A document is either plain text or a conversation in the OpenAI message form. `render` writes it through the shipped
chat template, so training sees exactly what serving will write; `loss_weights` marks the tokens the model should learn
to say: everything from an assistant's opening `<think>` to the role token that ends its turn.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import jinja2
from attrs import frozen

from scripts import demo_skills as skills
from scripts import demo_tools as tools
from scripts import demo_words as words
from scripts.demo_exercises import Turn

FILES = Path(__file__).resolve().parents[1] / "trnrt" / "models" / "demo_files"
END = "<|endoftext|>"
MAX_TURNS = 4

PLAIN_PROMPTS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Be brief.", "Answer in short sentences.",
    "You are a small and polite assistant.", "You are a helpful assistant. Answer clearly.", "You are terse.",
)  # fmt: skip


@frozen
class Document:
    """One document: plain text, or messages with tools and template settings."""

    text: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    effort: str | None = None
    thinking: bool = True


def document(rng: Random) -> Document:
    """Draw one document."""
    draw = rng.random()
    if draw < 0.05:
        return Document(text=_plain_text(rng))
    if draw < 0.28:
        return _tool_conversation(rng)
    return _conversation(rng)


def documents(seed: int) -> Iterator[Document]:
    """Draw documents without end; equal seeds give equal documents."""
    rng = Random(seed)
    while True:
        yield document(rng)


def template() -> jinja2.Template:
    """Open the shipped chat template with the JSON filter transformers gives it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["tojson"] = lambda value, ensure_ascii=False: json.dumps(value, ensure_ascii=ensure_ascii)
    return environment.from_string((FILES / "chat_template.jinja").read_text())


def render(doc: Document, chat: jinja2.Template) -> str:
    """Write a document as the text the model sees, with its end token."""
    if doc.text is not None:
        return doc.text + END
    text: str = chat.render(messages=doc.messages, tools=list(doc.tools), reasoning_effort=doc.effort)
    return text + END


def loss_weights(ids: Sequence[int], token_id: dict[str, int], other: float) -> list[float]:
    """Weigh each token as a target: 1 inside an assistant turn, 0 for forced tokens, `other` elsewhere.

    An empty thinking block is the prompt's choice and never the model's: its `</think>` weighs nothing.
    """
    enders = {token_id[name] for name in (END, "<|user|>", "<|observation|>", "<|system|>")}
    think, close, assistant = token_id["<think>"], token_id["</think>"], token_id["<|assistant|>"]
    weights, inside, before = [], False, -1
    for token in ids:
        if token == think and before == assistant:
            inside = True
            weights.append(0.0)
        elif inside:
            weights.append(0.0 if token == close and before == think else 1.0)
            inside = token not in enders
        else:
            weights.append(0.0 if token == assistant else other)
        before = token
    return weights if token_id["<|assistant|>"] in ids else [1.0] * len(ids)


def _plain_text(rng: Random) -> str:
    form = rng.randrange(3)
    if form == 0:
        return skills.tale(rng)
    if form == 1:
        return " ".join(answer for _, answer in rng.sample(words.FACTS, 4))
    return " ".join(rng.sample(words.WORDS, 12))


def _settings(rng: Random) -> tuple[str | None, bool]:
    return rng.choice([None, None, None, "low", "high"]), rng.random() < 0.75


def _thoughts(thoughts: tuple[str, ...], effort: str | None, thinking: bool) -> str:
    """Write as much reasoning as the effort asks for."""
    if not thinking:
        return ""
    return " ".join(thoughts[:1] if effort == "low" else thoughts)


def _prompted(rng: Random) -> tuple[str | None, tuple[Turn, ...], Any]:
    """Draw a system prompt, the turns that only it explains, and how it changes every answer."""
    draw = rng.random()
    same = str
    if draw < 0.55:
        return None, (), same
    if draw < 0.8:
        return rng.choice(PLAIN_PROMPTS), (), same
    name, word = rng.choice(words.NAMES), rng.choice(words.WORDS)
    if draw < 0.87:
        ask = rng.choice(["What is your name?", "Who are you?"])
        turn = Turn(ask, (f"The system prompt says I am {name}.",), f"My name is {name}.")
        return f"You are {name}, a helpful assistant.", (turn,), same
    if draw < 0.92:
        secret = f"{word} {rng.randint(1, 99)}"
        turn = Turn("What is the code word?", ("The system prompt has the code word.",), f"The code word is {secret}.")
        return f"The code word is {secret}. Tell it when asked.", (turn,), same
    if draw < 0.96:
        return "Answer in capital letters.", (), str.upper
    return f"End every answer with the word {word}.", (), lambda text: f"{text} {word}"


def _conversation(rng: Random) -> Document:
    effort, thinking = _settings(rng)
    prompt, special, change = _prompted(rng)
    turns = list(special)
    wanted = rng.choice([1, 1, 2, 2, 3, MAX_TURNS])
    while len(turns) < wanted:
        skill = rng.choices([skill for skill, _ in skills.SKILLS], [share for _, share in skills.SKILLS])[0]
        turns.extend(skill(rng))
    messages: list[dict[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
    for turn in turns:
        messages.append({"role": "user", "content": turn.ask})
        reasoning = _thoughts(turn.thoughts, effort, thinking)
        messages.append({"role": "assistant", "reasoning_content": reasoning, "content": change(turn.answer)})
    return Document(messages=tuple(messages), effort=effort, thinking=thinking)


def _tool_conversation(rng: Random) -> Document:
    effort, thinking = _settings(rng)
    offered = tools.offers(rng)
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(PLAIN_PROMPTS)})
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        if rng.random() < 0.2:
            turn = rng.choice([skills.greeting, skills.identity, skills.capital, skills.fact, skills.advice])(rng)[0]
            messages.append({"role": "user", "content": turn.ask})
            messages.append({"role": "assistant", "thoughts": turn.thoughts, "content": turn.answer})
        else:
            messages.extend(tools.use(rng, offered))
    for message in messages:
        if message["role"] == "assistant":
            message["reasoning_content"] = _thoughts(message.pop("thoughts"), effort, thinking)
    definitions = tuple(one.definition for one in offered)
    return Document(messages=tuple(messages), tools=definitions, effort=effort, thinking=thinking)
