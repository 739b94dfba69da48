"""The choices that decode, in order, with their slots as an array. Core."""

from collections.abc import Iterable, Iterator
from operator import attrgetter

import numpy as np
from attrs import define, field

from stages.scheduler.choice import Choice
from stages.scheduler.compose import DecodeRows

_slot_of = attrgetter("slot")


@define(eq=False)
class Decoding:
    """An ordered set of choices that own a slot; `rows` is kept until the set changes."""

    _choices: dict[Choice, None] = field(factory=dict)
    _rows: DecodeRows | None = None

    def __len__(self) -> int:
        return len(self._choices)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self._choices)

    def __contains__(self, choice: Choice) -> bool:
        return choice in self._choices

    def add(self, choice: Choice) -> None:
        """Append a choice."""
        self._choices[choice] = None
        self._rows = None

    def discard(self, choice: Choice) -> None:
        """Remove a choice, if it is here."""
        if choice in self._choices:
            del self._choices[choice]
            self._rows = None

    def to_back(self, choices: Iterable[Choice]) -> None:
        """Let all others go before `choices`."""
        for choice in choices:
            del self._choices[choice]
        self._choices.update(dict.fromkeys(choices))
        self._rows = None

    def rows(self) -> DecodeRows:
        """Return a row of each choice, in order."""
        if self._rows is None:
            slots = np.fromiter(map(_slot_of, self._choices), np.int64, len(self._choices))
            self._rows = DecodeRows(tuple(self._choices), slots)
        return self._rows
