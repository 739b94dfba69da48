"""What sequences leave on the device between steps: pages of latents and pooled keys, slots of recurrent state.

Per DSA layer (and the MTP layer): `latent` [num_pages, page, R] and `pooled` [num_pages, page / kpool, Di] grow with
the sequence, `tail` [num_slots, kpool, 2 Di] keeps the index keys and gates of the one open group. Per KDA layer:
`recurrent` [num_slots, H, K, V] fp32 and `conv` [num_slots, kernel - 1, 3Q], the last raw columns. `last_token`
[num_slots] is each sequence's newest sampled id, so ids need not visit the host between steps.

# Invariant: pools hold finite numbers. They begin as zeros and every write is finite, so a masked entry of a stale
# page adds exactly 0 and nothing needs clearing between owners.
# Invariant: page 0 and slot 0 belong to nobody; writes that must not happen land there.
"""

from collections.abc import Mapping

import torch
from attrs import frozen
from torch import Tensor

from graphs.config import MTP_KIND, Config, LayerKind
from graphs.settings import GraphSettings

LayerState = Mapping[str, Tensor]
PAGED = ("latent", "pooled")


@frozen(eq=False)
class State:
    """Every layer's state tensors, the MTP layer's, and the newest sampled id of each slot [num_slots] int64."""

    layers: tuple[LayerState, ...]
    mtp: LayerState | None
    last_token: Tensor

    def tensors(self) -> list[Tensor]:
        """Return every state tensor."""
        return [tensor for _, tensor in self._named()] + [self.last_token]

    def page_tensors(self) -> list[Tensor]:
        """Return the tensors [num_pages, ..] that together hold a page."""
        return [tensor for name, tensor in self._named() if name in PAGED]

    def slot_tensors(self) -> list[Tensor]:
        """Return the tensors [num_slots, ..] that together hold a slot."""
        return [tensor for name, tensor in self._named() if name not in PAGED] + [self.last_token]

    def num_bytes(self) -> int:
        """Return the bytes all state tensors hold."""
        return _num_bytes(self.tensors())

    def _named(self) -> list[tuple[str, Tensor]]:
        parts = [*self.layers, *([] if self.mtp is None else [self.mtp])]
        return [named for part in parts for named in part.items()]


def page_bytes(config: Config, settings: GraphSettings) -> int:
    """Return the bytes of one page over all layers."""
    return _num_bytes(_one_of_each(config, settings).page_tensors())


def slot_bytes(config: Config, settings: GraphSettings) -> int:
    """Return the bytes of one slot over all layers."""
    return _num_bytes(_one_of_each(config, settings).slot_tensors())


def _one_of_each(config: Config, settings: GraphSettings) -> State:
    # On the meta device a tensor has a shape and no memory.
    return new_state(config, 1, 1, settings.page_size_tokens, getattr(torch, settings.dtype), "meta")


def _num_bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def new_state(
    config: Config,
    num_slots: int,
    num_pages: int,
    page_size_tokens: int,
    dtype: torch.dtype,
    device: str = "cpu",
) -> State:
    """Return zero state; num_slots and num_pages count the null ones; raises ValueError when a page splits a group."""
    if page_size_tokens % config.index_kpool:
        raise ValueError(f"page_size_tokens {page_size_tokens} is not a multiple of index_kpool {config.index_kpool}")

    def layer(kind: LayerKind) -> LayerState:
        if kind.attention == "kda":
            return _kda_state(config, num_slots, dtype, device)
        return _dsa_state(config, num_slots, num_pages, page_size_tokens, dtype, device)

    return State(
        layers=tuple(layer(kind) for kind in config.layer_kinds),
        mtp=layer(MTP_KIND) if config.has_mtp else None,
        last_token=torch.zeros(num_slots, dtype=torch.int64, device=device),
    )


def _kda_state(config: Config, num_slots: int, dtype: torch.dtype, device: str) -> LayerState:
    heads, width = config.kda_num_heads, config.kda_head_dim
    return {
        "recurrent": torch.zeros(num_slots, heads, width, width, dtype=torch.float32, device=device),
        "conv": torch.zeros(num_slots, config.conv_kernel - 1, 3 * config.kda_width, dtype=dtype, device=device),
    }


def _dsa_state(
    config: Config, num_slots: int, num_pages: int, page_size_tokens: int, dtype: torch.dtype, device: str
) -> LayerState:
    kpool, index_dim = config.index_kpool, config.index_head_dim
    return {
        "latent": torch.zeros(num_pages, page_size_tokens, config.kv_lora_rank, dtype=dtype, device=device),
        "pooled": torch.zeros(num_pages, page_size_tokens // kpool, index_dim, dtype=dtype, device=device),
        "tail": torch.zeros(num_slots, kpool, 2 * index_dim, dtype=dtype, device=device),
    }
