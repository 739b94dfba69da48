"""The compiled device. One set of real packages is built for the whole file (about a minute of one core)."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor

from graphs.background import Bodies
from graphs.capture import AttentionBody, MlpBody, halves
from graphs.catalog import Body, bodies
from graphs.compile import Compiled, Job, has_compiler
from graphs.config import Config
from graphs.devices.cpu import CpuDevice
from graphs.layers.edits import adjusted, masked
from graphs.layers.sampling import draw, greatest_threshold
from graphs.layers.scores import total
from graphs.packing import Layout
from graphs.parameters import Weights, fuse
from graphs.state import new_state
from graphs.step import StepInput
from tests.contracts.device_contract import NUM_HOST_PAGES, NUM_HOST_SLOTS, PROMPT, DeviceContract, Pairs, with_copies
from tests.contracts.edits_contract import assert_same_scores, targets_of
from tests.graphs import tiny
from tests.graphs.devices.test_cpu import FIXED, run_mixed
from tests.graphs.devices.test_cpu_copies import paged_bits, slot_bits
from tests.graphs.steps import (
    EDITING,
    SETTINGS,
    Change,
    adjusting,
    allowing,
    ask,
    decode,
    generate,
    prefill,
    rows_of,
    scored,
    with_edits,
)

CONFIG = Config.from_json(tiny.config_json(hc_sinkhorn_iters=2))
FUNCTIONS: dict[str, Callable[..., Tensor | tuple[Tensor, Tensor]]] = {
    "threshold": greatest_threshold,
    "draw": draw,
    "mask": masked,
    "adjust": adjusted,
    "score": total,
}
EDITING_FIXED = evolve(FIXED, takes_mask=True, adjust_tokens=(4, 16, 256))
needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


@pytest.fixture(scope="module")
def weights() -> Weights:
    return fuse(CONFIG, tiny.random_tensors(CONFIG, 0).__getitem__)


def uncompiled(body: Body, weights: Weights, calls: list[str]) -> Compiled:
    """Return what the body's package would be, run eagerly: the same flat inputs, the same outputs."""
    if body.part in FUNCTIONS:
        function = FUNCTIONS[body.part]

        def sampling(inputs: list[Tensor]) -> list[Tensor]:
            calls.append(body.name)
            assert all(tensor.is_contiguous() for tensor in inputs)
            assert body.rows[0] <= inputs[0].shape[0] <= body.rows[1]
            found = function(*inputs)
            return list(found) if isinstance(found, tuple) else [found]

        return sampling
    is_mlp = body.part in ("dense", "moe")
    index = next(i for i, kind in enumerate(CONFIG.layer_kinds) if body.part in kind)
    layout = Layout.of(halves(weights.layers[index])[is_mlp])
    names = tuple(new_state(CONFIG, 2, 2, 32, torch.float32).layers[index])
    module = MlpBody(CONFIG, body, layout) if is_mlp else AttentionBody(CONFIG, body, layout, names)
    num_small = 1 if is_mlp else 5

    def layer(inputs: list[Tensor]) -> list[Tensor]:
        calls.append(body.name)
        assert all(tensor.is_contiguous() for tensor in inputs)
        assert body.rows[0] <= inputs[0].shape[0] <= body.rows[1]
        small, buffers = inputs[:num_small], inputs[num_small : num_small + len(layout.lengths)]
        state = inputs[num_small + len(buffers) :]
        return [module(*small, buffers) if is_mlp else module(*small, buffers, state)]

    return layer


class Prepared:
    """Stands in for the compiled bodies: all ready at once."""

    num_total = 9

    def __init__(self, ready: dict[str, Compiled]) -> None:
        self.ready = ready

    def close(self) -> None:
        pass


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def device(weights: Weights, calls: list[str]) -> CpuDevice:
    device = CpuDevice(CONFIG, weights, EDITING, "eager", num_host_pages=NUM_HOST_PAGES, num_host_slots=NUM_HOST_SLOTS)
    ready = {body.name: uncompiled(body, weights, calls) for body in bodies(CONFIG, EDITING)}
    device._bodies = Prepared(ready)  # type: ignore[assignment]
    return device


class TestCpuDeviceOfBodies(DeviceContract):
    pass


def test_bodies_are_called_for_every_half_and_change_nothing(
    weights: Weights, device: CpuDevice, calls: list[str]
) -> None:
    row = ask(1, temperature=0.9, top_k=20, top_p=0.9, seed=4)
    expected = generate(CpuDevice(CONFIG, weights, SETTINGS, "eager"), row, PROMPT, 5)
    assert generate(device, row, PROMPT, 5) == expected
    per_step = len(CONFIG.layer_kinds) * 2 + 3
    assert len(calls) == 5 * per_step
    assert {"decode-kda", "decode-dsa-dense", "mlp-dense", "mlp-moe-few", "prefill-kda", "draw"} <= set(calls)


def test_graphs_are_swapped_in_between_steps(weights: Weights, device: CpuDevice, calls: list[str]) -> None:
    row = ask(1)
    expected = generate(CpuDevice(CONFIG, weights, SETTINGS, "eager"), row, PROMPT, 4)
    capacity, ready = device.capacity, device._bodies.ready  # type: ignore[union-attr]
    device._bodies.ready = {}  # type: ignore[union-attr]
    ids = [int(device.run(prefill(capacity, [(row, PROMPT, 0)])).token_ids[0])]
    assert not calls
    for step in range(3):
        device._bodies.ready = ready if step else {"mlp-dense": ready["mlp-dense"]}  # type: ignore[union-attr]
        ids.append(int(device.run(decode(capacity, [(row, len(PROMPT) + step)])).token_ids[0]))
    assert ids == expected
    assert calls[:2] == ["mlp-dense", "mlp-dense"]


@pytest.fixture(scope="module")
def cache(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    device = CpuDevice(CONFIG, weights, EDITING_FIXED, "auto", folder)
    facts = device.describe()
    # One bucket of every kind: compiling was waited for.
    assert facts["graphs_ready"] == facts["graphs_total"] == len(bodies(CONFIG, EDITING_FIXED))
    device.close()
    return folder


@pytest.mark.slow
@needs_compiler
class TestRealPackages:
    def test_compiled_says_what_eager_says(self, weights: Weights, cache: Path) -> None:
        row = ask(1, temperature=0.9, top_k=30, top_p=0.9, seed=3)
        compiled = CpuDevice(CONFIG, weights, EDITING_FIXED, "compiled", cache)
        eager = CpuDevice(CONFIG, weights, FIXED, "eager")
        assert generate(compiled, row, PROMPT * 7, 12) == generate(eager, row, PROMPT * 7, 12)
        for ours, theirs in zip(compiled._state.tensors(), eager._state.tensors(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)

    def test_edits_and_scores_are_what_eager_ones_are(self, weights: Weights, cache: Path) -> None:
        compiled = CpuDevice(CONFIG, weights, EDITING_FIXED, "compiled", cache)
        eager = CpuDevice(CONFIG, weights, EDITING_FIXED, "eager")
        assert {"mask", "adjust", "score"} <= compiled._bodies.ready.keys()  # type: ignore[union-attr]
        marked = {token: (1.0, 1.0, 0.25 * token) for token in PROMPT}
        changes = [Change(tokens=marked, repetition=1.3, frequency=0.7, presence=-0.4), Change(), Change(), Change()]
        for size in (16, 256):
            step = prefill(compiled.capacity, [(ask(1), PROMPT * 7, 0), (ask(2), PROMPT, 0)], "greedy_logprobs")
            step = with_edits(step, allowing(256, range(0, 256, 3), None, None, None), adjusting(256, size, *changes))
            step = scored(step, targets_of(0, PROMPT * 7, 0, 70), np.array([[1, 2, 3]] * 4))
            ours, theirs = compiled.run(step), eager.run(step)
            assert ours.scores is not None
            assert theirs.scores is not None
            assert ours.wanted is not None
            assert rows_of(ours, 2) == rows_of(theirs, 2)
            for found, expected in (
                (ours.logprobs, theirs.logprobs),
                (ours.top_logprobs, theirs.top_logprobs),
                (ours.wanted, theirs.wanted),
            ):
                np.testing.assert_allclose(found[:2], expected[:2], atol=1e-4)  # type: ignore[index]
            assert_same_scores(ours.scores, 0, theirs.scores, 0, 69)
            assert np.isneginf(ours.wanted[0]).tolist() == [True, True, False]

    def test_a_second_start_loads_everything_and_starts_no_process(self, weights: Weights, cache: Path) -> None:
        running = Bodies(Job.of(CONFIG, EDITING_FIXED, cache))
        assert running._process is None
        assert len(running.ready) == running.num_total

    def test_with_one_bucket_a_request_has_the_same_bits_alone_and_in_any_batch(
        self, weights: Weights, cache: Path
    ) -> None:
        device = CpuDevice(CONFIG, weights, EDITING_FIXED, "compiled", cache)
        row = ask(1, temperature=0.9, top_p=0.9, seed=3)
        alone = run_mixed(device, row, [], 0, 12)
        for place in range(4):
            others = [ask(slot, temperature=float(slot), seed=slot) for slot in (2, 3, 5)]
            assert run_mixed(device, row, others, place, 12) == alone

    def test_captures_change_no_bit_and_a_row_resumes_from_them(self, weights: Weights, cache: Path) -> None:
        device = CpuDevice(CONFIG, weights, EDITING_FIXED, "compiled", cache)
        tokens = [(13 * index) % 256 for index in range(100)]
        step = prefill(device.capacity, [(ask(1), tokens, 0), (ask(2), tokens[:50], 0)])

        def bits(one: StepInput) -> list[object]:
            output = device.run(one)
            rows = ((ask(1), 100), (ask(2), 50))
            found = [[slot_bits(device, row.slot), paged_bits(device, row, count)] for row, count in rows]
            return [output.logprobs[:2].tobytes(), *found]

        bits(step)
        alone = bits(step)
        captures: Pairs = [(0, 40, 3), (0, 64, 4), (0, 68, 5), (0, 100, 6), (1, 12, 7)]
        assert bits(with_copies(step, captures=captures)) == alone
        # The same row again, from the state after 64 and after 40 of its tokens; the pages are its own.
        on_grid, off_grid = (
            device.run(with_copies(prefill(device.capacity, [(ask(1), tokens[start:], start)]), slots=[(slot, 1)]))
            for start, slot in ((64, 4), (40, 3))
        )
        assert on_grid.logprobs[:1].tobytes() == alone[0][:4]  # type: ignore[index]
        assert off_grid.logprobs[0] == pytest.approx(float(on_grid.logprobs[0]), abs=1e-5)

    def test_a_damaged_package_is_built_anew(
        self, weights: Weights, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = Job.of(CONFIG, EDITING_FIXED, cache)
        path = next(job.folder.glob("mlp-dense.*.so"))
        path.write_bytes(path.read_bytes()[:-100])
        with caplog.at_level(logging.WARNING, "trnrt"):
            running = Bodies(job)
            running.wait()
        running.close()
        assert len(running.ready) == running.num_total
        assert len(caplog.records) == 1
