"""The seam between a step's logits and its token ids."""

from collections.abc import Callable
from typing import NamedTuple

from attrs import frozen
from torch import Tensor

from graphs.layers.sampling import DrawRows, Kernels


class Ending(NamedTuple):
    """Logits [B, V] fp32 and what a variant may use: sampling rows, positions [B], kernels, how many best ids."""

    logits: Tensor
    rows: DrawRows
    position: Tensor
    kernels: Kernels
    num_best: int


class Chosen(NamedTuple):
    """Ids [B], their logprobs [B] and, where the variant gives them, the best ids and logprobs [B, K]."""

    ids: Tensor
    logprobs: Tensor
    best_ids: Tensor | None = None
    best_logprobs: Tensor | None = None


@frozen
class Variant:
    """A name and how it chooses; with_best says whether best ids come too."""

    name: str
    choose: Callable[[Ending], Chosen]
    with_best: bool = False
