"""Captures one body with torch.export on fake tensors: only shapes and types are needed, never the weights."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export

from graphs.catalog import BLOCK_TOKENS, Body
from graphs.config import Config
from graphs.layers.sampling import draw, greatest_threshold
from graphs.models.glm5_next import decode_attention, feed_forward_site, prefill_attention
from graphs.packing import Layout
from graphs.parameters import LayerWeights, fuse_layer, tensor_shapes
from graphs.settings import GraphSettings
from graphs.state import new_state

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
MLP_NAMES = {"mlp_norm", "gate_up", "down", "router", "router_bias", "experts_gate_up", "experts_down"}


def halves(w: LayerWeights) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights of a layer's attention half and of its feed-forward half."""
    is_mlp = {name: name in MLP_NAMES or name.startswith("hc_ffn") for name in w}
    return ({name: w[name] for name in w if not is_mlp[name]}, {name: w[name] for name in w if is_mlp[name]})


class AttentionBody(torch.nn.Module):
    """An attention half: small inputs, then its packed weights, then its state, which it writes in place."""

    def __init__(self, config: Config, body: Body, layout: Layout, state_names: tuple[str, ...]) -> None:
        super().__init__()
        self.config, self.body, self.layout, self.state_names = config, body, layout, state_names
        self.kind = next(kind for kind in config.layer_kinds if kind.attention == body.part)

    def forward(
        self,
        streams: Tensor,
        start: Tensor,
        num_valid: Tensor,
        slots: Tensor,
        page_table: Tensor,
        buffers: list[Tensor],
        state: list[Tensor],
    ) -> Tensor:
        """Return the next streams; decode does not read num_valid, KDA does not read page_table."""
        config, kind, regime = self.config, self.kind, self.body.regime
        w, named = self.layout.unpack(buffers), dict(zip(self.state_names, state, strict=True))
        if self.body.family == "decode":
            return decode_attention(config, kind, regime, w, named, streams, start, slots, page_table)
        return prefill_attention(config, kind, regime, w, named, streams, start, num_valid, slots, page_table)


class MlpBody(torch.nn.Module):
    """A feed-forward half over tokens [N, 1, n, D] and its packed weights."""

    def __init__(self, config: Config, body: Body, layout: Layout) -> None:
        super().__init__()
        self.config, self.layout = config, layout
        self.kind = next(kind for kind in config.layer_kinds if kind.mlp == body.part)

    def forward(self, streams: Tensor, buffers: list[Tensor]) -> Tensor:
        """Return the next streams."""
        return feed_forward_site(self.config, self.kind, self.layout.unpack(buffers), streams)


class _Function(torch.nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)  # type: ignore[operator]


def capture(body: Body, config: Config, settings: GraphSettings) -> ExportedProgram:
    """Return the captured program of `body`; its inputs are those of its module, flattened in order."""
    with FakeTensorMode(), torch.no_grad():
        if body.part in ("threshold", "draw"):
            return _capture_sampling(body, config)
        if body.part in ("dense", "moe"):
            return _capture_mlp(body, config, settings)
        return _capture_attention(body, config, settings)


def _capture_attention(body: Body, config: Config, settings: GraphSettings) -> ExportedProgram:
    dtype = DTYPES[settings.dtype]
    index = next(index for index, kind in enumerate(config.layer_kinds) if kind.attention == body.part)
    layout = Layout.of(halves(_fake_layer(config, index, dtype))[0])
    pool = new_state(config, settings.num_slots, settings.num_pages, settings.page_size_tokens, dtype).layers[index]
    rows, by_row = _open("rows", body.rows)
    pages, by_page = _open("pages", body.pages)
    tokens = 1 if body.family == "decode" else BLOCK_TOKENS
    row = torch.zeros(rows, dtype=torch.int64)
    inputs = (
        torch.zeros(rows, tokens, config.num_streams, config.hidden_size, dtype=dtype),
        row,
        row.clone(),
        row.clone(),
        torch.zeros(rows, pages, dtype=torch.int64),
        layout.empty(),
        list(pool.values()),
    )
    table = {axis: dims[0] for axis, dims in enumerate((by_row, by_page)) if dims} or None
    dims = (by_row, by_row, by_row, by_row, table, [None] * len(inputs[5]), [None] * len(inputs[6]))
    return export(AttentionBody(config, body, layout, tuple(pool)), inputs, dynamic_shapes=dims, strict=False)


def _capture_mlp(body: Body, config: Config, settings: GraphSettings) -> ExportedProgram:
    dtype = DTYPES[settings.dtype]
    index = next(index for index, kind in enumerate(config.layer_kinds) if kind.mlp == body.part)
    layout = Layout.of(halves(_fake_layer(config, index, dtype))[1])
    tokens, by_token = _open("tokens", body.rows)
    inputs = (torch.zeros(tokens, 1, config.num_streams, config.hidden_size, dtype=dtype), layout.empty())
    dims = (by_token, [None] * len(inputs[1]))
    return export(MlpBody(config, body, layout), inputs, dynamic_shapes=dims, strict=False)


def _fake_layer(config: Config, index: int, dtype: torch.dtype) -> LayerWeights:
    shapes = tensor_shapes(config)
    return fuse_layer(config, index, lambda name: torch.empty(shapes[name]), dtype)


def _capture_sampling(body: Body, config: Config) -> ExportedProgram:
    rows, by_row = _open("rows", body.rows)
    wide = torch.zeros(rows, config.vocab_size)
    column, ints = torch.zeros(rows, dtype=torch.float32), torch.zeros(rows, dtype=torch.int64)
    inputs: tuple[Tensor, ...]
    if body.part == "threshold":
        inputs = (wide.int(), wide, column.unsqueeze(1))
        function: object = greatest_threshold
    else:
        inputs = (wide, wide.int(), column.unsqueeze(1).int(), column, column.clone(), ints, ints.clone())
        function = draw
    return export(_Function(function), inputs, dynamic_shapes=((by_row,) * len(inputs),), strict=False)


def _open(name: str, sizes: tuple[int, int]) -> tuple[int, dict[int, Dim] | None]:
    """Return an example size and the open first dimension of a range of sizes; a single size is fixed.

    Export takes 0 and 1 for special, so an open dimension is captured from 2; the result is run with 1 as well.
    """
    if sizes[0] == sizes[1]:
        return sizes[0], None
    low = max(2, sizes[0])
    return low, {0: Dim(name, min=low, max=max(sizes[1], low + 1))}
