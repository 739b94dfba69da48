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
Words = npt.NDArray[np.int32]

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


@frozen(eq=False)
class Adjust:
    """What some tokens' logits become: the K tokens of each row that anything is asked of.

    token_ids [B, K] are distinct in a row; unused places hold vocab_size. counts [B, K] is how often the row has
    generated the token, seen [B, K] is 1 where the prompt or the answer holds it, bias [B, K] is added. A logit first
    loses frequency [B] x count and, where count > 0, presence [B]; where seen it is then divided by repetition [B] if
    positive, else multiplied by it; then bias is added.
    """

    token_ids: Ints
    counts: Floats
    seen: Floats
    bias: Floats
    repetition: Floats
    frequency: Floats
    presence: Floats


@frozen(eq=False)
class Edits:
    """What is done to logits before anything is sampled: first `adjust`, then tokens not `allowed` become -inf.

    allowed [B, ceil(V / 32)] has bit v % 32 of word v // 32 set where token v may come, and at least one set a row.
    """

    allowed: Words | None = None
    adjust: Adjust | None = None


@frozen(eq=False)
class Scoring:
    """Which of a prefill step's tokens are scored: targets [B, T] is the token after each, -1 where nobody asks."""

    targets: Ints


@frozen(eq=False)
class Scores:
    """Logprobs [B, T] of the targets, the best K ids and logprobs [B, T, K] and of wanted ids [B, T, M] there.

    They are of the plain logits at temperature 1; where a target is -1 they mean nothing.
    """

    logprobs: Floats
    top_ids: Ints
    top_logprobs: Floats
    wanted: Floats | None = None


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
    # What the key's `edits` names is here, for every row: an all-ones mask where a row has none.
    edits: Edits | None = None
    # With a key that is `scored`.
    scoring: Scoring | None = None
    # Ids [B, M] whose logprobs are wanted beside the sampled one's, -1 where a row wants fewer.
    wanted_ids: Ints | None = None


@frozen(eq=False)
class StepOutput:
    """Sampled ids [B] and their logprobs [B]; with a logprobs variant also the best K ids and logprobs [B, K].

    wanted [B, M] are the logprobs of the step's wanted_ids at the sampled token; scores come of a scored step. A
    logprob of minus infinity stays what it is: what a client reads of it is a dialect's.
    """

    token_ids: Ints
    logprobs: Floats
    top_ids: Ints | None
    top_logprobs: Floats | None
    device_s: float
    wanted: Floats | None = None
    scores: Scores | None = None


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
    # Whether steps may bring a mask, and the sizes K an Adjust may have; none where the graphs have no such input.
    takes_mask: bool = False
    adjust_tokens: tuple[int, ...] = ()


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
