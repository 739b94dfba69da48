"""Where a prompt's prefill takes snapshots. Core, pure.

A snapshot weighs as much as thousands of tokens of latents, so it is taken only where another request is likely to
resume:

- the last grid point of the prompt: the same prompt again, another choice of it, or a next turn whose history was sent
  back without this turn's reasoning;
- the last grid point of what the prefix tree has seen before but has no snapshot for: a second prompt diverges there,
  so a third may;
- the last grid point before the first turn begins: system text and tools, which every conversation shares;
- every stride under a long prompt: what diverges inside a document, or is retracted, loses a stride at most.

The end of a turn, output included, needs none of these: it is the state the choice leaves behind (memory.py).

Grid points count from where the prefill begins, so that a capture falls between two blocks of the chunk form and costs
a copy and no arithmetic. The last token of a prompt is always computed, so no point lies behind it.

The placement "grid" is what peers do, to compare with in simulation: one snapshot for each chunk, at its last grid
point, or at the point of divergence instead when that lies in the chunk.
"""

from collections.abc import Container, Sequence

from attrs import frozen


@frozen
class Placement:
    """The spacing of snapshots, and which tokens begin a turn."""

    grid_tokens: int
    stride_tokens: int
    chunk_tokens: int
    boundary_token_ids: Container[int]
    is_fixed_grid: bool = False

    def captures(self, prompt_ids: Sequence[int], start: int, num_matched: int) -> list[int]:
        """Return the positions, rising, at which the prefill of prompt_ids from `start` is worth a snapshot.

        num_matched is how much of the prompt the prefix tree knows, with snapshots or without.
        """
        last = self._floor(len(prompt_ids) - 1, start)
        seen = self._floor(min(num_matched, last), start)
        if self.is_fixed_grid:
            points = self._chunk_ends(start, last, seen)
        else:
            boundary = self._boundary(prompt_ids, start)
            points = {last, seen, self._floor(min(boundary, last), start), *self._strides(start, last)}
        return sorted(point for point in points if point > start)

    def _floor(self, position: int, start: int) -> int:
        return start + max(0, position - start) // self.grid_tokens * self.grid_tokens

    def _strides(self, start: int, last: int) -> range:
        stride = max(self.grid_tokens, self.stride_tokens - self.stride_tokens % self.grid_tokens)
        return range(start + stride, last, stride)

    def _chunk_ends(self, start: int, last: int, seen: int) -> set[int]:
        points = set()
        for chunk_start in range(start, last + 1, self.chunk_tokens):
            chunk_end = min(chunk_start + self.chunk_tokens, last)
            points.add(seen if chunk_start < seen < chunk_end else chunk_end)
        return points

    def _boundary(self, prompt_ids: Sequence[int], start: int) -> int:
        """Return where the first turn begins, or `start` when that is behind it or there is none."""
        firsts = (position for position, token_id in enumerate(prompt_ids) if token_id in self.boundary_token_ids)
        return max(start, next(firsts, start)) if self.boundary_token_ids else start
