"""The golden list of graphs: what it holds, and what its text and its comparison notice."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.export import Dim, export

from graphs.catalog import ENDING_PARTS, bodies
from graphs.compile import captured
from graphs.config import Config
from tests.graphs import tiny
from tests.graphs.steps import EDITING, SETTINGS
from trnrt.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = Config.from_json(tiny.config_json(hc_sinkhorn_iters=2))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("graph_equiv", ROOT / "scripts/graph_equiv.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Scale(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * self.factor + y.sum(-1)


def text_of(script: ModuleType, factor: float = 2.0, width: int = 3, most: int = 8) -> str:
    rows = Dim("rows", min=2, max=most)
    inputs = (torch.zeros(4), torch.zeros(4, width))
    program = export(Scale(factor), inputs, dynamic_shapes=({0: rows}, {0: rows}), strict=False)
    text: str = script.canonical(program)
    return text


def test_equal_graphs_have_equal_text_and_a_constant_a_shape_or_a_range_changes_it(script: ModuleType) -> None:
    text = text_of(script)
    assert text_of(script) == text
    others = [text_of(script, factor=2.5), text_of(script, width=4), text_of(script, most=9)]
    assert len({text, *others}) == 4
    assert text.splitlines()[2] == "%2 = mul.Tensor(%0, 2.0) : float32[s0]"
    assert text.splitlines()[-1] == "s0 in VR[2, 8]"
    assert script.summary(text).split(" ", 1)[1] == "2 inputs, 3 operators -> float32[s0]"


@pytest.mark.parametrize("body", [body for body in bodies(CONFIG, SETTINGS) if body.part not in ENDING_PARTS], ids=str)
def test_a_layer_is_the_same_graph_with_edits_and_without(script: ModuleType, body: object) -> None:
    texts = {script.canonical(captured(body, CONFIG, settings)) for settings in (SETTINGS, EDITING)}  # type: ignore[arg-type]
    assert len(texts) == 1


def test_a_comparison_names_what_came_went_and_changed(script: ModuleType) -> None:
    one, two = text_of(script), text_of(script, factor=2.5)
    before = {"demo default": {"a": one, "b": one, "c": one}}
    after = {"demo default": {"a": one, "b": two, "d": one}, "demo other": {"a": one}}
    lines = list(script.differences(before, after))
    assert lines[0] == "demo default: 1 of 3 graphs as they were"
    assert lines[1].startswith("  + d: ")
    assert lines[2].startswith("  - c: ")
    assert lines[3] == "  ! b"
    changed = [line.strip() for line in lines[4:] if line.strip().startswith(("-", "+"))]
    assert changed[:4] == [
        "--- before",
        "+++ after",
        "-mul.Tensor(<2, 2.0) : float32[s0]",
        "+mul.Tensor(<2, 2.5) : float32[s0]",
    ]
    assert script.check(before, script.text_of(before)) == []
    found = script.check({"demo default": after["demo default"]}, script.text_of(before))
    assert {tuple(line.split(": ")[:2]) for line in found} == {
        ("+ demo default", "b"),
        ("- demo default", "b"),
        ("- demo default", "c"),
        ("+ demo default", "d"),
    }


def test_a_list_of_another_torch_says_so_and_compares_nothing(script: ModuleType) -> None:
    known = script.text_of({}).replace(torch.__version__.split("+")[0], "1.0.0")
    (line,) = script.check({"demo default": {"a": text_of(script)}}, known)
    assert "torch 1.0.0" in line


def test_the_list_holds_every_preset_of_both_models(script: ModuleType) -> None:
    known = json.loads(script.FILE.read_text())
    assert known.keys() - {"torch"} == {
        f"{model} {preset}{suffix}" for model in script.MODELS for preset in PRESETS for suffix in ("", "+edits")
    }
    for name, graphs in known.items():
        if name.endswith("+edits"):
            assert graphs.keys() == {"mask", "adjust"}
        elif name != "torch":
            assert {"embed", "head", "choose-greedy", "choose-sample", "score", "draw", "decode-kda"} <= graphs.keys()
