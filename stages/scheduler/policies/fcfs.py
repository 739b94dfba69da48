"""First come, first served."""

from collections.abc import Iterable, Mapping

from attrs import frozen

from stages.messages import ChoiceKey, Submit


@frozen
class Fcfs:
    """Order of arrival."""

    can_starve: bool = False

    def order(self, waiting: Mapping[ChoiceKey, Submit]) -> Iterable[Submit]:
        """Return `waiting` as it stands."""
        return waiting.values()


POLICY = Fcfs()
