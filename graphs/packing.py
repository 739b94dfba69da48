"""The tensors of half a layer in one flat buffer a type: a compiled body takes one or two weights, not fifteen.

Layers of a kind have equal layouts, which is what lets one compiled body serve them all. Matrices that are read as
x W^T are stored the other way round, so that a product walks memory in order: on the CPU that takes a tenth to a
third off small batches. They are seen as transposed views, so nothing else knows.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

ALIGNMENT_ELEMENTS = 32
TRANSPOSED = frozenset(
    {
        *("in_proj", "q_proj", "o_proj", "f_b", "g_b", "w_uv"),
        *("gate_up", "down", "router", "experts_gate_up", "experts_down"),
    }
)


@frozen
class Place:
    """Where a tensor lies: which buffer, from which element, in which shape."""

    buffer: int
    offset: int
    shape: tuple[int, ...]


@frozen
class Layout:
    """Names to places in buffers of the given types and lengths."""

    places: tuple[tuple[str, Place], ...]
    dtypes: tuple[torch.dtype, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Layout":
        """Return the layout of tensors, in their own order within each type."""
        dtypes = tuple(sorted({tensor.dtype for tensor in tensors.values()}, key=str))
        lengths = [0] * len(dtypes)
        places = []
        for name, tensor in tensors.items():
            buffer = dtypes.index(tensor.dtype)
            places.append((name, Place(buffer, lengths[buffer], tuple(tensor.shape))))
            lengths[buffer] += -(-tensor.numel() // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        return cls(tuple(places), dtypes, tuple(lengths))

    def empty(self) -> list[Tensor]:
        """Return buffers of zeros."""
        return [torch.zeros(size, dtype=dtype) for size, dtype in zip(self.lengths, self.dtypes, strict=True)]

    def pack(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the buffers filled with tensors."""
        buffers = self.empty()
        views = self.unpack(buffers)
        for name, view in views.items():
            view.copy_(tensors[name])
        return buffers

    def unpack(self, buffers: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return every tensor as a view of its buffer."""
        return {name: _view(buffers[place.buffer], place, name in TRANSPOSED) for name, place in self.places}


def column_major(matrix: Tensor) -> Tensor:
    """Return a copy of matrix [.., N, K] stored as [.., K, N]."""
    return matrix.transpose(-1, -2).contiguous().transpose(-1, -2)


def _view(buffer: Tensor, place: Place, is_transposed: bool) -> Tensor:
    flat = buffer.narrow(0, place.offset, math.prod(place.shape))
    if not is_transposed:
        return flat.view(place.shape)
    *batch, rows, columns = place.shape
    return flat.view(*batch, columns, rows).transpose(-1, -2)
