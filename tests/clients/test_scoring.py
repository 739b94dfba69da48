"""Scoring through a started server, as an evaluation harness does it, against transformers on the same weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI
from tokenizers import Tokenizer

from tests.clients.process import Server, started

FILES = Path(__file__).parents[2] / "trnrt" / "models" / "demo_files"
MODEL = "glm-5.3-flash-demo"
TOLERANCE = 1e-4
# Contexts and their continuations, the last with characters of several tokens and longer than one chunk of prefill.
TASKS = [
    ("The capital of France is", " Paris."),
    ("The capital of France is", " water."),
    ("What is the largest animal? The", " blue whale."),
    ("Once upon a time 🧑‍🚀 é 한글 " * 12, "there was a small house by the sea."),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    flags = ("--device-mode", "eager", "--dtype", "float32", "--max-running-requests", "8", "--penalties")
    with started(*flags) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tokenizer.from_file(str(FILES / "tokenizer.json"))


@pytest.fixture(scope="module")
def reference() -> Any:
    """Log-softmax of transformers' logits for a list of ids."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(FILES, dtype=torch.float32).eval()

    def logprobs_of(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = theirs(torch.tensor([ids])).logits[0]
        return logits.log_softmax(-1)

    return logprobs_of


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
def test_a_harness_gets_transformers_logprobs_of_every_continuation(
    client: OpenAI, tokenizer: Any, reference: Any, as_ids: bool, max_tokens: int
) -> None:
    ids = [tokenizer.encode(context + rest).ids for context, rest in TASKS]
    num_contexts = [len(tokenizer.encode(context).ids) for context, _ in TASKS]
    prompts: Any = ids if as_ids else [context + rest for context, rest in TASKS]
    answer = client.completions.create(
        model=MODEL, prompt=prompts, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens * len(TASKS)
    for choice, tokens, num_context, (context, rest) in zip(answer.choices, ids, num_contexts, TASKS, strict=True):
        lists: Any = choice.logprobs
        assert choice.text.startswith(context + rest)
        assert len(lists.token_logprobs) == len(tokens) + max_tokens
        assert lists.token_logprobs[0] is lists.top_logprobs[0] is None
        expected = reference(tokens)
        for at in range(1, len(tokens)):
            assert lists.token_logprobs[at] == pytest.approx(float(expected[at - 1, tokens[at]]), abs=TOLERANCE)
            best = float(expected[at - 1].max())
            assert max(lists.top_logprobs[at].values()) == pytest.approx(best, abs=TOLERANCE)
        # What a harness asks: how likely the continuation is, and whether it is what the model would say.
        ours = sum(lists.token_logprobs[num_context : len(tokens)])
        theirs = sum(float(expected[at - 1, tokens[at]]) for at in range(num_context, len(tokens)))
        assert ours == pytest.approx(theirs, abs=TOLERANCE * len(tokens))


def test_generate_scores_as_transformers_does_from_where_it_is_told_and_beside_others(
    server: Server, tokenizer: Any, reference: Any
) -> None:
    texts = [context + rest for context, rest in TASKS]
    body = {
        "text": texts,
        "return_logprob": True,
        "logprob_start_len": [0, 3, 2, 70],
        "top_logprobs_num": 3,
        "token_ids_logprob": [5, 1691],
        "sampling_params": {"max_new_tokens": 0},
    }
    for _ in range(2):  # the second time with whatever the cache may give
        answers = httpx.post(server.url + "/generate", json=body, timeout=300).json()
        for answer, text, start in zip(answers, texts, [0, 3, 2, 70], strict=True):
            tokens = tokenizer.encode(text).ids
            expected, meta = reference(tokens), answer["meta_info"]
            entries = meta["input_token_logprobs"]
            assert [entry[1] for entry in entries] == tokens[start:]
            assert entries[0][0] is meta["input_top_logprobs"][0] is meta["input_token_ids_logprobs"][0] is None
            assert meta["cached_tokens"] <= start
            for offset in range(1, len(entries)):
                row = expected[start + offset - 1]
                assert entries[offset][0] == pytest.approx(float(row[entries[offset][1]]), abs=TOLERANCE)
                for logprob, token_id, _ in meta["input_top_logprobs"][offset]:
                    assert logprob == pytest.approx(float(row[token_id]), abs=TOLERANCE)
                for (logprob, token_id, _), named in zip(
                    meta["input_token_ids_logprobs"][offset], [5, 1691], strict=True
                ):
                    assert (token_id, logprob) == (named, pytest.approx(float(row[named]), abs=TOLERANCE))


def test_a_chats_prompt_logprobs_are_of_the_prompt_the_template_makes(
    client: OpenAI, server: Server, reference: Any
) -> None:
    messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": MODEL, "messages": messages}
    ids = httpx.post(server.url + "/tokenize", json=body).json()["tokens"]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=2, extra_body={"prompt_logprobs": 1}
    )
    positions: Any = answer.model_extra["prompt_logprobs"] if answer.model_extra else None
    expected = reference(ids)
    assert positions[0] is None
    for at in range(1, len(ids)):
        assert positions[at][str(ids[at])]["logprob"] == pytest.approx(float(expected[at - 1, ids[at]]), abs=TOLERANCE)
        (best,) = [token_id for token_id, one in positions[at].items() if one["rank"] == 1]
        assert float(expected[at - 1, int(best)]) == pytest.approx(float(expected[at - 1].max()), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("frequency", "presence", "biases"), [(1.5, 0.0, {}), (0.0, 2.0, {}), (0.0, 0.0, {"13": -100, "276": 2.5})]
)
def test_penalties_and_biases_change_logits_as_they_are_defined(
    client: OpenAI, tokenizer: Any, reference: Any, frequency: float, presence: float, biases: dict[str, int]
) -> None:
    prompt = "The cat and the dog. The cat and the"
    ids = tokenizer.encode(prompt).ids
    (choice,) = client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=12,
        temperature=0,
        logprobs=5,
        frequency_penalty=frequency,
        presence_penalty=presence,
        logit_bias=biases,
        extra_body={"return_token_ids": True},
    ).choices
    said: Any = choice.model_extra["token_ids"] if choice.model_extra else None
    lists: Any = choice.logprobs
    for at, token in enumerate(said):
        # Logprobs serve for logits here: they differ by one number a row, which log_softmax takes away again.
        row = reference(ids + said[:at])[-1].clone()
        for other in set(said[:at]):
            row[other] -= frequency * said[:at].count(other) + presence
        for key, bias in biases.items():
            row[int(key)] += bias
        row = row.log_softmax(-1)
        assert float(row[token]) == pytest.approx(float(row.max()), abs=TOLERANCE)
        assert lists.token_logprobs[at] == pytest.approx(float(row[token]), abs=TOLERANCE)


def test_a_repetition_penalty_weakens_what_prompt_and_answer_hold(client: OpenAI) -> None:
    prompt = "The blue whale is the largest animal. The blue"
    plain, penal = (
        client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=1, temperature=0, logprobs=20, extra_body={"repetition_penalty": one}
        )
        .choices[0]
        .logprobs
        for one in (1.0, 2.0)
    )
    assert plain is not None
    assert penal is not None
    assert plain.top_logprobs is not None
    assert penal.top_logprobs is not None
    assert plain.tokens == [" wh"]
    assert penal.top_logprobs[0].get(" wh", -99.0) < plain.top_logprobs[0][" wh"] - 0.1
