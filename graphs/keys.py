"""Names of graphs: a key is the whole shape of one step, buckets are the shapes a device is willing to run.

Core: values in, values out.
"""

from typing import Literal

from attrs import frozen

Family = Literal["prefill", "decode"]
# What is done to logits first: tokens ruled out, some tokens' logits changed, or both.
EditKind = Literal["", "masked", "adjusted", "masked_adjusted"]


@frozen
class GraphKey:
    """One fixed shape: family, rows [B], tokens a row [T], pages a row [P] and the variant of the last part.

    `edits` names what is done to logits, adjust_tokens is the K of an Adjust; a scored prefill gives logprobs of its
    own tokens.
    """

    family: Family
    batch: int
    tokens: int
    pages: int
    variant: str
    edits: EditKind = ""
    adjust_tokens: int = 0
    is_scored: bool = False

    def __str__(self) -> str:
        """Return the key as it stands in logs and file names."""
        edits = f"-{self.edits}{self.adjust_tokens or ''}" if self.edits else ""
        scored = "-scored" if self.is_scored else ""
        return f"{self.family}-b{self.batch}-t{self.tokens}-p{self.pages}-{self.variant}{edits}{scored}"


@frozen
class Buckets:
    """The shapes a device runs, each tuple rising; `pick` chooses the smallest that holds a step."""

    batch: tuple[int, ...]
    prefill_batch: tuple[int, ...]
    tokens: tuple[int, ...]
    pages: tuple[int, ...]

    def pick(self, family: Family, rows: int, tokens: int, pages: int, variant: str) -> GraphKey:
        """Return the smallest key that holds rows x tokens over pages; raises ValueError when none does."""
        if family == "decode":
            return GraphKey(
                "decode", _at_least(self.batch, rows, "rows"), 1, _at_least(self.pages, pages, "pages"), variant
            )
        return GraphKey(
            "prefill",
            _at_least(self.prefill_batch, rows, "rows"),
            _at_least(self.tokens, tokens, "tokens"),
            _at_least(self.pages, pages, "pages"),
            variant,
        )


def _at_least(sizes: tuple[int, ...], wanted: int, what: str) -> int:
    for size in sizes:
        if size >= wanted:
            return size
    raise ValueError(f"no bucket holds {wanted} {what}: the largest is {sizes[-1]}")


def doubling(smallest: int, largest: int) -> tuple[int, ...]:
    """Return smallest, 2 x smallest, ... and largest itself as the last."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)
