"""Paging and batching change nothing: rows alone or together, whole or in chunks, fresh or used slots and pages."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from graphs.state import new_state
from tests.graphs.conftest import Model
from tests.graphs.serving import Row, Server
from tests.graphs.tiny import random_tokens

SAME = {"atol": 1e-5, "rtol": 0.0}
PROMPTS = [random_tokens(length, seed=20 + length) for length in (3, 64, 77, 150)]
NEXT = random_tokens(6, seed=19)


def alone(model: Model, prompt: Tensor, num_steps: int = 6) -> list[Tensor]:
    """Return the logits after a prompt and after each of num_steps decoded tokens, the row by itself."""
    server = Server(model.config, model.weights, seed=1)
    row = server.admit()
    logits = [server.prefill([row], [prompt])[0]]
    return logits + [server.decode([row], NEXT[t : t + 1])[0] for t in range(num_steps)]


def check_decode(server: Server, rows: list[Row], expected: list[list[Tensor]], num_padding: int = 0) -> None:
    """Decode NEXT on all rows in one batch and compare each row's logits with those it gets alone."""
    for t in range(len(NEXT)):
        logits = server.decode(rows, NEXT[t].repeat(len(rows)), num_padding)
        torch.testing.assert_close(logits, torch.stack([row[t + 1] for row in expected]), **SAME)


def test_unequal_rows_in_one_batch_equal_the_same_rows_alone(model: Model) -> None:
    expected = [alone(model, prompt) for prompt in PROMPTS]
    server = Server(model.config, model.weights)
    rows = [server.admit() for _ in PROMPTS]
    logits = server.prefill(rows, PROMPTS, num_padding=2)
    torch.testing.assert_close(logits, torch.stack([row[0] for row in expected]), **SAME)
    check_decode(server, rows, expected, num_padding=3)


def test_rows_of_different_progress_share_a_decode_batch(model: Model) -> None:
    expected = [alone(model, prompt) for prompt in PROMPTS]
    server = Server(model.config, model.weights)
    rows = [server.admit() for _ in PROMPTS]
    for row, prompt in zip(rows, PROMPTS, strict=True):
        server.prefill([row], [prompt])
    for t in range(2):
        server.decode(rows[:2], NEXT[t].repeat(2))
    for t in range(4):
        tokens = torch.cat([NEXT[t + 2].repeat(2), NEXT[t].repeat(2)])
        logits = server.decode(rows, tokens)
        steps = [t + 3, t + 3, t + 1, t + 1]
        wanted = torch.stack([row[step] for row, step in zip(expected, steps, strict=True)])
        torch.testing.assert_close(logits, wanted, **SAME)


@pytest.mark.parametrize("cuts", [[64], [128], [64, 128], [4], [60, 100], [4, 8, 72, 148], [52]])
def test_chunks_from_multiples_of_four_equal_the_whole_prompt(model: Model, cuts: list[int]) -> None:
    prompt = PROMPTS[3]
    expected = alone(model, prompt)
    server = Server(model.config, model.weights)
    row = server.admit()
    bounds = [0, *cuts, len(prompt)]
    for begin, end in pairwise(bounds):
        logits = server.prefill([row], [prompt[begin:end]])
    torch.testing.assert_close(logits[0], expected[0], **SAME)
    check_decode(server, [row], [expected])


def test_more_padding_changes_nothing(model: Model) -> None:
    prompt = PROMPTS[0]
    expected = alone(model, prompt)
    server = Server(model.config, model.weights)
    row = server.admit(num_pages=1)
    logits = server.prefill([row], [prompt], num_padding=3, width=192)
    torch.testing.assert_close(logits[0], expected[0], **SAME)
    check_decode(server, [row], [expected], num_padding=1)


def test_used_slots_and_pages_need_no_clearing(model: Model) -> None:
    server = Server(model.config, model.weights, num_slots=3, num_pages=7)
    for round_ in range(3):
        rows = [server.admit(), server.admit()]
        prompts = [PROMPTS[(round_ + 1) % 4], PROMPTS[(round_ + 2) % 4]]
        expected = [alone(model, prompt) for prompt in prompts]
        logits = server.prefill(rows, prompts)
        torch.testing.assert_close(logits, torch.stack([row[0] for row in expected]), **SAME)
        check_decode(server, rows, expected)
        for row in rows:
            server.release(row)


def test_a_used_slot_decodes_from_its_first_token_as_a_fresh_one_does(model: Model) -> None:
    server = Server(model.config, model.weights, num_slots=2, num_pages=4)
    row = server.admit()
    fresh = [server.decode([row], NEXT[t : t + 1]) for t in range(6)]
    server.prefill([Row(row.slot, row.pages)], [PROMPTS[3]])
    again = Row(row.slot, row.pages)
    for t in range(6):
        torch.testing.assert_close(server.decode([again], NEXT[t : t + 1]), fresh[t], **SAME)


def test_a_step_writes_only_its_own_pages_and_slots_and_the_null_ones(model: Model) -> None:
    server = Server(model.config, model.weights)
    rows = [server.admit(), server.admit()]
    owned_pages, owned_slots = {0, *rows[0].pages}, {0, rows[0].slot}
    for tensor in server.state.tensors():
        if tensor.is_floating_point():
            tensor.uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(8))
    before = [{key: tensor.clone() for key, tensor in layer.items()} for layer in server.state.layers]
    server.prefill(rows[:1], [PROMPTS[2]], num_padding=2, width=192)
    server.decode(rows[:1], NEXT[:1], num_padding=2)
    for old, new in zip(before, server.state.layers, strict=True):
        for key in old:
            owned = owned_pages if key in ("latent", "pooled") else owned_slots
            others = [index for index in range(old[key].shape[0]) if index not in owned]
            assert torch.equal(old[key][others], new[key][others]), key


def test_a_wider_page_table_changes_nothing(model: Model) -> None:
    expected = alone(model, PROMPTS[2])
    server = Server(model.config, model.weights)
    row = server.admit(num_pages=6)
    torch.testing.assert_close(server.prefill([row], [PROMPTS[2]])[0], expected[0], **SAME)
    check_decode(server, [row], [expected])


def test_other_page_sizes_give_the_same(model: Model) -> None:
    expected = alone(model, PROMPTS[2])
    server = Server(model.config, model.weights, page_size=16, num_pages=40)
    row = server.admit(num_pages=9)
    torch.testing.assert_close(server.prefill([row], [PROMPTS[2]])[0], expected[0], **SAME)
    check_decode(server, [row], [expected])


def test_a_page_that_splits_a_group_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="index_kpool"):
        new_state(model.config, 2, 2, 66, torch.float32)


def test_the_last_position_of_a_page_table_decodes_in_both_regimes(model: Model) -> None:
    tokens = random_tokens(128, seed=44)
    expected = model.reference.logits(tokens[None])[0]
    server = Server(model.config, model.weights)
    row = server.admit(num_pages=2)
    server.prefill([row], [tokens[:126]])
    for t in (126, 127):
        logits = server.decode([row], tokens[t : t + 1])[0]
        torch.testing.assert_close(logits, expected[t], atol=2e-5, rtol=0.0)
