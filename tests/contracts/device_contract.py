"""What every device keeps, whatever computes its tokens. A subclass gives `device` a fixture."""

import numpy as np
import pytest

from graphs.step import Device
from tests.graphs.steps import ask, decode, generate, prefill, rows_of

PROMPT = [5, 9, 2, 77, 31, 8, 64, 3, 12, 100]


class DeviceContract:
    """Tests over a fresh device with `tests.graphs.steps.SETTINGS`."""

    @pytest.mark.parametrize("variant", ["greedy", "sample", "greedy_logprobs", "sample_logprobs"])
    @pytest.mark.parametrize("batch", [1, 2, 8])
    def test_outputs_have_the_shapes_and_types_of_the_key(self, device: Device, variant: str, batch: int) -> None:
        capacity = device.capacity
        device.run(prefill(capacity, [(ask(1), PROMPT, 0)]))
        output = device.run(decode(capacity, [(ask(1), len(PROMPT))], variant, batch))
        assert output.token_ids.shape == output.logprobs.shape == (batch,)
        assert output.token_ids.dtype == np.int64
        assert output.logprobs.dtype == np.float32
        assert (output.token_ids >= 0).all()
        assert (output.token_ids < capacity.vocab_size).all()
        assert (output.logprobs <= 0).all()
        assert output.device_s >= 0
        if variant.endswith("_logprobs"):
            assert output.top_ids is not None
            assert output.top_logprobs is not None
            assert output.top_ids.shape == output.top_logprobs.shape == (batch, capacity.max_top_logprobs)
            assert (np.diff(output.top_logprobs) <= 0).all()
        else:
            assert output.top_ids is None
            assert output.top_logprobs is None

    def test_a_step_of_padding_alone_runs(self, device: Device) -> None:
        assert device.run(decode(device.capacity, [], batch=4, pages=2)).token_ids.shape == (4,)

    def test_padding_rows_change_no_real_row(self, device: Device) -> None:
        alone = generate(device, ask(1), PROMPT, 4)
        assert generate(device, ask(2), PROMPT, 4, prefill_batch=4, batch=8) == alone

    def test_a_slot_is_reused_without_clearing(self, device: Device) -> None:
        first = generate(device, ask(1), PROMPT, 5)
        generate(device, ask(1), PROMPT[::-1] * 4, 5)
        assert generate(device, ask(1), PROMPT, 5) == first

    def test_decode_reads_the_newest_token_of_its_slot(self, device: Device) -> None:
        capacity = device.capacity
        expected = [generate(device, ask(3), PROMPT, 3), generate(device, ask(3), PROMPT[1:], 3)]
        device.run(prefill(capacity, [(ask(1), PROMPT, 0), (ask(2), PROMPT[1:], 0)]))
        # The rows change places between steps: only slots say whose newest token is whose.
        second = device.run(decode(capacity, [(ask(2), len(PROMPT) - 1), (ask(1), len(PROMPT))]))
        third = device.run(decode(capacity, [(ask(1), len(PROMPT) + 1), (ask(2), len(PROMPT))]))
        assert rows_of(second, 2) == [expected[1][1], expected[0][1]]
        assert rows_of(third, 2) == [expected[0][2], expected[1][2]]

    def test_rows_of_unequal_length_share_a_prefill(self, device: Device) -> None:
        capacity = device.capacity
        long = [(7 * index) % 200 for index in range(100)]
        expected = [generate(device, ask(3), PROMPT, 2), generate(device, ask(3), long, 2)]
        device.run(prefill(capacity, [(ask(1), PROMPT, 0), (ask(2), long, 0)]))
        output = device.run(decode(capacity, [(ask(1), len(PROMPT)), (ask(2), len(long))]))
        assert rows_of(output, 2) == [expected[0][1], expected[1][1]]

    def test_a_prompt_in_chunks_says_what_the_whole_prompt_says(self, device: Device) -> None:
        capacity = device.capacity
        long = [(7 * index) % 200 for index in range(100)]
        expected = generate(device, ask(1), long, 3)
        device.run(prefill(capacity, [(ask(2), long[:36], 0)]))
        output = device.run(prefill(capacity, [(ask(2), long[36:], 36)]))
        ids = rows_of(output, 1)
        ids += [int(device.run(decode(capacity, [(ask(2), len(long) + step)])).token_ids[0]) for step in range(2)]
        assert ids == expected

    def test_close_may_be_called_twice(self, device: Device) -> None:
        device.close()
        device.close()

    def test_describe_names_the_device_and_its_graphs(self, device: Device) -> None:
        assert {"device", "graphs_ready", "graphs_total"} <= device.describe().keys()
