"""The device that remembers keeps the contract and refuses what no device may be asked."""

from collections.abc import Callable

import pytest
from attrs import evolve

from graphs.step import Copies, StepInput, Transfer, pairs
from tests.contracts.device_contract import (
    LONG,
    NUM_HOST_PAGES,
    NUM_HOST_SLOTS,
    PROMPT,
    DeviceContract,
    Pairs,
    with_copies,
)
from tests.graphs.steps import BUCKETS, EDITING, Ask, ask, decode, prefill
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import capacity

CAPACITY = evolve(
    capacity(
        num_pages=33,
        page_size_tokens=32,
        vocab_size=256,
        max_row_pages=4,
        num_host_pages=NUM_HOST_PAGES,
        num_host_slots=NUM_HOST_SLOTS,
    ),
    buckets=BUCKETS,
    takes_mask=True,
    adjust_tokens=EDITING.adjust_tokens,
)
PAGE, OTHER = ask(1).pages[0], ask(2).pages[0]


@pytest.fixture
def device() -> HistoryDevice:
    return HistoryDevice(CAPACITY)


class TestHistoryDevice(DeviceContract):
    pass


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ({"pages": [(7, 9)]}, "holds nothing"),
        ({"pages": [(PAGE, OTHER)]}, "a row of the step writes"),
        ({"pages": [(OTHER, 0)]}, "numbers are from 1 to 32"),
        ({"pages": [(OTHER, 33)]}, "numbers are from 1 to 32"),
        ({"slots": [(3, 4)]}, "slot 3 holds nothing"),
        ({"slots": [(2, 0)]}, "numbers are from 1 to 8"),
        ({"slots": [(2, 9)]}, "numbers are from 1 to 8"),
        ({"captures": [(0, 4, 1)]}, "to the slot of a row"),
        ({"captures": [(0, 4, 3), (0, 8, 3)]}, "two captures"),
        ({"captures": [(0, 12, 3)]}, "after 12 of 10"),
        ({"captures": [(0, 0, 3)]}, "after 0 of 10"),
        ({"captures": [(0, 6, 3)]}, "inside a pooling group"),
        ({"captures": [(0, 4, 0)]}, "numbers are from 1 to 8"),
        ({"saves": [(OTHER, 9)]}, "of no row"),
        ({"saves": [(PAGE, PAGE)]}, "a save to a page of a row"),
        ({"saves": [(PAGE, 0)]}, "numbers are from 1 to 32"),
    ],
)
def test_a_copy_that_no_device_may_be_asked_for_is_refused(
    device: HistoryDevice, copies: dict[str, Pairs], message: str
) -> None:
    device.run(prefill(CAPACITY, [(ask(2), PROMPT, 0)]))
    step = with_copies(prefill(CAPACITY, [(ask(1), PROMPT, 0)]), **copies)
    with pytest.raises(AssertionError, match=message):
        device.run(step)


def test_a_decoding_row_is_not_captured(device: HistoryDevice) -> None:
    device.run(prefill(CAPACITY, [(ask(1), LONG[:3], 0)]))
    with pytest.raises(AssertionError, match="while decoding"):
        device.run(with_copies(decode(CAPACITY, [(ask(1), 3)]), captures=[(0, 4, 2)]))


def test_a_captured_slot_has_no_newest_token_to_decode_from(device: HistoryDevice) -> None:
    device.run(with_copies(prefill(CAPACITY, [(ask(1), LONG[:8], 0)]), captures=[(0, 8, 2)]))
    with pytest.raises(KeyError):
        device.run(decode(CAPACITY, [(Ask(2, ask(1).pages), 8)]))


@pytest.mark.parametrize("start", [32, 36, 60])
def test_a_page_of_two_rows_lies_whole_below_both_starts(device: HistoryDevice, start: int) -> None:
    device.run(prefill(CAPACITY, [(ask(1), LONG[:start], 0)]))
    rows = [Ask(slot, (*ask(1).pages[:2], *ask(slot).pages[2:])) for slot in (2, 3)]
    step = with_copies(prefill(CAPACITY, [(row, PROMPT, start) for row in rows]), slots=[(1, 2), (1, 3)])
    with pytest.raises(AssertionError, match="with two rows"):
        device.run(step)


def test_a_resumed_row_whose_pages_hold_something_else_is_found(device: HistoryDevice) -> None:
    device.run(prefill(CAPACITY, [(ask(1), LONG[:32], 0)]))
    device.run(prefill(CAPACITY, [(ask(2), LONG[32:64], 0)]))
    mixed = Ask(3, (*ask(2).pages[:1], *ask(3).pages[1:]))
    with pytest.raises(AssertionError, match="what the pages hold"):
        device.run(with_copies(prefill(CAPACITY, [(mixed, PROMPT, 32)]), slots=[(1, 3)]))


@pytest.mark.parametrize(
    ("pages", "slots", "message"),
    [
        ([(9, 1)], [], "page 9 holds nothing"),
        ([], [(3, 1)], "slot 3 holds nothing"),
        ([(1, 6)], [], "numbers are from 1 to 5"),
        ([], [(1, 4)], "numbers are from 1 to 3"),
        ([(0, 1)], [], "numbers are from 1 to 32"),
        ([(1, 1), (2, 1)], [], "a target of two"),
    ],
)
def test_a_transfer_of_nothing_or_nowhere_is_refused(
    device: HistoryDevice, pages: Pairs, slots: Pairs, message: str
) -> None:
    device.run(prefill(CAPACITY, [(ask(1), LONG, 0)]))
    with pytest.raises(AssertionError, match=message):
        device.transfer(Transfer(True, pairs(pages), pairs(slots)))


def test_host_memory_gives_back_only_what_it_was_given(device: HistoryDevice) -> None:
    with pytest.raises(AssertionError, match="page 2 holds nothing"):
        device.transfer(Transfer(False, pairs([(1, 2)]), pairs()))


# ---------------------------------------------------------------------------------------------------------------------
# Beside each other, on a clock
# ---------------------------------------------------------------------------------------------------------------------


def step_of(slot: int, copies: Copies | None = None) -> StepInput:
    step = prefill(CAPACITY, [(ask(slot), PROMPT, 0)])
    return step if copies is None else evolve(step, copies=copies)


def outward(slot: int) -> Transfer:
    return Transfer(True, pairs([(ask(slot).pages[0], 1)]), pairs([(slot, 1)]))


def inward(slot: int) -> Transfer:
    return Transfer(False, pairs([(ask(slot).pages[0], 1)]), pairs([(slot, 1)]))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda device: device.run(step_of(1)), lambda device: device.transfer(outward(1))),
        (lambda device: device.transfer(outward(1)), lambda device: device.run(step_of(1))),
        (lambda device: device.run(step_of(2)), lambda device: device.transfer(inward(2))),
        (lambda device: device.transfer(inward(2)), lambda device: device.run(step_of(2))),
        (
            lambda device: device.transfer(inward(2)),
            lambda device: device.run(step_of(3, Copies(slots=pairs([(2, 4)])))),
        ),
        (
            lambda device: device.transfer(outward(1)),
            lambda device: device.run(step_of(3, Copies(captures=pairs([(0, 4, 1)], 3)))),
        ),
    ],
)
@pytest.mark.parametrize("later_s", [0.0, 1.5, 2.0])
def test_a_step_and_a_transfer_in_each_others_way_are_found_while_both_are_on_their_way(
    first: Callable[[HistoryDevice], object], second: Callable[[HistoryDevice], object], later_s: float
) -> None:
    now_s = [0.0]
    device = HistoryDevice(CAPACITY, lambda _: 2.0, transfer_s=lambda _: 2.0, clock=lambda: now_s[0])
    device.run(step_of(1))
    now_s[0] = 100.0
    device.transfer(outward(1))
    now_s[0] = 200.0
    first(device)
    now_s[0] += later_s
    if later_s == 2.0:
        second(device)
    else:
        with pytest.raises(AssertionError, match="beside"):
            second(device)


def test_a_page_and_a_slot_are_read_by_a_step_and_a_transfer_at_once() -> None:
    device = HistoryDevice(CAPACITY, transfer_s=lambda _: 9.0, clock=lambda: 0.0)
    device.run(prefill(CAPACITY, [(ask(1), LONG[:64], 0)]))
    device.clock = lambda: 10.0
    device.transfer(outward(1))
    mixed = Ask(2, (*ask(1).pages[:2], *ask(2).pages[2:]))
    device.run(with_copies(prefill(CAPACITY, [(mixed, PROMPT, 64)]), slots=[(1, 2)]))
