"""A timed device without arithmetic: it says how long a step would take and answers from a script."""

from collections.abc import Callable

import numpy as np
from attrs import define, field

from graphs.keys import GraphKey
from graphs.step import Capacity, Edits, Floats, Scores, Scoring, StepInput, StepOutput, Transfer

StepSeconds = Callable[[GraphKey], float]
TransferSeconds = Callable[[int, int], float]
Script = Callable[[int, int], int]

SURE = 100.0


@define(eq=False)
class SimDevice:
    """Answers `script(slot, position)` for each real row and reports `seconds(key)` as the step's time.

    A transfer takes `transfer_seconds(num_pages, num_slots)`; the copies of a step take no time of their own. Nothing
    here sleeps: whoever awaits the step does, on its own clock. logprobs are 0; the best ids are the token's own and
    the ones after it. Where logits are edited the script's token stands SURE above all others: it is said unless a mask
    forbids it or penalties and biases move another above it.
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
        for row in np.flatnonzero(step.num_valid).tolist():
            ids[row] = self.script(int(step.slots[row]), int(position[row]))
            if step.edits is not None:
                ids[row] = edited_row(sure(int(ids[row]), self.capacity.vocab_size), step.edits, row).argmax()
        num_best = self.capacity.max_top_logprobs if step.key.variant.endswith("_logprobs") else 0
        best = (ids[:, None] + np.arange(num_best)) % self.capacity.vocab_size
        return StepOutput(
            token_ids=ids,
            logprobs=np.zeros(step.key.batch, np.float32),
            top_ids=best if num_best else None,
            top_logprobs=np.zeros(best.shape, np.float32) if num_best else None,
            device_s=device_s,
            wanted=None if step.wanted_ids is None else np.zeros(step.wanted_ids.shape, np.float32),
            scores=None if step.scoring is None else self._scores(step, step.scoring),
        )

    def _scores(self, step: StepInput, scoring: Scoring) -> Scores:
        shape = scoring.targets.shape
        best = np.maximum(scoring.targets, 0)[..., None] + np.arange(self.capacity.max_top_logprobs)
        wanted = None if step.wanted_ids is None else np.zeros((*shape, step.wanted_ids.shape[1]), np.float32)
        return Scores(
            logprobs=np.zeros(shape, np.float32),
            top_ids=best % self.capacity.vocab_size,
            top_logprobs=np.zeros(best.shape, np.float32),
            wanted=wanted,
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


def sure(token_id: int, vocab_size: int) -> Floats:
    """Return logits [V] of which token_id's is SURE, the others falling from 0 behind it, round and round."""
    behind = (np.arange(vocab_size) - token_id) % vocab_size
    logits = (-behind / vocab_size).astype(np.float32)
    logits[token_id] = SURE
    return logits


def edited_row(logits: Floats, edits: Edits, row: int) -> Floats:
    """Return logits [V] as `edits` would have them in `row`, by numpy."""
    logits = logits.astype(np.float32)
    if (adjust := edits.adjust) is not None:
        names = adjust.token_ids[row] < len(logits)
        ids, counts, seen = (column[row][names] for column in (adjust.token_ids, adjust.counts, adjust.seen))
        x = logits[ids] - adjust.frequency[row] * counts - adjust.presence[row] * (counts > 0)
        factor = adjust.repetition[row]
        x = np.where(seen > 0, np.where(x > 0, x / factor, x * factor), x)
        logits[ids] = x + adjust.bias[row][names]
    if edits.allowed is not None:
        bits = np.unpackbits(edits.allowed[row].view(np.uint8), bitorder="little")[: len(logits)]
        logits[bits == 0] = -np.inf
    return logits


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
