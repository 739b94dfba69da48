"""What every device keeps, whatever computes its tokens. A subclass gives `device` a fixture with host memory."""

from collections.abc import Sequence

import numpy as np
import pytest
from attrs import evolve

from graphs.step import Copies, Device, StepInput, Transfer, pairs
from tests.contracts.edits_contract import EditsContract
from tests.graphs.steps import Ask, ask, decode, generate, prefill, rows_of

PROMPT = [5, 9, 2, 77, 31, 8, 64, 3, 12, 100]
LONG = [(7 * index) % 200 for index in range(100)]
NUM_HOST_PAGES, NUM_HOST_SLOTS = 6, 4
Pairs = Sequence[tuple[int, ...]]


def with_copies(
    step: StepInput,
    pages: Pairs = (),
    slots: Pairs = (),
    captures: Pairs = (),
    saves: Pairs = (),
) -> StepInput:
    """Return the step with these copies."""
    return evolve(step, copies=Copies(pairs(pages), pairs(slots), pairs(captures, 3), pairs(saves)))


def go_on(device: Device, row: Ask, num_known: int, num_tokens: int) -> list[int]:
    """Return what decoding `row` alone says after num_known tokens, the newest of them not yet read."""
    steps = (decode(device.capacity, [(row, num_known - 1 + index)]) for index in range(num_tokens))
    return [int(device.run(step).token_ids[0]) for step in steps]


def resume(device: Device, row: Ask, source: Ask, tokens: list[int], num_read: int, num_tokens: int) -> list[int]:
    """Return what `row`, whose slot has read num_read of the tokens, says: source's full pages shared, the open copied.

    The pages of `row` after the shared ones are its own.
    """
    capacity = device.capacity
    shared, has_open = divmod(num_read, capacity.page_size_tokens)
    mixed = Ask(row.slot, (*source.pages[:shared], *row.pages[shared:]))
    copied: Pairs = [(source.pages[shared], row.pages[shared])] if has_open else []
    step = with_copies(prefill(capacity, [(mixed, tokens[num_read:], num_read)]), pages=copied)
    first = int(device.run(step).token_ids[0])
    return [first, *go_on(device, mixed, len(tokens) + 1, num_tokens - 1)]


class DeviceContract(EditsContract):
    """Tests over a fresh device with `tests.graphs.steps.EDITING`."""

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
        expected = [generate(device, ask(3), PROMPT, 2), generate(device, ask(3), LONG, 2)]
        device.run(prefill(capacity, [(ask(1), PROMPT, 0), (ask(2), LONG, 0)]))
        output = device.run(decode(capacity, [(ask(1), len(PROMPT)), (ask(2), len(LONG))]))
        assert rows_of(output, 2) == [expected[0][1], expected[1][1]]

    def test_a_prompt_in_chunks_says_what_the_whole_prompt_says(self, device: Device) -> None:
        capacity = device.capacity
        expected = generate(device, ask(1), LONG, 3)
        device.run(prefill(capacity, [(ask(2), LONG[:36], 0)]))
        output = device.run(prefill(capacity, [(ask(2), LONG[36:], 36)]))
        ids = rows_of(output, 1)
        ids += [int(device.run(decode(capacity, [(ask(2), len(LONG) + step)])).token_ids[0]) for step in range(2)]
        assert ids == expected

    def test_a_copied_slot_goes_on_as_its_source_would_and_so_does_its_source(self, device: Device) -> None:
        capacity = device.capacity
        expected = generate(device, ask(3), PROMPT, 4)
        device.run(prefill(capacity, [(ask(1), PROMPT, 0)]))
        source, target = ask(1), ask(2)
        step = decode(capacity, [(target, len(PROMPT))])
        pages: Pairs = [(source.pages[0], target.pages[0])]
        ids = rows_of(device.run(with_copies(step, pages=pages, slots=[(1, 2)])), 1)
        assert ids + go_on(device, target, len(PROMPT) + 2, 2) == expected[1:]
        assert go_on(device, source, len(PROMPT) + 1, 3) == expected[1:]

    def test_copies_of_one_kind_are_made_in_order(self, device: Device) -> None:
        capacity = device.capacity
        expected = generate(device, ask(5), PROMPT, 3)
        device.run(prefill(capacity, [(ask(1), PROMPT, 0), (ask(2), LONG, 0)]))
        first, over, last = ask(1), ask(2), ask(3)
        step = decode(capacity, [(last, len(PROMPT))])
        pages: Pairs = [(first.pages[0], over.pages[0]), (over.pages[0], last.pages[0])]
        ids = rows_of(device.run(with_copies(step, pages=pages, slots=[(1, 2), (2, 3)])), 1)
        assert ids + go_on(device, last, len(PROMPT) + 2, 1) == expected[1:]

    @pytest.mark.parametrize("num_read", [4, 32, 60, 64, 68, 96, 100])
    def test_a_captured_slot_goes_on_from_there_and_its_row_says_what_it_would(
        self, device: Device, num_read: int
    ) -> None:
        capacity = device.capacity
        tokens = [*LONG, *PROMPT]
        expected, alone = generate(device, ask(3), tokens, 4), generate(device, ask(4), LONG, 3)
        step = with_copies(prefill(capacity, [(ask(1), LONG, 0)]), captures=[(0, num_read, 2)])
        ids = rows_of(device.run(step), 1)
        assert resume(device, ask(2), ask(1), tokens, num_read, 4) == expected
        assert ids + go_on(device, ask(1), len(LONG) + 1, 2) == alone

    def test_rows_are_captured_wherever_each_asks_in_one_step(self, device: Device) -> None:
        capacity = device.capacity
        tokens = [*LONG, *PROMPT]
        others = [token + 1 for token in tokens]
        expected = [generate(device, ask(8), row, 3) for row in (tokens, others)]
        # Begins at 8: positions are counted from the step's first token, not from the sequence's.
        device.run(prefill(capacity, [(ask(1), tokens[:8], 0)]))
        step = prefill(capacity, [(ask(1), tokens[8:100], 8), (ask(2), others[:88], 0)])
        captures: Pairs = [(0, 68, 5), (1, 68, 3), (1, 88, 4), (0, 4, 6), (1, 72, 7), (0, 64, 8)]
        device.run(with_copies(step, captures=captures))
        for row, num_tokens, slot in captures:
            num_read = num_tokens + (0 if row else 8)
            # Slots 5 to 8 lend their pages to all: each resumes after the last is done.
            taken = Ask(slot, ask(5).pages)
            assert resume(device, taken, ask(1 + row), (tokens, others)[row], num_read, 3) == expected[row]

    def test_a_saved_page_keeps_what_its_row_had_written_by_the_end_of_the_step(self, device: Device) -> None:
        capacity = device.capacity
        tokens = [*PROMPT[:8], *LONG[:20]]
        expected = generate(device, ask(3), tokens, 3)
        kept = ask(5).pages[0]
        step = prefill(capacity, [(ask(1), PROMPT, 0)])
        device.run(with_copies(step, captures=[(0, 8, 2)], saves=[(ask(1).pages[0], kept)]))
        generate(device, ask(1), LONG, 2)
        assert resume(device, ask(2), Ask(0, (kept, 0, 0, 0)), tokens, 8, 3) == expected

    def test_rows_share_the_pages_of_a_prefix_that_none_of_them_writes(self, device: Device) -> None:
        capacity = device.capacity
        endings = (PROMPT, PROMPT[::-1])
        expected = [generate(device, ask(4), [*LONG[:64], *ending], 2) for ending in endings]
        device.run(prefill(capacity, [(ask(1), LONG[:64], 0)]))
        rows = [Ask(slot, (*ask(1).pages[:2], *ask(slot).pages[2:])) for slot in (2, 3)]
        step = prefill(capacity, [(row, ending, 64) for row, ending in zip(rows, endings, strict=True)])
        ids = rows_of(device.run(with_copies(step, slots=[(1, 2), (1, 3)])), 2)
        more = rows_of(device.run(decode(capacity, [(row, 64 + len(PROMPT)) for row in rows])), 2)
        assert [list(row) for row in zip(ids, more, strict=True)] == expected

    def test_what_host_memory_kept_goes_on_in_other_pages_and_another_slot(self, device: Device) -> None:
        capacity = device.capacity
        assert (capacity.num_host_pages, capacity.num_host_slots) == (NUM_HOST_PAGES, NUM_HOST_SLOTS)
        expected = generate(device, ask(3), LONG, 5)
        device.run(prefill(capacity, [(ask(1), LONG, 0)]))
        out = Transfer(True, pairs(list(zip(ask(1).pages, (4, 1, 3, 5), strict=True))), pairs([(1, 2)]))
        assert device.transfer(out) >= 0
        generate(device, ask(1), LONG[::-1], 2)
        back = Transfer(False, pairs(list(zip(ask(6).pages, (4, 1, 3, 5), strict=True))), pairs([(6, 2)]))
        assert device.transfer(back) >= 0
        assert go_on(device, ask(6), len(LONG) + 1, 4) == expected[1:]

    def test_a_transfer_of_nothing_does_nothing(self, device: Device) -> None:
        assert device.transfer(Transfer(True, pairs(), pairs())) >= 0

    def test_close_may_be_called_twice(self, device: Device) -> None:
        device.close()
        device.close()

    def test_describe_names_the_device_and_its_graphs(self, device: Device) -> None:
        assert {"device", "graphs_ready", "graphs_total"} <= device.describe().keys()
