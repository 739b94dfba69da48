import numpy as np
import pytest

from graphs.devices.sim import SimDevice, bandwidth_seconds, linear_seconds
from graphs.keys import GraphKey
from graphs.step import Capacity, Transfer, pairs
from tests.contracts.device_contract import NUM_HOST_PAGES, NUM_HOST_SLOTS, DeviceContract
from tests.graphs.steps import BUCKETS, EDITING, SETTINGS, ask, decode, prefill

CAPACITY = Capacity(
    num_pages=SETTINGS.num_pages,
    page_size_tokens=SETTINGS.page_size_tokens,
    num_slots=SETTINGS.num_slots,
    buckets=BUCKETS,
    vocab_size=256,
    context_length_tokens=128,
    max_top_logprobs=5,
    num_host_pages=NUM_HOST_PAGES,
    num_host_slots=NUM_HOST_SLOTS,
    takes_mask=True,
    adjust_tokens=EDITING.adjust_tokens,
)


def script(slot: int, position: int) -> int:
    return (31 * position) % 256


@pytest.fixture
def device() -> SimDevice:
    return SimDevice(CAPACITY, linear_seconds(), script)


class TestSimDevice(DeviceContract):
    pass


def test_a_step_reports_the_modelled_time_and_the_scripted_ids() -> None:
    device = SimDevice(CAPACITY, lambda key: key.batch * 0.5, lambda slot, position: 10 * slot + position)
    first = device.run(prefill(CAPACITY, [(ask(1), [1, 2, 3], 0), (ask(2), [4], 0)]))
    assert (first.device_s, first.token_ids.tolist()) == (1.0, [13, 21])
    second = device.run(decode(CAPACITY, [(ask(2), 1)], batch=4))
    assert (second.device_s, second.token_ids.tolist()) == (2.0, [22, 0, 0, 0])
    facts = {"device": "sim", "steps": 2, "busy_s": 3.0, "transfers": 0, "graphs_ready": 0, "graphs_total": 0}
    assert device.describe() == facts
    assert np.all(second.logprobs == 0)


def test_linear_time_grows_with_rows_in_decode_and_tokens_in_prefill() -> None:
    seconds = linear_seconds(1.0, 0.25, 0.125)
    assert seconds(GraphKey("decode", 4, 1, 2, "greedy")) == 2.0
    assert seconds(GraphKey("prefill", 2, 64, 2, "greedy")) == 17.0


def test_a_transfer_takes_its_bytes_at_the_given_speed_and_nothing_by_default() -> None:
    transfer = Transfer(to_host=True, pages=pairs([(1, 1), (2, 2), (3, 3)]), slots=pairs([(1, 1)]))
    assert SimDevice(CAPACITY, linear_seconds(), script).transfer(transfer) == 0.0
    seconds = bandwidth_seconds(page_bytes=100, slot_bytes=700, bytes_per_s=2000.0)
    assert SimDevice(CAPACITY, linear_seconds(), script, seconds).transfer(transfer) == 0.5
