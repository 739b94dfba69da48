"""The tensors of half a layer in one flat buffer a type: a compiled body takes one or two weights, not fifteen.

Layers of a kind have equal layouts, which is what lets one compiled body serve them all.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

ALIGNMENT_ELEMENTS = 32


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
        return {
            name: buffers[place.buffer].narrow(0, place.offset, math.prod(place.shape)).view(place.shape)
            for name, place in self.places
        }
