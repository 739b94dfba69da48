"""A toy server over the model's functions: rows with slots and scattered pages, prefilled and decoded in batches."""

from collections.abc import Sequence

import torch
from attrs import define, field
from torch import Tensor

from graphs.config import Config
from graphs.models import glm5_next
from graphs.parameters import Weights
from graphs.state import State, new_state


@define(eq=False)
class Row:
    """One sequence: its slot, its pages in order, and how many tokens it holds."""

    slot: int
    pages: list[int]
    length: int = 0


@define(eq=False)
class Server:
    """State of one model and the pages nobody owns, handed out in a random order."""

    config: Config
    weights: Weights
    num_slots: int = 6
    num_pages: int = 20
    page_size: int = 64
    seed: int = 0
    state: State = field(init=False)
    free_pages: list[int] = field(init=False)
    free_slots: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        dtype = self.weights.top["embed"].dtype
        self.state = new_state(self.config, self.num_slots, self.num_pages, self.page_size, dtype)
        generator = torch.Generator().manual_seed(self.seed)
        self.free_pages = (1 + torch.randperm(self.num_pages - 1, generator=generator)).tolist()
        self.free_slots = list(range(1, self.num_slots))

    def admit(self, num_pages: int = 3) -> Row:
        return Row(self.free_slots.pop(), [self.free_pages.pop() for _ in range(num_pages)])

    def release(self, row: Row) -> None:
        self.free_slots.append(row.slot)
        self.free_pages += row.pages

    def table(self, rows: Sequence[Row], num_padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return start, slots and page_table of rows, then padding rows on the null slot and page."""
        width = max(len(row.pages) for row in rows)
        tables = [row.pages + [0] * (width - len(row.pages)) for row in rows] + [[0] * width] * num_padding
        start = [row.length for row in rows] + [0] * num_padding
        return torch.tensor(start), torch.tensor([row.slot for row in rows] + [0] * num_padding), torch.tensor(tables)

    @torch.no_grad()
    def streams(self, rows: Sequence[Row], chunks: Sequence[Tensor], num_padding: int = 0, width: int = 0) -> Tensor:
        """Prefill one chunk [T_r] of every row in one step of the narrowest (or the given) width; return streams."""
        longest = max(max(len(chunk) for chunk in chunks), width)
        tokens = torch.full((len(rows) + num_padding, -(-longest // 64) * 64), 7)
        for index, chunk in enumerate(chunks):
            tokens[index, : len(chunk)] = chunk
        start, slots, pages = self.table(rows, num_padding)
        num_valid = self.num_valid(chunks, num_padding)
        streams = glm5_next.prefill_streams(
            self.config, self.weights, self.state, tokens, start, num_valid, slots, pages
        )
        for row, chunk in zip(rows, chunks, strict=True):
            row.length += len(chunk)
        return streams

    def num_valid(self, chunks: Sequence[Tensor], num_padding: int) -> Tensor:
        return torch.tensor([len(chunk) for chunk in chunks] + [0] * num_padding)

    @torch.no_grad()
    def prefill(self, rows: Sequence[Row], chunks: Sequence[Tensor], num_padding: int = 0, width: int = 0) -> Tensor:
        """Prefill one chunk of every row and return logits [rows, V] after each."""
        streams = self.streams(rows, chunks, num_padding, width)
        h = glm5_next.last_hidden(self.config, self.weights.top, streams, self.num_valid(chunks, num_padding))
        return glm5_next.logits(self.weights.top, h)[: len(rows)]

    @torch.no_grad()
    def decode(self, rows: Sequence[Row], tokens: Tensor, num_padding: int = 0) -> Tensor:
        """Decode one token [rows] a row and return logits [rows, V]."""
        start, slots, pages = self.table(rows, num_padding)
        tokens = torch.cat([tokens, torch.full((num_padding,), 7)])
        result = glm5_next.decode(self.config, self.weights, self.state, tokens, start, slots, pages)
        for row in rows:
            row.length += 1
        return result[: len(rows)]
