"""What is on its way at an instant: steps and transfers as a scheduler sees them, from begun to done."""

from itertools import chain

from attrs import define, field, frozen

from graphs.step import StepInput, Transfer

Places = frozenset[tuple[str, int]]


@frozen
class Flight:
    """What a step or a transfer reads and writes of the device's pages and slots until done_s."""

    reads: Places
    writes: Places
    done_s: float

    def clashes(self, other: "Flight") -> Places:
        """Return what one of the two writes and the other reads or writes."""
        return (self.writes & (other.reads | other.writes)) | (self.reads & other.writes)


@define
class Traffic:
    """Asserts that no step in flight writes what a transfer reads or touches what it writes."""

    _steps: list[Flight] = field(factory=list)
    _transfers: list[Flight] = field(factory=list)

    def begin_step(self, step: StepInput, page_size_tokens: int, now_s: float, seconds: float) -> None:
        """Note a step begun now behind those before it."""
        done_s = max([now_s, *(flight.done_s for flight in self._steps)]) + seconds
        flight = Flight(*_places_of(step, page_size_tokens), done_s)
        self._steps = [*_on_the_way(self._steps, now_s), flight]
        self._transfers = _on_the_way(self._transfers, now_s)
        for other in self._transfers:
            assert not flight.clashes(other), f"a step beside a transfer: {sorted(flight.clashes(other))}"

    def begin_transfer(self, transfer: Transfer, now_s: float, seconds: float) -> None:
        """Note a transfer begun now behind those before it."""
        places = _named("page", transfer.pages[:, 0].tolist()) | _named("slot", transfer.slots[:, 0].tolist())
        done_s = max([now_s, *(flight.done_s for flight in self._transfers)]) + seconds
        nothing: Places = frozenset()
        flight = Flight(places, nothing, done_s) if transfer.to_host else Flight(nothing, places, done_s)
        self._transfers = [*_on_the_way(self._transfers, now_s), flight]
        self._steps = _on_the_way(self._steps, now_s)
        for other in self._steps:
            assert not flight.clashes(other), f"a transfer beside a step: {sorted(flight.clashes(other))}"


def written_pages(step: StepInput, page_size_tokens: int) -> set[int]:
    """Return the pages that the rows of a step write."""
    return set(chain(*(pages[start // page_size_tokens :] for pages, start in _used(step, page_size_tokens))))


def _used(step: StepInput, page_size_tokens: int) -> list[tuple[list[int], int]]:
    """Return each real row's pages up to its last token, and its start."""
    rows = zip(step.page_table.tolist(), step.start.tolist(), step.num_valid.tolist(), strict=True)
    return [(pages[: -(-(start + count) // page_size_tokens)], start) for pages, start, count in rows if count]


def _places_of(step: StepInput, page_size_tokens: int) -> tuple[Places, Places]:
    copies = step.copies
    page_pairs = [*copies.pages.tolist(), *copies.saves.tolist()]
    slots = step.slots[step.num_valid > 0].tolist()
    read_pages = [*chain(*(pages for pages, _ in _used(step, page_size_tokens))), *(source for source, _ in page_pairs)]
    read_slots = [*slots, *copies.slots[:, 0].tolist()]
    wrote_pages = [*written_pages(step, page_size_tokens), *(target for _, target in page_pairs)]
    wrote_slots = [*slots, *copies.slots[:, 1].tolist(), *copies.captures[:, 2].tolist()]
    return (
        _named("page", read_pages) | _named("slot", read_slots),
        _named("page", wrote_pages) | _named("slot", wrote_slots),
    )


def _named(kind: str, numbers: list[int]) -> Places:
    return frozenset((kind, number) for number in numbers)


def _on_the_way(flights: list[Flight], now_s: float) -> list[Flight]:
    return [flight for flight in flights if flight.done_s > now_s]
