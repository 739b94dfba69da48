"""A timed device without arithmetic: it says how long a step would take and answers from a script."""

from collections.abc import Callable

import numpy as np
from attrs import define, field

from graphs.keys import GraphKey
from graphs.step import Capacity, StepInput, StepOutput, Transfer

StepSeconds = Callable[[GraphKey], float]
TransferSeconds = Callable[[int, int], float]
Script = Callable[[int, int], int]


@define(eq=False)
class SimDevice:
    """Answers `script(slot, position)` for each real row and reports `seconds(key)` as the step's time.

    A transfer takes `transfer_seconds(num_pages, num_slots)`; the copies of a step take no time of their own. Nothing
    here sleeps: whoever awaits the step does, on its own clock. logprobs are 0; the best ids are the token's own and
    the ones after it.
    """

    capacity: Capacity
    seconds: StepSeconds
    script: Script
    transfer_seconds: TransferSeconds = lambda num_pages, num_slots: 0.0
    busy_s: float = field(default=0.0, init=False)
    num_steps: int = field(default=0, init=False)
    num_transfers: int = field(default=0, init=False)

    def run(self, step: StepInput) -> StepOutput:
        """Return scripted ids and the step's time."""
        device_s = self.seconds(step.key)
        self.busy_s += device_s
        self.num_steps += 1
        ids = np.zeros(step.key.batch, np.int64)
        position = step.start + step.num_valid
        for row in np.flatnonzero(step.num_valid):
            ids[row] = self.script(int(step.slots[row]), int(position[row]))
        num_best = self.capacity.max_top_logprobs if step.key.variant.endswith("_logprobs") else 0
        best = (ids[:, None] + np.arange(num_best)) % self.capacity.vocab_size
        return StepOutput(
            token_ids=ids,
            logprobs=np.zeros(step.key.batch, np.float32),
            top_ids=best if num_best else None,
            top_logprobs=np.zeros(best.shape, np.float32) if num_best else None,
            device_s=device_s,
        )

    def transfer(self, transfer: Transfer) -> float:
        """Return the transfer's time."""
        self.num_transfers += 1
        return self.transfer_seconds(len(transfer.pages), len(transfer.slots))

    def describe(self) -> dict[str, object]:
        """Return facts for logs."""
        return {
            "device": "sim",
            "steps": self.num_steps,
            "busy_s": self.busy_s,
            "transfers": self.num_transfers,
            "graphs_ready": 0,
            "graphs_total": 0,
        }

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def linear_seconds(
    per_step_s: float = 0.001, per_row_s: float = 0.0001, per_prefill_token_s: float = 0.00002
) -> StepSeconds:
    """Return a model of step time: a fixed part, one for each decode row, one for each prefill token."""

    def seconds(key: GraphKey) -> float:
        if key.family == "decode":
            return per_step_s + key.batch * per_row_s
        return per_step_s + key.batch * key.tokens * per_prefill_token_s

    return seconds


def bandwidth_seconds(page_bytes: int, slot_bytes: int, bytes_per_s: float) -> TransferSeconds:
    """Return a model of transfer time: the bytes of its pages and slots at one speed."""
    return lambda num_pages, num_slots: (num_pages * page_bytes + num_slots * slot_bytes) / bytes_per_s
