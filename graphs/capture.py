"""Captures one body with torch.export on fake tensors: only shapes and types are needed, never the weights."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export

from graphs.catalog import BLOCK_TOKENS, Body
from graphs.config import Config
from graphs.layers.mla_dsa import Regime
from graphs.layers.sampling import draw, greatest_threshold
from graphs.models.glm5_next import decode_layer, prefill_layer
from graphs.packing import Layout
from graphs.parameters import fuse_layer, tensor_shapes
from graphs.settings import GraphSettings
from graphs.state import LayerState, new_state

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_Dims = dict[int, object] | list[None] | None


class LayerBody(torch.nn.Module):
    """A layer as a body: small inputs, then its packed weights, then its state, which it writes in place."""

    def __init__(self, config: Config, body: Body, layout: Layout, state_names: tuple[str, ...]) -> None:
        super().__init__()
        self.config, self.body, self.layout, self.state_names = config, body, layout, state_names

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
        assert self.body.kind is not None
        w = self.layout.unpack(buffers)
        named: LayerState = dict(zip(self.state_names, state, strict=True))
        regime: Regime = self.body.regime
        if self.body.family == "decode":
            return decode_layer(self.config, self.body.kind, regime, w, named, streams, start, slots, page_table)
        return prefill_layer(
            self.config, self.body.kind, regime, w, named, streams, start, num_valid, slots, page_table
        )


class _Function(torch.nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)  # type: ignore[operator]


def capture(body: Body, config: Config, settings: GraphSettings) -> ExportedProgram:
    """Return the captured program of `body`; its inputs in order are those of LayerBody, flattened."""
    with FakeTensorMode(), torch.no_grad():
        if body.kind is None:
            return _capture_sampling(body, config)
        return _capture_layer(body, config, settings)


def _capture_layer(body: Body, config: Config, settings: GraphSettings) -> ExportedProgram:
    assert body.kind is not None
    dtype = DTYPES[settings.dtype]
    index = config.layer_kinds.index(body.kind)
    shapes = tensor_shapes(config)
    weights = fuse_layer(config, index, lambda name: torch.empty(shapes[name]), dtype)
    layout = Layout.of(weights)
    pool = new_state(config, settings.num_slots, settings.num_pages, settings.page_size_tokens, dtype).layers[index]
    rows, rows_dim = _open("rows", body.rows)
    pages, pages_dim = _open("pages", body.pages)
    tokens = 1 if body.family == "decode" else BLOCK_TOKENS
    row = torch.zeros(rows, dtype=torch.int64)
    inputs = (
        torch.zeros(rows, tokens, config.num_streams, config.hidden_size, dtype=dtype),
        row,
        row.clone(),
        row.clone(),
        torch.zeros(rows, pages, dtype=torch.int64),
        [torch.zeros(size, dtype=kind) for size, kind in zip(layout.lengths, layout.dtypes, strict=True)],
        list(pool.values()),
    )
    by_row: _Dims = {0: rows_dim} if rows_dim else None
    table = {axis: dim for axis, dim in enumerate((rows_dim, pages_dim)) if dim}
    dims = (by_row, by_row, by_row, by_row, table or None, [None] * len(inputs[5]), [None] * len(inputs[6]))
    return export(LayerBody(config, body, layout, tuple(pool)), inputs, dynamic_shapes=dims, strict=False)


def _capture_sampling(body: Body, config: Config) -> ExportedProgram:
    rows, rows_dim = _open("rows", body.rows)
    by_row: _Dims = {0: rows_dim} if rows_dim else None
    wide = torch.zeros(rows, config.vocab_size)
    column, ints = torch.zeros(rows, dtype=torch.float32), torch.zeros(rows, dtype=torch.int64)
    inputs: tuple[Tensor, ...]
    if body.family == "threshold":
        inputs = (wide.int(), wide, column.unsqueeze(1))
        function: object = greatest_threshold
    else:
        inputs = (wide, wide.int(), column.unsqueeze(1).int(), column, column.clone(), ints, ints.clone())
        function = draw
    return export(_Function(function), inputs, dynamic_shapes=((by_row,) * len(inputs),), strict=False)


def _open(name: str, sizes: tuple[int, int]) -> tuple[int, Dim | None]:
    """Return an example size and the open dimension of a range of sizes; a single size is fixed.

    Export takes 0 and 1 for special, so an open dimension is captured from 2; the result is run with 1 as well.
    """
    if sizes[0] == sizes[1]:
        return sizes[0], None
    low = max(2, sizes[0])
    return low, Dim(name, min=low, max=max(sizes[1], low + 1))
