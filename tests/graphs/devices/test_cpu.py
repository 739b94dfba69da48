import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from graphs.config import Config
from graphs.devices import cpu
from graphs.devices.cpu import CpuDevice
from graphs.keys import Buckets
from graphs.parameters import Weights, fuse
from graphs.settings import DeviceMode, GraphSettings
from graphs.state import new_state
from graphs.step import DeviceLost, StepInput
from tests.contracts.device_contract import NUM_HOST_PAGES, NUM_HOST_SLOTS, PROMPT, DeviceContract
from tests.graphs import tiny
from tests.graphs.steps import EDITING, SETTINGS, Ask, ask, decode, generate, prefill, rows_of

CONFIG = Config.from_json(tiny.config_json())
FIXED = GraphSettings(
    Buckets(batch=(4,), prefill_batch=(4,), tokens=(128,), pages=(4,)),
    num_slots=9,
    num_pages=33,
    page_size_tokens=32,
    dtype="float32",
)


@pytest.fixture(scope="module")
def weights() -> Weights:
    return fuse(CONFIG, tiny.random_tensors(CONFIG, 0).__getitem__)


@pytest.fixture
def device(weights: Weights) -> Iterator[CpuDevice]:
    device = CpuDevice(CONFIG, weights, EDITING, "eager", num_host_pages=NUM_HOST_PAGES, num_host_slots=NUM_HOST_SLOTS)
    yield device
    device.close()


class TestEagerCpuDevice(DeviceContract):
    pass


def test_prefill_and_decode_say_what_the_composed_model_says(weights: Weights, device: CpuDevice) -> None:
    from graphs.models.glm5_next import decode as decode_model
    from graphs.models.glm5_next import prefill as prefill_model

    prompt = [(11 * index) % 256 for index in range(90)]
    state = new_state(CONFIG, 2, 5, 32, torch.float32)
    slots, table = torch.tensor([1]), torch.arange(1, 5).unsqueeze(0)
    tokens = torch.tensor([prompt + [0] * 38])
    with torch.inference_mode():
        logits = prefill_model(CONFIG, weights, state, tokens, torch.tensor([0]), torch.tensor([90]), slots, table)
        expected = [int(logits.argmax())]
        for step in range(6):
            newest, start = torch.tensor(expected[-1:]), torch.tensor([90 + step])
            expected.append(int(decode_model(CONFIG, weights, state, newest, start, slots, table).argmax()))
    assert generate(device, ask(1), prompt, 7) == expected


def test_sampled_rows_repeat_by_seed_whoever_is_beside_them(device: CpuDevice) -> None:
    row = ask(1, temperature=1.2, top_k=50, top_p=0.95, min_p=0.01, seed=7)
    alone = generate(device, row, PROMPT, 6)
    capacity = device.capacity
    others = [ask(2, temperature=3.0, seed=1), ask(3), ask(4, temperature=0.5, top_k=2)]
    device.run(prefill(capacity, [(other, PROMPT[:5], 0) for other in others]))
    ids = rows_of(device.run(prefill(capacity, [(row, PROMPT, 0)])), 1)
    for step in range(5):
        rows = [(other, 5 + step) for other in others] + [(row, len(PROMPT) + step)]
        ids.append(int(device.run(decode(capacity, rows)).token_ids[3]))
    assert ids == alone
    assert generate(device, ask(1, temperature=1.2, seed=8), PROMPT, 6) != alone


def test_a_finished_row_keeps_its_open_group_while_its_neighbour_prefills() -> None:
    # The sparse regime, where pooled keys choose what is read: 6 tokens leave a group open in the first block.
    config = Config.from_json(tiny.config_json(index_topk=8))
    weights = fuse(config, tiny.random_tensors(config, 0).__getitem__)
    device = CpuDevice(config, weights, SETTINGS, "eager")
    short, long = [(3 * index) % 256 for index in range(6)], [(5 * index) % 256 for index in range(128)]
    capacity = device.capacity

    def logprobs_after(steps: list[StepInput]) -> list[float]:
        found = [float(device.run(step).logprobs[0]) for step in steps]
        return found + [float(device.run(decode(capacity, [(ask(1), 6 + step)])).logprobs[0]) for step in range(40)]

    alone = logprobs_after([prefill(capacity, [(ask(1), short, 0)])])
    beside = logprobs_after([prefill(capacity, [(ask(1), short, 0), (ask(2), long, 0)])])
    assert beside == pytest.approx(alone, abs=1e-4)


def test_the_reported_logprob_is_the_one_in_the_list_of_the_best(device: CpuDevice) -> None:
    capacity = device.capacity
    device.run(prefill(capacity, [(ask(1), PROMPT, 0)]))
    output = device.run(decode(capacity, [(ask(1), len(PROMPT))], "greedy_logprobs"))
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    assert output.top_ids[0, 0] == output.token_ids[0]
    assert output.top_logprobs[0, 0] == pytest.approx(output.logprobs[0], abs=1e-6)


def run_mixed(device: CpuDevice, row: Ask, others: list[Ask], place: int, num_tokens: int) -> list[tuple[int, bytes]]:
    """Return ids and the bits of their logprobs of `row`, prefilled and decoded at `place` among others."""
    capacity = device.capacity
    prompt = [(13 * index) % 256 for index in range(77)]
    found = []
    for step in range(num_tokens):
        if step == 0:
            rows = [(other, prompt[: 9 + 20 * index], 0) for index, other in enumerate(others)]
            rows.insert(place, (row, prompt, 0))
            output = device.run(prefill(capacity, rows))
        else:
            at = [(other, 8 + 20 * index + step) for index, other in enumerate(others)]
            at.insert(place, (row, len(prompt) + step - 1))
            output = device.run(decode(capacity, at))
        found.append((int(output.token_ids[place]), output.logprobs[place].tobytes()))
    return found


def assert_same_bits_in_any_batch(weights: Weights, mode: DeviceMode, cache: Path) -> None:
    device = CpuDevice(CONFIG, weights, FIXED, mode, cache)
    row = ask(1, temperature=0.9, top_p=0.9, seed=3)
    alone = run_mixed(device, row, [], 0, 12)
    for place in range(4):
        others = [ask(slot, temperature=float(slot), seed=slot) for slot in (2, 3, 5)]
        assert run_mixed(device, row, others, place, 12) == alone
    device.close()


def test_with_one_bucket_a_request_has_the_same_bits_alone_and_in_any_batch(weights: Weights, tmp_path: Path) -> None:
    assert_same_bits_in_any_batch(weights, "eager", tmp_path)


def test_without_a_compiler_the_device_is_eager_with_one_log_line(
    weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "has_compiler", lambda: False)
    with caplog.at_level(logging.INFO, "trnrt"):
        device = CpuDevice(CONFIG, weights, SETTINGS, "auto", tmp_path)
        generate(device, ask(1), PROMPT, 3)
    assert [record.message for record in caplog.records] == [
        "CPU device: eager, since there is no C++ compiler on this machine"
    ]
    assert device.describe()["mode"] == "eager"
    assert device.describe()["graphs_total"] == 0


def test_eager_as_asked_logs_one_line(weights: Weights, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trnrt"):
        CpuDevice(CONFIG, weights, SETTINGS, "eager")
    assert [record.message for record in caplog.records] == ["CPU device: eager, as asked"]


def test_a_device_opens_a_folder_and_says_what_it_holds(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    device = CpuDevice.open(tmp_path, SETTINGS, "eager")
    facts = device.describe()
    assert facts["dtype"] == "float32"
    assert isinstance(facts["weight_bytes"], int)
    assert facts["weight_bytes"] > 100_000
    assert device.capacity.context_length_tokens == 128
    assert device.capacity.vocab_size == CONFIG.vocab_size
    assert np.isfinite(device.run(prefill(device.capacity, [(ask(1), PROMPT, 0)])).logprobs).all()


def test_a_step_that_torch_cannot_run_is_a_lost_device(device: CpuDevice) -> None:
    broken = ask(99)
    with pytest.raises(DeviceLost, match="index"):
        device.run(decode(device.capacity, [(broken, 3)]))


def test_a_draw_is_named_by_its_own_position_however_the_prompt_was_cut(device: CpuDevice) -> None:
    capacity = device.capacity
    prompt = [(7 * index) % 256 for index in range(50)]
    row = ask(1, temperature=2.0, seed=5)
    expected = generate(device, row, prompt, 1)
    device.run(prefill(capacity, [(row, prompt[:20], 0)]))
    assert rows_of(device.run(prefill(capacity, [(row, prompt[20:], 20)])), 1) == expected


@pytest.mark.parametrize(
    ("settings", "mode", "waits"), [(FIXED, "auto", True), (SETTINGS, "auto", False), (SETTINGS, "compiled", True)]
)
def test_compiling_is_waited_for_when_asked_or_when_bits_must_not_change(
    weights: Weights,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: GraphSettings,
    mode: DeviceMode,
    waits: bool,
) -> None:
    waited: list[bool] = []

    class Slow:
        def __init__(self, *_: object) -> None:
            pass

        def wait(self) -> None:
            waited.append(True)

    monkeypatch.setattr(cpu, "Bodies", Slow)
    monkeypatch.setattr(cpu, "has_compiler", lambda: True)
    CpuDevice(CONFIG, weights, settings, mode, tmp_path)
    assert waited == [True] * waits
