"""What crosses to a device and back, once a step: numpy arrays of one graph key's shape.

Row r of a step works on one sequence: its recurrent state lives in slot `slots[r]`, its tokens in the pages
`page_table[r]`. Slot 0 and page 0 belong to nobody: padding rows point there. Slots and pages are numbered
from 1 for owners.

# Invariant: a row whose `start` is 0 begins from zero state whatever its slot held before, so a slot or page needs
# no clearing between owners.
# Invariant: `start` of a prefill row is a multiple of `index_kpool` (4), so no pooling group is open there.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from graphs.keys import Buckets, GraphKey

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

NULL_SLOT = 0
NULL_PAGE = 0


@frozen(eq=False)
class SamplingRows:
    """Per-row sampling parameters [B]: temperature 0 is greedy, top_k 0 is off, top_p 1 and min_p 0 are off."""

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    seed: Ints


def pairs(numbers: Sequence[tuple[int, ...]] = (), width: int = 2) -> Ints:
    """Return `numbers` as an array [N, width]."""
    return np.array(numbers, np.int64).reshape(len(numbers), width)


@frozen(eq=False)
class Copies:
    """What a step moves from page to page and slot to slot besides its rows' work; each array is applied in order.

    Before the rows run: pages [N, 2] and slots [N, 2], (from, to). While they run: captures [N, 3], (row, num_tokens,
    to): slot `to` gets the row's slot as it is after num_tokens of the row's tokens of this prefill step, a multiple
    of `index_kpool` in 1 .. num_valid. After they have run: saves [N, 2], pages (from, to).

    # Invariant: a capture changes no bit of what the row itself computes.
    """

    pages: Ints = field(factory=pairs)
    slots: Ints = field(factory=pairs)
    captures: Ints = field(factory=lambda: pairs(width=3))
    saves: Ints = field(factory=pairs)


NO_COPIES = Copies()


@frozen(eq=False)
class Transfer:
    """Whole pages [N, 2] and slots [N, 2] to copy between device and host memory, each pair (device, host)."""

    to_host: bool
    pages: Ints
    slots: Ints


@frozen(eq=False)
class StepInput:
    """One step of `key`: prefill reads tokens [B, T]; decode reads each slot's newest token on the device.

    start [B] is the position of the row's first token of this step, num_valid [B] how many of the T are real
    (0 marks a padding row). The token sampled after the row's last valid token has position start + num_valid.
    """

    key: GraphKey
    tokens: Ints
    start: Ints
    num_valid: Ints
    slots: Ints
    page_table: Ints
    sampling: SamplingRows
    copies: Copies = NO_COPIES


@frozen(eq=False)
class StepOutput:
    """Sampled ids [B] and their logprobs [B]; with a logprobs variant also the best K ids and logprobs [B, K]."""

    token_ids: Ints
    logprobs: Floats
    top_ids: Ints | None
    top_logprobs: Floats | None
    device_s: float


@frozen
class Capacity:
    """What a device holds: every number of pages and slots includes the null one; 1 means no host memory."""

    num_pages: int
    page_size_tokens: int
    num_slots: int
    buckets: Buckets
    vocab_size: int
    context_length_tokens: int
    max_top_logprobs: int
    num_host_pages: int = 1
    num_host_slots: int = 1


class Device(Protocol):
    """Runs steps, one at a time, on whatever thread calls it; every call is synchronous.

    A device that stops working raises DeviceLost from `run`; after that it is not called again.
    """

    @property
    def capacity(self) -> Capacity:
        """Return the shapes and sizes this device was built with."""
        ...

    def run(self, step: StepInput) -> StepOutput:
        """Run one step and return its sampled ids; raises DeviceLost when the device is gone."""
        ...

    def transfer(self, transfer: Transfer) -> float:
        """Copy between device and host memory, giving the seconds it took; raises DeviceLost.

        The one call that may run on another thread while a step runs: no step in flight writes what it reads or
        touches what it writes.
        """
        ...

    def describe(self) -> dict[str, object]:
        """Return facts for logs and /server_info: device, dtype, weight and state bytes, graphs ready and total."""
        ...

    def close(self) -> None:
        """Free the device and stop its background compiles; idempotent."""
        ...


class DeviceLost(Exception):
    """The device cannot run another step."""
