"""The bodies are pure fixed-shape functions: captured whole by torch.export, and of the published sizes too."""

import pytest
import torch
from torch import Tensor

from graphs.config import Config, LayerKind
from graphs.models import glm5_next
from graphs.parameters import LayerWeights, fuse, tensor_shapes
from graphs.state import LayerState, new_state
from tests.graphs.test_config import REAL_TEXT
from tests.graphs.tiny import config_json, random_tensors

CONFIG = Config.from_json(config_json(hc_sinkhorn_iters=2, index_topk=16))
WEIGHTS = fuse(CONFIG, random_tensors(CONFIG, 0).__getitem__)


class Prefill(torch.nn.Module):
    """One prefill layer as a module, for capture."""

    def __init__(self, kind: LayerKind, regime: glm5_next.Regime) -> None:
        super().__init__()
        self.static = (CONFIG, kind, regime)

    def forward(self, w: LayerWeights, state: LayerState, *inputs: Tensor) -> Tensor:
        return glm5_next.prefill_layer(*self.static, w, state, *inputs)


class Decode(Prefill):
    """One decode layer as a module, for capture."""

    def forward(self, w: LayerWeights, state: LayerState, *inputs: Tensor) -> Tensor:
        return glm5_next.decode_layer(*self.static, w, state, *inputs)


def small_inputs(num_tokens: int) -> list[Tensor]:
    """Return streams, start, slots and page_table of two rows."""
    streams = torch.randn(2, num_tokens, 4, 64, generator=torch.Generator().manual_seed(1))
    return [streams, torch.tensor([64, 0]), torch.tensor([2, 1]), torch.tensor([[3, 1], [2, 4]])]


@pytest.mark.parametrize("index", [1, 2])
@pytest.mark.parametrize("is_prefill", [True, False])
def test_a_captured_layer_computes_and_writes_what_the_layer_does(index: int, is_prefill: bool) -> None:
    inputs = small_inputs(64 if is_prefill else 1)
    if is_prefill:
        inputs.insert(2, torch.tensor([60, 64]))
    body = (Prefill if is_prefill else Decode)(CONFIG.layer_kinds[index], "sparse")
    layer = new_state(CONFIG, 3, 5, 64, torch.float32).layers[index]
    states = [{key: torch.zeros_like(tensor) for key, tensor in layer.items()} for _ in range(2)]
    with torch.no_grad():
        captured = torch.export.export(body, (WEIGHTS.layers[index], layer, *inputs), strict=False).module()
        expected = body(WEIGHTS.layers[index], states[0], *inputs)
        assert torch.equal(captured(WEIGHTS.layers[index], states[1], *inputs), expected)
    for key in layer:
        assert torch.equal(states[0][key], states[1][key]), key
        assert states[0][key].abs().sum() > 0, key


@pytest.mark.parametrize("index", [0, 3, 5])
def test_layers_of_the_published_sizes_have_the_right_shapes(index: int) -> None:
    kinds = {"num_hidden_layers": 5, "layer_types": REAL_TEXT["layer_types"][:5]}
    config = Config.from_json({"text_config": REAL_TEXT | kinds | {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2}})
    shapes = tensor_shapes(config)
    with torch.device("meta"):
        weights = fuse(config, lambda name: torch.empty(shapes[name], dtype=torch.bfloat16), torch.bfloat16)
        state = new_state(config, 4, 200, 64, torch.bfloat16, device="meta")
        place = [torch.empty(2, dtype=torch.int64) for _ in range(3)]
        table = torch.empty(2, 64, dtype=torch.int64)
        streams = torch.empty(2, 256, 4, 4096, dtype=torch.bfloat16)
        if index == config.num_layers:
            assert weights.mtp is not None
            assert state.mtp is not None
            h, tokens = streams[:, :, 0], torch.empty(2, 256, dtype=torch.int64)
            args = ("sparse", weights.top, weights.mtp, state.mtp)
            y = glm5_next.mtp_prefill(config, *args, h, tokens, *place, table)
            assert y.shape == (2, 256, 4096)
            assert glm5_next.mtp_draft(config, *args, h[:, 0], tokens[:, 0], *place[:2], table).shape == (2, 4096)
            return
        args_layer = (config, config.layer_kinds[index], "sparse", weights.layers[index], state.layers[index])
        after = glm5_next.prefill_layer(*args_layer, streams, *place, table)
        assert (after.shape, after.dtype) == (streams.shape, torch.bfloat16)
        one = glm5_next.decode_layer(*args_layer, streams[:, :1], *place[:2], table)
        assert (one.shape, one.dtype) == ((2, 1, 4, 4096), torch.bfloat16)
