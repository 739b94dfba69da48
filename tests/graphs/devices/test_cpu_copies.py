"""What resumes from a captured, copied or transferred state computes what the uninterrupted run does.

To the bit where it begins on the blocks of the run, elsewhere within 1e-5 in logits, which are compared through the
logprobs of a logprobs variant over the whole (tiny) vocabulary.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from attrs import evolve

from graphs.config import Config
from graphs.copying import CHUNK_ROWS, Rows
from graphs.devices.cpu import CpuDevice
from graphs.settings import GraphSettings
from graphs.state import PAGED, new_state, page_bytes, slot_bytes
from graphs.step import Copies, DeviceLost, StepInput, Transfer, pairs
from tests.contracts.device_contract import Pairs, with_copies
from tests.graphs import tiny
from tests.graphs.steps import BUCKETS, Ask, ask, decode, prefill

# Of 128 positions a token reads 8 and the open group: the sparse regime, where pooled keys choose.
CONFIGS = {
    "dense": Config.from_json(tiny.config_json()),
    "sparse": Config.from_json(tiny.config_json(index_topk=8)),
}
SETTINGS = GraphSettings(BUCKETS, num_slots=9, num_pages=33, page_size_tokens=32, dtype="float32", max_top_logprobs=256)
TOKENS = [(37 * index + index * index) % 256 for index in range(120)]
NUM_PROMPT = 104
NUM_HOST_PAGES, NUM_HOST_SLOTS = 33, 9
Logprobs = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=["dense", "sparse"])
def device(request: pytest.FixtureRequest) -> Iterator[CpuDevice]:
    config = CONFIGS[request.param]
    weights = fuse(config, tiny.random_tensors(config, 0).__getitem__)
    device = CpuDevice(config, weights, SETTINGS, "eager", num_host_pages=NUM_HOST_PAGES, num_host_slots=NUM_HOST_SLOTS)
    yield device
    device.close()


def logprobs_of(device: CpuDevice, step: StepInput) -> Logprobs:
    """Return row 0's logprob of every token, by token id."""
    output = device.run(evolve(step, key=evolve(step.key, variant="greedy_logprobs")))
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    found = np.empty(256, np.float32)
    found[output.top_ids[0]] = output.top_logprobs[0]
    return found


def go_on(device: CpuDevice, row: Ask, start: int, num_steps: int = 4) -> list[Logprobs]:
    """Return the logprobs of decode steps that read TOKENS, whatever was sampled."""
    found = []
    for position in range(start, start + num_steps):
        device._state.last_token[row.slot] = TOKENS[position]
        found.append(logprobs_of(device, decode(device.capacity, [(row, position)])))
    return found


def uninterrupted(device: CpuDevice, row: Ask) -> list[Logprobs]:
    first = logprobs_of(device, prefill(device.capacity, [(row, TOKENS[:NUM_PROMPT], 0)]))
    return [first, *go_on(device, row, NUM_PROMPT)]


def resumed(device: CpuDevice, row: Ask, num_read: int) -> list[Logprobs]:
    first = logprobs_of(device, prefill(device.capacity, [(row, TOKENS[num_read:NUM_PROMPT], num_read)]))
    return [first, *go_on(device, row, NUM_PROMPT)]


def assert_same(found: list[Logprobs], expected: list[Logprobs], is_exact: bool) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        if is_exact:
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def paged_bits(device: CpuDevice, row: Ask, num_tokens: int) -> list[bytes]:
    """Return the bits of the row's latents and pooled keys up to num_tokens."""
    found = []
    pages = list(row.pages)
    for layer in device._state.layers:
        for name in set(PAGED) & set(layer):
            entries = num_tokens // (4 if name == "pooled" else 1)
            found.append(layer[name][pages].flatten(0, 1)[:entries].numpy().tobytes())
    return found


def slot_bits(device: CpuDevice, slot: int) -> list[bytes]:
    """Return the bits of a slot but its newest token."""
    return [tensor[slot].numpy().tobytes() for tensor in device._state.slot_tensors()[:-1]]


@pytest.mark.parametrize("num_read", range(4, NUM_PROMPT, 4))
def test_a_row_resumes_from_any_capture_as_if_uninterrupted(device: CpuDevice, num_read: int) -> None:
    row, kept = ask(1), ask(2)
    expected = uninterrupted(device, row)
    step = prefill(device.capacity, [(row, TOKENS[:NUM_PROMPT], 0)])
    logprobs_of(device, with_copies(step, captures=[(0, num_read, 2)]))
    # Another row's junk in what this one is to write again.
    shared, has_open = divmod(num_read, 32)
    mixed = Ask(2, (*row.pages[:shared], *kept.pages[shared:]))
    if has_open:
        device._pages.copy([(row.pages[shared], mixed.pages[shared])])
    assert_same(resumed(device, mixed, num_read), expected, is_exact=num_read % 64 == 0)


@pytest.mark.parametrize("num_read", [64, 40])
def test_a_row_resumes_from_a_copied_slot_as_if_uninterrupted(device: CpuDevice, num_read: int) -> None:
    row = ask(1)
    expected = uninterrupted(device, ask(3))
    device.run(prefill(device.capacity, [(row, TOKENS[:num_read], 0)]))
    shared, has_open = divmod(num_read, 32)
    mixed = Ask(2, (*row.pages[:shared], *ask(2).pages[shared:]))
    pages: Pairs = [(row.pages[shared], mixed.pages[shared])] if has_open else []
    step = prefill(device.capacity, [(mixed, TOKENS[num_read:NUM_PROMPT], num_read)])
    first = logprobs_of(device, with_copies(step, pages=pages, slots=[(1, 2)]))
    assert_same([first, *go_on(device, mixed, NUM_PROMPT)], expected, is_exact=num_read % 64 == 0)


@pytest.mark.parametrize("batch", [1, 4])
def test_captures_change_no_bit_of_any_row_nor_of_its_pages(device: CpuDevice, batch: int) -> None:
    rows = [ask(1), ask(2)][:batch]
    step = prefill(device.capacity, [(row, TOKENS[: 100 - 30 * index], 0) for index, row in enumerate(rows)], "greedy")
    captures: Pairs = [(0, 4, 5), (0, 60, 6), (0, 64, 7), (0, 100, 8)]
    if batch > 1:
        captures = [*captures, (1, 68, 3), (1, 8, 4)]

    def bits(one: StepInput) -> list[object]:
        plain = device.run(evolve(one, key=evolve(one.key, variant="greedy_logprobs")))
        assert plain.top_logprobs is not None
        found: list[object] = [plain.top_logprobs[: len(rows)].tobytes()]
        for index, row in enumerate(rows):
            found += [slot_bits(device, row.slot), paged_bits(device, row, 100 - 30 * index)]
        return found

    # Twice: the second run writes over what the first left, as the run with captures does.
    bits(step)
    alone = bits(step)
    assert bits(with_copies(step, captures=captures)) == alone


@pytest.mark.parametrize("num_tokens", [4, 60, 64, 68, 100])
@pytest.mark.parametrize("place", [0, 1])
def test_a_capture_has_the_bits_a_shorter_prompt_would_leave(device: CpuDevice, num_tokens: int, place: int) -> None:
    others = [(ask(2 + index), TOKENS[:30], 0) for index in range(place)]
    rows = [*others, (ask(1), TOKENS[:100], 0)]
    device.run(with_copies(prefill(device.capacity, rows, batch=2), captures=[(place, num_tokens, 8)]))
    captured = slot_bits(device, 8)
    # Steps of equal shape: of another the products may be summed in another order.
    shorter = evolve(prefill(device.capacity, rows, batch=2))
    shorter.num_valid[place] = num_tokens
    device.run(shorter)
    # A tail without an open group is not read: it keeps the last closed group there and here.
    assert captured == slot_bits(device, 1)


def test_many_captures_of_one_block_take_a_run_for_each_of_a_row(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[list[int]] = []
    run_layers = device._run_layers

    def counted(*arguments: object) -> torch.Tensor:
        runs.append(arguments[4].tolist())  # type: ignore[attr-defined]
        return run_layers(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(device, "_run_layers", counted)
    step = prefill(device.capacity, [(ask(1), TOKENS[:100], 0), (ask(2), TOKENS[:70], 0)])
    captures: Pairs = [(0, 8, 5), (1, 12, 6), (0, 16, 7), (0, 64, 8), (1, 70 - 2, 3), (0, 100, 4)]
    device.run(with_copies(step, captures=captures))
    assert runs == [[8, 12], [16, 0], [64, 64], [0, 4], [36, 6]]


def test_a_step_without_copies_looks_at_none(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "copy", None)
    device.run(prefill(device.capacity, [(ask(1), TOKENS[:100], 0)]))
    device.run(decode(device.capacity, [(ask(1), 100)]))


def test_copies_take_every_tensor_of_a_page_and_a_slot_with_them(device: CpuDevice) -> None:
    for tensor in device._state.tensors():
        tensor.copy_(torch.rand(tensor.shape) * 100)
    copies = Copies(pages=pairs([(9, 10)]), slots=pairs([(5, 6)]))
    device.run(evolve(decode(device.capacity, [], batch=1, pages=2), copies=copies))
    state = device._state
    parts = [*state.layers, *([] if state.mtp is None else [state.mtp])]
    assert {"latent", "pooled", "tail", "recurrent", "conv"} == {name for part in parts for name in part}
    for part in parts:
        for name, tensor in part.items():
            source, target = (9, 10) if name in PAGED else (5, 6)
            assert torch.equal(tensor[source], tensor[target])
    assert state.last_token[5] == state.last_token[6]
    for tensor in state.tensors():
        tensor.zero_()


def test_every_page_and_slot_comes_back_from_host_memory_with_its_bits(device: CpuDevice) -> None:
    numbers = np.arange(1, 33)
    assert len(numbers) >= CHUNK_ROWS
    for tensor in device._state.tensors():
        tensor.copy_(torch.rand(tensor.shape) * 100)
    before = [tensor.clone() for tensor in device._state.tensors()]
    mixed = np.random.default_rng(0).permutation(numbers)
    slots = np.random.default_rng(1).permutation(np.arange(1, 9))
    pages, rows = np.stack([numbers, mixed], 1), np.stack([np.arange(1, 9), slots], 1)
    assert device.transfer(Transfer(True, pages, rows)) > 0
    for tensor in device._state.tensors():
        tensor[1:] = 0
    device.transfer(Transfer(False, pages, rows))
    for tensor, expected in zip(device._state.tensors(), before, strict=True):
        assert torch.equal(tensor, expected)
        tensor.zero_()


def test_a_device_without_host_memory_has_none_and_says_so() -> None:
    config = CONFIGS["dense"]
    device = CpuDevice(config, fuse(config, tiny.random_tensors(config, 0).__getitem__), SETTINGS, "eager")
    assert (device.capacity.num_host_pages, device.capacity.num_host_slots) == (1, 1)
    assert device._host is None
    assert device.describe()["host_bytes"] == 0
    with pytest.raises(DeviceLost, match="no host memory"):
        device.transfer(Transfer(True, pairs([(1, 1)]), pairs()))


def test_a_transfer_that_torch_cannot_make_is_a_lost_device(device: CpuDevice) -> None:
    with pytest.raises(DeviceLost, match="index"):
        device.transfer(Transfer(True, pairs([(1, 99)]), pairs()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_of_a_page_and_a_slot_add_up_to_the_state(device: CpuDevice, dtype: str) -> None:
    settings = evolve(SETTINGS, dtype=dtype)
    for config in CONFIGS.values():
        state = new_state(config, 9, 33, 32, getattr(torch, dtype))
        assert 33 * page_bytes(config, settings) + 9 * slot_bytes(config, settings) == state.num_bytes()
    if dtype == "float32":
        facts = device.describe()
        assert facts["page_bytes"] == page_bytes(CONFIGS["dense"], settings)
        assert facts["slot_bytes"] == slot_bytes(CONFIGS["dense"], settings)
        assert facts["host_bytes"] == facts["state_bytes"]
