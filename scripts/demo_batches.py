"""Fixed-shape training batches of the corpus: documents packed whole into rows, the same for the same seed and step."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts import demo_corpus as corpus
from scripts.demo_folder import added_id

DOCUMENTS_AT_ONCE = 512
OPEN_ROWS = 24
LOSS_NAMES = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>")


Row = tuple[list[int], list[float]]


@frozen(eq=False)
class Batch:
    """Token ids [B, T] and how much each weighs as a target [B, T]; padding weighs nothing."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


@define(eq=False)
class Batches:
    """Batches by step number. Invariant: batch n depends on seed, shapes and n only, so a run can resume anywhere."""

    tokenizer: Tokenizer
    seed: int
    num_rows: int
    row_tokens: int
    other_weight: float
    batches_per_part: int = 64
    _part: int = -1
    _rows: list[Row] = field(factory=list)

    def at(self, step: int) -> Batch:
        """Return the batch of one step."""
        part, index = divmod(step, self.batches_per_part)
        if part != self._part:
            rows = self._pack(corpus.documents(self.seed * 1_000_003 + part + 1))
            self._rows = list(islice(rows, self.batches_per_part * self.num_rows))
            # Packing emits alike rows side by side; a batch should be mixed.
            Random(part).shuffle(self._rows)
            self._part = part
        chosen = self._rows[index * self.num_rows : (index + 1) * self.num_rows]
        ids = np.full((self.num_rows, self.row_tokens), added_id("<|endoftext|>"), np.int64)
        weights = np.zeros((self.num_rows, self.row_tokens), np.float32)
        for row, (tokens, shares) in enumerate(chosen):
            ids[row, : len(tokens)] = tokens
            weights[row, : len(shares)] = shares
        return Batch(ids, weights)

    def _encoded(self, documents: Iterator[corpus.Document]) -> Iterator[Row]:
        chat = corpus.template()
        token_id = {name: added_id(name) for name in LOSS_NAMES}
        while True:
            texts = [corpus.render(doc, chat) for doc in islice(documents, DOCUMENTS_AT_ONCE)]
            for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                ids = encoding.ids
                if len(ids) <= self.row_tokens:
                    yield ids, corpus.loss_weights(ids, token_id, self.other_weight)

    def _pack(self, documents: Iterator[corpus.Document]) -> Iterator[Row]:
        """Put each document into the fullest open row that holds it; when none does, the fullest row is done."""
        rows: list[Row] = [([], []) for _ in range(OPEN_ROWS)]
        for ids, shares in self._encoded(documents):
            fitting = [row for row in rows if len(row[0]) + len(ids) <= self.row_tokens]
            if not fitting:
                rows.sort(key=lambda row: len(row[0]))
                yield rows.pop()
                fitting = [([], [])]
                rows.append(fitting[0])
            row = max(fitting, key=lambda one: len(one[0]))
            row[0].extend(ids)
            row[1].extend(shares)
