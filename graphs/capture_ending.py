"""Captures the parts of a step's ending that only some requests need: edits of logits, and a prompt's scores.

A file of its own, so that layers compiled before these existed keep their names on disk.
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, export

from graphs.capture import _Function, _open
from graphs.catalog import Body
from graphs.config import Config
from graphs.layers.edits import WORD_BITS, adjusted, masked
from graphs.layers.scores import total
from graphs.settings import GraphSettings


def capture_ending(body: Body, config: Config, settings: GraphSettings) -> ExportedProgram:
    """Return the captured program of a `mask`, `adjust` or `score` body; its inputs are its function's, in order."""
    with FakeTensorMode(), torch.no_grad():
        rows, by_row = _open("rows", body.rows)
        logits = torch.zeros(rows, config.vocab_size)
        if body.part == "score":
            return export(_Function(total), (logits,), dynamic_shapes=((by_row,),), strict=False)
        if body.part == "mask":
            allowed = torch.zeros(rows, -(-config.vocab_size // WORD_BITS), dtype=torch.int32)
            inputs: tuple[Tensor, ...] = (logits, allowed, torch.zeros(WORD_BITS, dtype=torch.int32))
            return export(_Function(masked), inputs, dynamic_shapes=((by_row, by_row, None),), strict=False)
        sizes = settings.adjust_tokens
        tokens, by_token = _open("tokens", (sizes[0], sizes[-1]))
        changed = torch.zeros(rows, tokens)
        row = torch.zeros(rows)
        inputs = (logits, changed.long(), changed, changed.clone(), changed.clone(), row, row.clone(), row.clone())
        wide = {**(by_row or {}), **({1: by_token[0]} if by_token else {})} or None
        dims = (by_row, wide, wide, wide, wide, by_row, by_row, by_row)
        return export(_Function(adjusted), inputs, dynamic_shapes=(dims,), strict=False)
