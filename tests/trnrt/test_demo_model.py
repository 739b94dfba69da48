"""What the shipped weights say, through our own prefill and decode, and that transformers says the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from graphs.config import Config
from graphs.models import glm5_next as model
from graphs.state import new_state
from graphs.weights import load_weights
from scripts import demo_corpus as corpus
from scripts.demo_folder import END_OF_TURN, added_id

FILES = Path(__file__).parents[2] / "trnrt" / "models" / "demo_files"
PAGE_TOKENS = 64
NUM_PAGES = 10
ENDS = [added_id(token) for token in END_OF_TURN]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Speaker:
    """The shipped model with a tokenizer, greedy, one sequence at a time."""

    def __init__(self) -> None:
        self.config = Config.read(FILES)
        self.weights = load_weights(FILES, self.config, torch.float32)
        self.tokenizer = Tokenizer.from_file(str(FILES / "tokenizer.json"))
        self.template = corpus.template()

    def prompt(self, ask: str, **settings: Any) -> list[int]:
        messages = [{"role": "user", "content": ask}]
        text = self.template.render(messages=messages, add_generation_prompt=True, **settings)
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    @torch.inference_mode()
    def greedy(self, prompt: list[int], max_new_tokens: int) -> list[int]:
        state = new_state(self.config, 2, NUM_PAGES + 1, PAGE_TOKENS, torch.float32)
        pages, slots = torch.arange(1, NUM_PAGES + 1).unsqueeze(0), torch.tensor([1])
        tokens = torch.zeros(1, -(-len(prompt) // PAGE_TOKENS) * PAGE_TOKENS, dtype=torch.int64)
        tokens[0, : len(prompt)] = torch.tensor(prompt)
        num_valid = torch.tensor([len(prompt)])
        logits = model.prefill(self.config, self.weights, state, tokens, torch.tensor([0]), num_valid, slots, pages)
        said = [int(logits[0].argmax())]
        while said[-1] not in ENDS and len(said) < max_new_tokens:
            start = torch.tensor([len(prompt) + len(said) - 1])
            logits = model.decode(self.config, self.weights, state, torch.tensor([said[-1]]), start, slots, pages)
            said.append(int(logits[0].argmax()))
        return said

    def answer(self, ask: str, **settings: Any) -> str:
        text: str = self.tokenizer.decode(self.greedy(self.prompt(ask, **settings), 100), skip_special_tokens=False)
        return text


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    return Speaker()


def test_transformers_says_the_same_greedy_tokens(speaker: Speaker) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(FILES, dtype=torch.float32).eval()
    for ask, tools in (("Tell me a short story.", None), ("What is the weather in Paris?", [WEATHER])):
        prompt = speaker.prompt(ask, tools=tools)
        with torch.inference_mode():
            out = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=ENDS, pad_token_id=ENDS[0]
            )
        assert speaker.greedy(prompt, 40) == out[0, len(prompt) :].tolist()


def test_it_greets_and_ends_its_turn(speaker: Speaker) -> None:
    answer = speaker.answer("Hello!")
    assert "How can I help you" in answer.split("</think>")[1]
    assert answer.endswith(END_OF_TURN)


def test_asked_for_the_weather_it_makes_a_well_formed_call_and_waits_for_the_result(speaker: Speaker) -> None:
    answer = speaker.answer("What is the weather in Paris?", tools=[WEATHER]).split("</think>")[1]
    call = r"<tool_call>\w*weather\w*<arg_key>\w+</arg_key><arg_value>[^<]+</arg_value></tool_call><\|observation\|>"
    assert re.fullmatch(call, answer)


def test_without_thinking_it_answers_at_once(speaker: Speaker) -> None:
    answer = speaker.answer("What is the capital of France?", enable_thinking=False)
    assert "think>" not in answer
    assert "Paris" in answer


def test_every_default_a_server_needs_is_in_the_generation_config() -> None:
    assert set(json.loads((FILES / "generation_config.json").read_text())) >= {"temperature", "top_p", "eos_token_id"}
