"""Masks, penalties, biases and scores through the scheduler on the CPU device in fp32 equal a plain reference.

The reference reads all tokens anew for each one, changes the logits as a client was told, and takes the greatest.
"""

from collections import Counter

import numpy as np
import torch
from attrs import evolve

from graphs.devices.cpu import CpuDevice
from graphs.models.glm5_next import sequence_forward
from graphs.step import Floats
from stages.messages import Penalties, Submit
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.bench import Bench
from tests.sim.fake_grammar import allowed_after, rules
from tests.trnrt.test_real_cache import ROWS, SHAPES, Model, ask, model, overlap, words

__all__ = ["model", "overlap"]

VOCAB = 256
EDITS = evolve(SHAPES, takes_mask=True, adjust_tokens=(16, 64, VOCAB))
TOLERANCE = {"rtol": 0.0, "atol": 1e-4}
PENALTIES = Penalties(frequency=0.5, presence=0.25, repetition=1.5)
GUIDED = rules(1, vocab_size=VOCAB)


def bench_of(model: Model, *, num_pages: int = 33, cache: CacheSettings | None = None, **settings: object) -> Bench:
    device = CpuDevice(*model, evolve(EDITS, num_pages=num_pages), "eager")
    values: dict[str, object] = {"chunked_prefill_size_tokens": 128, "max_running_requests": ROWS, **settings}
    return Bench(SchedulerSettings(cache=cache, **values), device)  # type: ignore[arg-type]


def logits_after(model: Model, token_ids: tuple[int, ...]) -> Floats:
    """Return logits [T, V] after each of the tokens."""
    config, weights = model
    with torch.no_grad():
        logits, _ = sequence_forward(config, weights, torch.tensor([token_ids]))
    return logits[0].numpy()


def edited(order: Submit, generated: tuple[int, ...], logits: Floats) -> Floats:
    logits = logits.astype(np.float32).copy()
    penalties, counts = order.penalties, Counter(generated)
    for token_id in counts:
        logits[token_id] -= penalties.frequency * counts[token_id] + penalties.presence
    for token_id in {*order.prompt_ids, *generated}:
        logits[token_id] *= penalties.repetition if logits[token_id] < 0 else 1 / penalties.repetition
    for token_id, bias in order.logit_bias:
        logits[token_id] += bias
    allowed = allowed_after(order, generated) if order.rules is not None else None
    if allowed is not None:
        logits[np.unpackbits(allowed.view(np.uint8), bitorder="little")[:VOCAB] == 0] = -np.inf
    return logits


def log_softmax(logits: Floats) -> Floats:
    return torch.from_numpy(logits).log_softmax(-1).numpy()


def assert_right(bench: Bench, model: Model, order: Submit) -> None:
    """Check every token, its logprob and those of the named ids, and what the prompt scored."""
    name, prompt = order.key.request_id, order.prompt_ids
    answer = bench.answers[name]
    assert len(answer) == order.max_new_tokens
    after = logits_after(model, prompt + answer)
    for number, token_id in enumerate(answer):
        expected = edited(order, answer[:number], after[len(prompt) + number - 1])
        # The two greatest may be too near to tell apart.
        np.testing.assert_allclose(expected[token_id], expected.max(), **TOLERANCE)
        logprobs = log_softmax(expected)
        np.testing.assert_allclose(bench.logprobs[name][number], logprobs[token_id], **TOLERANCE)
        if order.logprob_token_ids:
            np.testing.assert_allclose(bench.wanted[name][number], logprobs[list(order.logprob_token_ids)], **TOLERANCE)
    if order.prompt_logprobs_from is not None:
        assert_scored(bench, order, log_softmax(after))


def assert_scored(bench: Bench, order: Submit, logprobs: Floats) -> None:
    assert order.prompt_logprobs_from is not None
    scores, prompt = bench.prompts[order.key.request_id], order.prompt_ids
    numbers = range(order.prompt_logprobs_from + 1, len(prompt))
    assert len(scores.logprobs) == len(numbers)
    for index, number in enumerate(numbers):
        before = logprobs[number - 1]
        np.testing.assert_allclose(scores.logprobs[index], before[prompt[number]], **TOLERANCE)
        np.testing.assert_allclose(scores.top_logprobs[index], before[scores.top_ids[index]], **TOLERANCE)
        np.testing.assert_allclose(scores.top_logprobs[index, 0], before.max(), **TOLERANCE)
        if scores.wanted is not None:
            np.testing.assert_allclose(scores.wanted[index], before[list(order.logprob_token_ids)], **TOLERANCE)


ORDERS = (
    ask("guided", words(40), rules=GUIDED),
    ask("free at times", words(30, 1), rules=rules(2, vocab_size=VOCAB, num_free=3)),
    ask("penalised", words(70, 2), penalties=PENALTIES),
    ask("biased", words(20, 3), logit_bias=((3, 4.0), (7, -9.0), (200, 2.5)), logprob_token_ids=(7, 200)),
    ask("scored", words(150, 4), prompt_logprobs_from=0, num_top_logprobs=3, logprob_token_ids=(5,)),
    ask("scored alone", words(90, 5), 0, prompt_logprobs_from=60, num_top_logprobs=1),
    ask(
        "all",
        words(100, 6),
        rules=rules(3, vocab_size=VOCAB),
        penalties=PENALTIES,
        logit_bias=((9, 3.0),),
        prompt_logprobs_from=10,
        num_top_logprobs=2,
        logprob_token_ids=(9, 10),
    ),
    ask("plain", words(50, 7)),
)


def test_together_and_in_any_step_every_row_gets_what_it_asked(model: Model, overlap: bool) -> None:
    bench = bench_of(model, overlap=overlap)
    steps = bench.run(*ORDERS)
    for order in ORDERS:
        assert_right(bench, model, order)
    assert {step.key.edits for step in steps} >= {"masked", "adjusted", "masked_adjusted"}
    assert any(step.key.is_scored for step in steps)
    bench.device.close()


def test_after_a_retraction_masks_and_counts_go_on(model: Model) -> None:
    orders = [evolve(order, prompt_ids=words(100, index), max_new_tokens=40) for index, order in enumerate(ORDERS[2:4])]
    orders.append(ask("guided", words(100, 9), 40, rules=GUIDED, penalties=PENALTIES))
    bench = bench_of(model, num_pages=8, schedule_conservativeness=0.0)
    bench.run(*orders)
    assert sum(usage.num_retractions for usage in bench.usages.values()) > 0
    for order in orders:
        assert_right(bench, model, order)
    bench.device.close()


def test_from_the_cache_a_prompt_is_scored_as_without(model: Model) -> None:
    bench = bench_of(model, cache=CacheSettings(max_snapshots=6))
    bench.run(ask("first", words(150)))
    order = ask("second", words(150), prompt_logprobs_from=130, num_top_logprobs=2)
    bench.run(order)
    assert bench.usages["second"].cached_tokens == 128
    assert_right(bench, model, order)
    bench.device.close()
