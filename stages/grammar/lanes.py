"""Masks by rows in threads: the ready are told in slices, and a row that takes long stands in nobody's way.

Theory of operation. Rows wait in one line. A lane takes rows from it one by one in a thread of its own and comes back
after a slice of time with what it has. A lane that is not back a slice later is inside one slow row: another lane
starts for the others, up to max_lanes. A row that a lane has been in for longer than a mask may take gets an error in
place of its mask, and whatever the lane brings of it later is dropped.

The native calls release the interpreter, so a lane holds up neither the event loop nor another lane. Where lanes are
not threads but tasks on a virtual clock, `run` says so.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

import trio
from attrs import define, field, frozen

from stages.errors import EngineFailure, InvalidRequest, RequestError
from stages.grammar.guide import Guide
from stages.grammar.matchers.port import TooComplex
from stages.messages import FillMasks, Mask, MasksFilled, Submit
from stages.settings import GrammarSettings

log = logging.getLogger(__name__)


@define(eq=False)
class Guided:
    """A choice's guide, made with its first mask, and the asks that wait for the one under way."""

    guide: Guide | None = None
    is_under_way: bool = False
    waiting: "deque[tuple[int, ...]]" = field(factory=deque)


@frozen(eq=False)
class Row:
    """A choice with tokens its guide has not seen, and a mask to be filled."""

    submit: Submit
    guided: Guided
    token_ids: tuple[int, ...]


@define(eq=False)
class Slice:
    """What one lane does before it comes back: the row it is in, and the masks it has."""

    rows: "deque[Row]"
    length_s: float
    current: Row | None = None
    masks: "deque[Mask]" = field(factory=deque)
    given_up: Row | None = None


# What runs a slice: a thread, or a stand-in on a virtual clock.
RunSlice = Callable[[Slice], Awaitable[None]]
OpenGuide = Callable[[Submit], Guide]


def fill(row: Row, open_guide: OpenGuide) -> Mask:
    """Return the mask after a row's tokens, or the error that ends its choice."""
    try:
        if row.guided.guide is None:
            row.guided.guide = open_guide(row.submit)
        row.guided.guide.accept(row.token_ids)
        allowed = row.guided.guide.allowed()
    except TooComplex as error:
        return Mask(row.submit, error=InvalidRequest(f"The answer cannot follow its grammar: {error}."))
    except (EngineFailure, RequestError) as error:
        return Mask(row.submit, error=error)
    except Exception as error:  # a library's own fault must end this choice alone
        trail = row.submit.trail
        request_id = trail.request_id if trail is not None else row.submit.key.request_id
        log.exception("a mask could not be filled", extra={"request_id": request_id})
        return Mask(row.submit, error=EngineFailure(f"a mask could not be filled: {error!r}"))
    return Mask(row.submit, allowed.words, allowed.num_free, allowed.is_complete)


def run_slice(work: Slice, open_guide: OpenGuide, clock: Callable[[], float] = time.perf_counter) -> None:
    """Fill rows until there are none or the slice is over; runs in a thread."""
    ends_s = clock() + work.length_s
    while True:
        try:
            work.current = work.rows.popleft()
        except IndexError:
            break
        work.masks.append(fill(work.current, open_guide))
        work.current = None
        if clock() >= ends_s:
            break


def in_threads(open_guide: OpenGuide, max_lanes: int) -> RunSlice:
    """Return what runs a slice in a thread; a lane that is cancelled leaves its thread behind."""
    limiter = trio.CapacityLimiter(max_lanes)

    async def run(work: Slice) -> None:
        await trio.to_thread.run_sync(run_slice, work, open_guide, limiter=limiter, abandon_on_cancel=True)

    return run


@define(eq=False)
class Lanes:
    """The line of rows and the lanes that serve it; `filled` hears of every ask once, and of one choice in order."""

    settings: GrammarSettings
    nursery: trio.Nursery
    run: RunSlice
    filled: Callable[[MasksFilled], None]
    # As long as their Submits: the scheduler holds those of choices that can still ask. A Guided refers to none.
    _choices: "WeakKeyDictionary[Submit, Guided]" = field(factory=WeakKeyDictionary, init=False)
    _rows: "deque[Row]" = field(factory=deque, init=False)
    _num_lanes: int = field(default=0, init=False)
    _num_stuck: int = field(default=0, init=False)

    @property
    def num_choices(self) -> int:
        """Return how many choices have state here."""
        return len(self._choices)

    def take(self, order: FillMasks) -> None:
        """Queue the rows of an order; a choice whose last ask is under way waits for it."""
        for submit, token_ids in order.rows:
            guided = self._choices.setdefault(submit, Guided())
            if guided.is_under_way:
                guided.waiting.append(token_ids)
            else:
                guided.is_under_way = True
                self._rows.append(Row(submit, guided, token_ids))
        self._staff()

    def _staff(self) -> None:
        # One lane that moves is enough: rows of microseconds gain nothing from a second thread.
        if self._rows and self._num_lanes == self._num_stuck and self._num_lanes < self.settings.max_lanes:
            self._num_lanes += 1
            self.nursery.start_soon(self._lane)

    async def _lane(self) -> None:
        while self._rows:
            work = Slice(self._rows, self.settings.mask_slice_s)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, work)
                await self.run(work)
                nursery.cancel_scope.cancel()
            self._tell(work)
        self._num_lanes -= 1

    async def _watch(self, work: Slice) -> None:
        """Count the lane as stuck while it stays in one row beyond its slice; give the row up at the limit."""
        await trio.sleep(2 * self.settings.mask_slice_s)
        self._num_stuck += 1
        try:
            self._tell(work)
            self._staff()
            await trio.sleep(self.settings.mask_limit_s)
            if work.current is not None:
                self._give_up(work, work.current)
            await trio.sleep_forever()
        finally:
            self._num_stuck -= 1

    def _give_up(self, work: Slice, row: Row) -> None:
        # Its guide stays under way for ever: the thread may still be in it.
        work.given_up = row
        seconds = self.settings.mask_limit_s
        error = InvalidRequest(f"The answer cannot follow its grammar: a mask took more than {seconds:g} s.")
        self.filled(MasksFilled((Mask(row.submit, error=error),)))

    def _tell(self, work: Slice) -> None:
        masks: list[Mask] = []
        while work.masks:
            mask = work.masks.popleft()
            if work.given_up is None or mask.submit is not work.given_up.submit:
                masks.append(mask)
                self._go_on(mask.submit)
        if masks:
            self.filled(MasksFilled(tuple(masks)))

    def _go_on(self, submit: Submit) -> None:
        guided = self._choices[submit]
        guided.is_under_way = bool(guided.waiting)
        if guided.waiting:
            self._rows.append(Row(submit, guided, guided.waiting.popleft()))
            self._staff()
