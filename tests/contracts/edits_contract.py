"""What every device makes of masks, adjusted logits, wanted ids and prompt scores."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from attrs import evolve

from graphs.step import Device, Scores, StepInput, StepOutput, Words
from tests.graphs.steps import Ask, Change, adjusting, allowing, ask, decode, prefill, rows_of, scored, with_edits

PROMPTS = ([5, 9, 2, 77, 31, 8, 64, 3, 12, 100], [40, 41, 42], [7] * 20)
TEXT = [(37 * index) % 200 for index in range(120)]
VARIANTS = ["greedy", "sample", "greedy_logprobs", "sample_logprobs"]
ROWS = [ask(1), ask(2, temperature=1.3, top_k=40, top_p=0.9, seed=3), ask(3, temperature=0.7, min_p=0.02, seed=9)]
NOTHING = Change()


def run_both(
    device: Device, variant: str, change: Callable[[StepInput], StepInput] = lambda step: step, rows: list[Ask] = ROWS
) -> list[StepOutput]:
    """Return a prefill of the prompts and the decode step after it, each changed; the same state is behind each."""
    capacity = device.capacity
    plain = prefill(capacity, [(row, PROMPTS[index], 0) for index, row in enumerate(rows)], variant)
    first = device.run(change(plain))
    device.run(plain)
    second = device.run(
        change(decode(capacity, [(row, len(PROMPTS[index])) for index, row in enumerate(rows)], variant))
    )
    return [first, second]


def bits(outputs: Sequence[StepOutput], rows: slice = slice(0, 3)) -> list[bytes]:
    """Return every bit of the outputs of `rows`."""
    return [
        column[rows].tobytes()
        for output in outputs
        for column in (output.token_ids, output.logprobs, output.top_ids, output.top_logprobs)
        if column is not None
    ]


def with_changes(device: Device, step: StepInput, rows: list[Change], size: int, allowed: Words | None) -> StepInput:
    """Return the step with `rows` adjusted among `size` tokens each, and a mask."""
    rows = [*rows, *[NOTHING] * (step.key.batch - len(rows))]
    return with_edits(step, allowed, adjusting(device.capacity.vocab_size, size, *rows))


def mask_of(device: Device, step: StepInput, *rows: Sequence[int] | None) -> Words:
    """Return a mask that allows each row its tokens and rows past them anything."""
    return allowing(device.capacity.vocab_size, *rows, *[None] * (step.key.batch - len(rows)))


class EditsContract:
    """Tests over a fresh device with `tests.graphs.steps.EDITING`."""

    def test_the_largest_adjust_holds_every_token(self, device: Device) -> None:
        capacity = device.capacity
        assert capacity.takes_mask
        assert list(capacity.adjust_tokens) == sorted(capacity.adjust_tokens)
        assert capacity.adjust_tokens[-1] == capacity.vocab_size

    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("token_ids", [(0, 31, 32), (63, 200, 255), (31, 31, 127)])
    def test_a_mask_of_one_bit_gives_that_token_in_every_variant(
        self, device: Device, variant: str, token_ids: tuple[int, ...]
    ) -> None:
        rows = [[token_id] for token_id in token_ids]
        for output in run_both(device, variant, lambda step: with_edits(step, mask_of(device, step, *rows))):
            assert rows_of(output, 3) == list(token_ids)
            assert np.isfinite(output.logprobs).all()

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_what_a_mask_forbids_never_comes(self, device: Device, variant: str) -> None:
        plain = run_both(device, variant)
        for which in range(2):
            came = rows_of(plain[which], 3)
            rows = [[token for token in range(256) if token != token_id] for token_id in came]
            output = run_both(device, variant, lambda step, rows=rows: with_edits(step, mask_of(device, step, *rows)))[
                which
            ]
            assert all(new != old for new, old in zip(rows_of(output, 3), came, strict=True))

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_mask_of_ones_and_a_change_of_nothing_change_no_bit(self, device: Device, variant: str) -> None:
        plain = bits(run_both(device, variant))
        # The counts and marks of tokens that came ask for nothing while every penalty is off.
        neutral = [Change(tokens={prompt[0]: (0, 1, 0), prompt[1]: (1, 1, 0)}) for prompt in PROMPTS]
        sizes = device.capacity.adjust_tokens
        assert bits(run_both(device, variant, lambda step: with_edits(step, mask_of(device, step)))) == plain
        for size in sizes:
            for has_mask in (False, True):

                def change(step: StepInput, size: int = size, has_mask: bool = has_mask) -> StepInput:
                    return with_changes(device, step, neutral, size, mask_of(device, step) if has_mask else None)

                assert bits(run_both(device, variant, change)) == plain

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_edits_of_one_row_leave_the_others_bit_for_bit(self, device: Device, variant: str) -> None:
        plain = bits(run_both(device, variant), slice(1, 3))
        # Every token of the row's prompt: a device may hold that what came is marked.
        marked = dict.fromkeys(PROMPTS[0][:-1], (1.0, 1.0, 0.5)) | {100: (0.0, 1.0, 0.0)}
        change = Change(tokens=marked, repetition=1.7, frequency=0.5, presence=0.25)
        for rows in ([range(40, 90)], [range(40, 90), None, None]):
            found = run_both(
                device,
                variant,
                lambda step, rows=rows: with_edits(step, mask_of(device, step, *rows)),
            )
            assert bits(found, slice(1, 3)) == plain
        capacity = device.capacity
        first = prefill(capacity, [(row, PROMPTS[index], 0) for index, row in enumerate(ROWS)], variant)
        edited = device.run(with_changes(device, first, [change], 16, mask_of(device, first, range(40, 90))))
        assert bits([edited], slice(1, 3)) == bits([device.run(first)], slice(1, 3))

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_great_bias_brings_its_token_unless_a_mask_forbids_it(self, device: Device, variant: str) -> None:
        biased = [Change(tokens={token_id: (0.0, 0.0, 1e4)}) for token_id in (11, 12, 13)]
        for output in run_both(device, variant, lambda step: with_changes(device, step, biased, 4, None)):
            assert rows_of(output, 3) == [11, 12, 13]
        forbidden = [[11, 20], [20, 21], [13]]
        for output in run_both(
            device,
            variant,
            lambda step: with_changes(device, step, biased, 4, mask_of(device, step, *forbidden)),
        ):
            assert rows_of(output, 3)[::2] == [11, 13]
            assert rows_of(output, 3)[1] in (20, 21)

    def test_a_token_that_came_loses_to_one_that_did_not(self, device: Device) -> None:
        greedy = [ask(1), ask(2), ask(3)]
        for which in range(2):
            came = rows_of(run_both(device, "greedy", rows=greedy)[which], 3)
            for lost in (Change(tokens={came[0]: (0, 0, -1e4)}), Change(tokens={came[0]: (0, 0, -1e4), 3: (0, 0, 0)})):
                changed = run_both(
                    device,
                    "greedy",
                    lambda step, lost=lost: with_changes(device, step, [lost], 4, None),
                    rows=greedy,
                )[which]
                assert rows_of(changed, 3)[0] != came[0]
                assert rows_of(changed, 3)[1:] == came[1:]

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_wanted_ids_come_with_every_variant_and_change_no_bit(self, device: Device, variant: str) -> None:
        plain = run_both(device, variant)
        assert all(output.wanted is None for output in plain)

        def wanting(step: StepInput) -> StepInput:
            return evolve(step, wanted_ids=np.array([[0, 7, 255]] * 2 + [[9, -1, -1]] * (step.key.batch - 2)))

        found = run_both(device, variant, wanting)
        assert bits(found) == bits(plain)
        for output in found:
            assert output.wanted is not None
            assert output.wanted.shape == (len(output.token_ids), 3)
            assert output.wanted.dtype == np.float32

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_scores_have_the_shapes_of_the_step_and_change_no_bit_of_it(self, device: Device, variant: str) -> None:
        capacity = device.capacity
        step = prefill(capacity, [(ROWS[0], TEXT, 0), (ROWS[1], TEXT[:70], 0), (ROWS[2], TEXT[:9], 0)], variant)
        plain = device.run(step)
        assert plain.scores is None
        targets = [(0, 3, TEXT[4]), (0, 119, 250), (1, 0, 8)]
        wanted = np.array([[1, 2], [3, -1], [-1, -1], [-1, -1]])
        output = device.run(scored(step, targets, wanted))
        assert bits([output]) == bits([plain])
        scores = output.scores
        assert scores is not None
        shape = step.tokens.shape
        assert scores.logprobs.shape == shape
        assert scores.top_ids.shape == scores.top_logprobs.shape == (*shape, capacity.max_top_logprobs)
        assert scores.wanted is not None
        assert scores.wanted.shape == (*shape, 2)
        assert {scores.logprobs.dtype, scores.top_logprobs.dtype, scores.wanted.dtype} == {np.dtype(np.float32)}
        assert scores.top_ids.dtype == np.int64
        at = tuple(zip(*[target[:2] for target in targets], strict=True))
        assert (scores.logprobs[at] <= 0).all()
        assert (np.diff(scores.top_logprobs[at]) <= 0).all()

    @pytest.mark.parametrize("cuts", [(64,), (20, 84), (4, 8, 12, 100), (68,)])
    def test_a_prompt_is_scored_the_same_however_it_is_chunked_and_batched(
        self, device: Device, cuts: tuple[int, ...]
    ) -> None:
        capacity = device.capacity
        wanted = np.array([[17, 5]])
        whole = device.run(scored(prefill(capacity, [(ask(1), TEXT, 0)]), targets_of(0, TEXT, 0, len(TEXT)), wanted))
        expected = whole.scores
        assert expected is not None
        bounds = [0, *cuts, len(TEXT)]
        for start, end in pairwise(bounds):
            # Beside a row that is scored too, and one that is not.
            rows = [(ask(2), PROMPTS[0], 0), (ask(3), TEXT[start:end], start), (ask(4), PROMPTS[1], 0)]
            targets = [(0, 2, 9), *targets_of(1, TEXT, start, end)]
            found = device.run(scored(prefill(capacity, rows), targets, np.repeat(wanted, 4, axis=0))).scores
            assert found is not None
            assert_same_scores(found, 1, expected, start, min(end, len(TEXT) - 1))


def targets_of(row: int, text: list[int], start: int, end: int) -> list[tuple[int, int, int]]:
    """Return the targets of `row`, which reads text[start:end]: the token after each but the text's last."""
    return [(row, at - start, text[at + 1]) for at in range(start, min(end, len(text) - 1))]


def assert_same_scores(found: Scores, row: int, whole: Scores, start: int, end: int) -> None:
    """Assert that `row` says of the tokens from start to end what row 0 of `whole` says."""
    here, there = slice(0, end - start), slice(start, end)
    np.testing.assert_allclose(found.logprobs[row, here], whole.logprobs[0, there], atol=1e-4)
    np.testing.assert_allclose(found.top_logprobs[row, here], whole.top_logprobs[0, there], atol=1e-4)
    assert (found.top_ids[row, here] == whole.top_ids[0, there]).mean() > 0.98  # near ties may change places
    assert found.wanted is not None
    assert whole.wanted is not None
    np.testing.assert_allclose(found.wanted[row, here], whole.wanted[0, there], atol=1e-4)
