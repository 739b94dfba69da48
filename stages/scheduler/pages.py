"""Hands out numbered things, pages or slots, each to one owner at a time; number 0 belongs to nobody. Core."""

from attrs import define, field


@define(eq=False)
class Pool:
    """The numbers 1 .. size - 1; size counts the null number as graphs.step.Capacity does.

    # Invariant: a number is either free or with the one owner it was given to.
    """

    size: int
    _free: list[int] = field(init=False)
    _is_taken: bytearray = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.size - 1, 0, -1))
        self._is_taken = bytearray(self.size)

    @property
    def num_free(self) -> int:
        """Return how many numbers can be taken now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Return how many numbers have an owner."""
        return self.size - 1 - len(self._free)

    def take(self, count: int) -> list[int]:
        """Return `count` free numbers, now the caller's; raises IndexError, taking none, when there are fewer."""
        if count > len(self._free):
            raise IndexError(f"{count} wanted, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(count)]
        for number in taken:
            self._is_taken[number] = 1
        return taken

    def give_back(self, numbers: list[int]) -> None:
        """Free `numbers`; raises ValueError for one that has no owner."""
        for number in numbers:
            if not self._is_taken[number]:
                raise ValueError(f"{number} is given back but has no owner")
            self._is_taken[number] = 0
            self._free.append(number)
