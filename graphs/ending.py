"""The last part of a CPU step: logits, edited, to token ids; and what a prompt's own tokens are worth.

Each costly piece is its compiled body when there is one and the same function run eagerly when there is not.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from graphs.catalog import BLOCK_TOKENS
from graphs.compile import Compiled
from graphs.config import Config
from graphs.layers.edits import adjusted, masked, word_bits
from graphs.layers.sampling import DrawRows, Kernels, draw, greatest_threshold
from graphs.layers.scores import score, total
from graphs.models.glm5_next import hidden, logits
from graphs.parameters import LayerWeights
from graphs.step import Adjust, Edits, Floats, Ints, Scores, StepInput
from graphs.variant import Ending

NO_IDS = torch.zeros(0, dtype=torch.int64)
NOBODY = -1


def edited(wide: Tensor, edits: Edits | None, ready: Mapping[str, Compiled]) -> Tensor:
    """Return logits [B, V] as `edits` would have them: adjusted first, then masked."""
    if edits is None:
        return wide
    if (adjust := edits.adjust) is not None:
        adjusting = ready.get("adjust")
        given = [wide, *_columns(adjust)]
        wide = adjusted(*given) if adjusting is None else adjusting(given)[0]
    if edits.allowed is not None:
        masking = ready.get("mask")
        given = [wide, torch.from_numpy(edits.allowed), word_bits()]
        wide = masked(*given) if masking is None else masking(given)[0]
    return wide


def ending_of(step: StepInput, wide: Tensor, ready: Mapping[str, Compiled], num_best: int) -> Ending:
    """Return what a variant chooses from: edited logits [B, V] and the step's sampling rows."""
    rows = step.sampling
    threshold, drawing = ready.get("threshold"), ready.get("draw")
    kernels = Kernels(
        threshold=greatest_threshold if threshold is None else partial(_first, threshold),
        draw=draw if drawing is None else partial(_both, drawing),
        uses_top_k=bool((rows.top_k > 0).any()),
        uses_top_p=bool((rows.top_p < 1).any()),
    )
    columns = DrawRows(
        *(torch.from_numpy(x) for x in (rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seed))
    )
    position = torch.from_numpy(step.start + step.num_valid)
    return Ending(wide, columns, position, kernels, num_best)


@define(eq=False)
class PromptScoring:
    """The scores of one prefill step, filled a block at a time.

    A row's block is scored at once: 64 x V logits, 40 MB of fp32 at the published vocabulary, however many rows and
    tokens the step has. Every product has that one shape, so a token's neighbours in the step do not change its score.
    """

    step: StepInput
    targets: Ints
    num_best: int
    logprobs: Floats = field(init=False)
    top_ids: Ints = field(init=False)
    top_logprobs: Floats = field(init=False)
    wanted: Floats | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        shape, ids = self.targets.shape, self.step.wanted_ids
        self.logprobs = np.zeros(shape, np.float32)
        self.top_ids = np.zeros((*shape, self.num_best), np.int64)
        self.top_logprobs = np.zeros((*shape, self.num_best), np.float32)
        self.wanted = None if ids is None else np.zeros((*shape, ids.shape[1]), np.float32)

    def take(
        self, config: Config, top: LayerWeights, streams: Tensor, first: int, ready: Mapping[str, Compiled]
    ) -> None:
        """Score the tokens from `first` on, of streams [B, 64, n, D]; rows that ask for none of them cost nothing."""
        totalling = ready.get("score")
        targets = self.targets[:, first : first + BLOCK_TOKENS]
        num_tokens = targets.shape[1]
        for row in np.flatnonzero((targets != NOBODY).any(-1)).tolist():
            wide = logits(top, hidden(config, top, streams[row]))
            totals = total(wide) if totalling is None else totalling([wide])[0]
            ids = self.step.wanted_ids
            wanted_ids = NO_IDS if ids is None else torch.from_numpy(ids[row])
            asked = torch.from_numpy(targets[row])
            found = score(wide[:num_tokens], totals[:num_tokens], asked, wanted_ids, self.num_best)
            here = (row, slice(first, first + num_tokens))
            self.logprobs[here] = found.logprobs.numpy()
            self.top_ids[here] = found.best_ids.numpy()
            self.top_logprobs[here] = found.best_logprobs.numpy()
            if self.wanted is not None:
                self.wanted[here] = found.wanted.numpy()

    def scores(self) -> Scores:
        """Return what was taken."""
        return Scores(self.logprobs, self.top_ids, self.top_logprobs, self.wanted)


def _columns(adjust: Adjust) -> list[Tensor]:
    columns = (
        *(adjust.token_ids, adjust.counts, adjust.seen, adjust.bias),
        *(adjust.repetition, adjust.frequency, adjust.presence),
    )
    return [torch.from_numpy(column) for column in columns]


def _first(compiled: Compiled, *inputs: Tensor) -> Tensor:
    return compiled(list(inputs))[0]


def _both(compiled: Compiled, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    ids, logprobs = compiled(list(inputs))
    return ids, logprobs
