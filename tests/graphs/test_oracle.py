"""Our logits equal the reference implementation's, both loaded from one folder in the real format."""

from pathlib import Path

import pytest
import torch

from graphs.models.glm5_next import sequence_forward
from graphs.weights import load_weights
from tests.graphs import tiny
from tests.graphs.conftest import Model
from tests.graphs.serving import Server
from tests.graphs.tiny import random_tokens

TOLERANCE = {"atol": 2e-5, "rtol": 0.0}
EDGES = [1, 2, 3, 4, 5, 7, 8, 20, 63, 64, 65, 66, 100, 127, 128, 129, 132]


@pytest.mark.parametrize("num_prompt", EDGES)
def test_prefill_and_decode_equal_the_reference(model: Model, num_prompt: int) -> None:
    tokens = random_tokens(num_prompt + 9, seed=num_prompt)
    expected = model.reference.logits(tokens[None])[0]
    server = Server(model.config, model.weights)
    row = server.admit()
    torch.testing.assert_close(server.prefill([row], [tokens[:num_prompt]])[0], expected[num_prompt - 1], **TOLERANCE)
    for t in range(num_prompt, len(tokens)):
        torch.testing.assert_close(server.decode([row], tokens[t : t + 1])[0], expected[t], **TOLERANCE)


def test_decoding_from_the_first_token_equals_the_reference(model: Model) -> None:
    tokens = random_tokens(70, seed=5)
    expected = model.reference.logits(tokens[None])[0]
    server = Server(model.config, model.weights)
    row = server.admit()
    for t in range(len(tokens)):
        torch.testing.assert_close(server.decode([row], tokens[t : t + 1])[0], expected[t], **TOLERANCE)


def test_whole_sequences_equal_the_reference(model: Model) -> None:
    for num_tokens in (2, 63, 64, 65, 150):
        tokens = torch.stack([random_tokens(num_tokens, seed=seed) for seed in (6, 7)])
        with torch.no_grad():
            ours, drafts = sequence_forward(model.config, model.weights, tokens)
        torch.testing.assert_close(ours, model.reference.logits(tokens), **TOLERANCE)
        assert drafts is not None
        assert drafts.shape == (2, num_tokens - 1, model.config.vocab_size)


def test_repetitive_text_equals_the_reference(model: Model) -> None:
    tokens = torch.tensor([5] * 100 + [9, 5] * 20)
    expected = model.reference.logits(tokens[None])[0]
    server = Server(model.config, model.weights)
    row = server.admit()
    torch.testing.assert_close(server.prefill([row], [tokens[:130]])[0], expected[129], **TOLERANCE)
    for t in range(130, 140):
        torch.testing.assert_close(server.decode([row], tokens[t : t + 1])[0], expected[t], **TOLERANCE)


def test_our_steps_equal_the_reference_stepping_too(model: Model) -> None:
    tokens = random_tokens(40, seed=9)
    expected = model.reference.stepped(tokens, num_prompt=30)
    server = Server(model.config, model.weights)
    row = server.admit()
    logits = [server.prefill([row], [tokens[:30]])]
    logits += [server.decode([row], tokens[t : t + 1]) for t in range(30, 40)]
    torch.testing.assert_close(torch.cat(logits), expected, **TOLERANCE)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    # Without experts or selection: a choice that flips on rounding is no error of size.
    config = tiny.write(tmp_path, seed=3, mlp_layer_types=["dense"] * 4)
    tokens = random_tokens(80, seed=10)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        server = Server(config, load_weights(tmp_path, config, dtype))
        row = server.admit()
        logits = [server.prefill([row], [tokens[:66]])]
        logits += [server.decode([row], tokens[t : t + 1]) for t in range(66, 80)]
        results.append(torch.cat(logits))
        assert server.state.layers[0]["recurrent"].dtype == torch.float32
        assert server.state.layers[1]["latent"].dtype == dtype
    wide, narrow = results
    assert narrow.dtype == torch.float32
    assert (narrow - wide).square().mean().sqrt() < 0.05 * wide.square().mean().sqrt()
