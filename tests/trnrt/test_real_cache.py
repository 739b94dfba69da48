"""The scheduler and its prefix cache on the CPU device in fp32: what is computed, and that the answers are the same.

A tiny random model, dense and sparse, one step at a time. Where a prompt resumes on the blocks of 64 tokens in which it
would have been computed anyway its answer is the same to the bit; elsewhere, and where tokens were decoded that are
prefilled otherwise, logprobs are within 1e-5.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import trio
from attrs import evolve

from graphs.config import Config
from graphs.devices.cpu import CpuDevice
from graphs.keys import Buckets
from graphs.parameters import Weights, fuse
from graphs.settings import GraphSettings
from graphs.step import StepInput
from stages.messages import Cancel, Command, CommandResult, FlushCache, Sampling, Submit
from stages.scheduler.commands import Commands
from stages.settings import CacheSettings, PrioritySettings, SchedulerSettings
from tests.graphs import tiny
from tests.sim.bench import Bench
from tests.sim.simkit import submit

BUCKETS = Buckets(batch=(1, 2, 4), prefill_batch=(1, 2), tokens=(64, 128), pages=(2, 4, 8))
ROWS, SNAPSHOTS = 4, 6
SHAPES = GraphSettings(BUCKETS, num_slots=1 + 2 * ROWS + SNAPSHOTS, num_pages=33, page_size_tokens=64, dtype="float32")
CACHE = CacheSettings(max_snapshots=SNAPSHOTS)
NEVER = 256

Model = tuple[Config, Weights]


@pytest.fixture(scope="module", params=[1024, 8], ids=["dense", "sparse"])
def model(request: pytest.FixtureRequest) -> Model:
    config = Config.from_json(
        tiny.config_json(
            index_topk=request.param,
            num_hidden_layers=2,
            layer_types=["linear_attention", "deepseek_sparse_attention"],
            mlp_layer_types=["dense", "sparse"],
            indexer_types=["full"] * 2,
            first_k_dense_replace=1,
            hc_sinkhorn_iters=4,
        )
    )
    return config, fuse(config, tiny.random_tensors(config, 1).__getitem__)


@pytest.fixture(params=[False, True], ids=["in turn", "overlap"])
def overlap(request: pytest.FixtureRequest) -> bool:
    """Whether the next step is planned ahead."""
    is_on: bool = request.param
    return is_on


def bench_of(
    model: Model, *, cache: CacheSettings | None = CACHE, num_pages: int = 33, host: int = 1, **settings: object
) -> Bench:
    """Return an engine of its own, which has computed nothing yet."""
    shapes = evolve(SHAPES, num_pages=num_pages)
    device = CpuDevice(*model, shapes, "eager", num_host_pages=host, num_host_slots=host)
    values: dict[str, object] = {"chunked_prefill_size_tokens": 128, "max_running_requests": ROWS, **settings}
    return Bench(SchedulerSettings(cache=cache, **values), device)  # type: ignore[arg-type]


@pytest.fixture
def plain(model: Model) -> Iterator[Bench]:
    """An engine without a cache: what it answers is right."""
    bench = bench_of(model, cache=None)
    yield bench
    bench.device.close()


def words(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple(tiny.random_tokens(length, 100 + salt).tolist())


def ask(name: str, prompt_ids: tuple[int, ...], num_new: int = 12, **more: object) -> Submit:
    stop = frozenset({NEVER})
    return submit(name, prompt_ids, max_new_tokens=num_new, logprobs=True, stop_token_ids=stop, **more)  # type: ignore[arg-type]


def prefilled(steps: list[StepInput]) -> int:
    return sum(int(step.num_valid.sum()) for step in steps if step.key.family == "prefill")


def assert_same(bench: Bench, plain: Bench, name: str, is_exact: bool = False) -> None:
    """Check that a request was answered as by an engine without a cache."""
    assert bench.answers[name] == plain.answers[name]
    ours, theirs = np.array(bench.logprobs[name]), np.array(plain.logprobs[name])
    if is_exact:
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def after(bench: Bench, order: Submit, name: str, num_new: int = 30) -> Submit:
    """Return the next turn of a conversation."""
    return ask(name, order.prompt_ids + bench.answers[order.key.request_id] + words(num_new, 7))


def flush(bench: Bench) -> bool:
    send, receive = trio.open_memory_channel[CommandResult](1)
    with send, receive:
        commands = Commands(bench.core)
        commands.take(Command(FlushCache(), send))
        ((_, result),) = commands.take_answers()
    return result.is_done


@pytest.mark.parametrize("num_answered", [9, 10, 11, 12])
def test_a_next_turn_computes_its_new_tokens_and_at_most_the_open_group_and_answers_the_same(
    model: Model, plain: Bench, num_answered: int, overlap: bool
):
    bench = bench_of(model, overlap=overlap)
    first = ask("first", words(150), num_answered)
    bench.run(first)
    second = after(bench, first, "second")
    steps = bench.run(second)
    read = 150 + num_answered - 1
    # Its own 30, the token sampled last, which was never read, and what of a group was open.
    assert prefilled(steps) == 30 + 1 + read % 4
    assert bench.usages["second"].cached_tokens == read - read % 4
    plain.run(first)
    plain.run(second)
    assert_same(bench, plain, "first", is_exact=True)
    assert_same(bench, plain, "second")


def test_a_long_conversation_answers_as_if_each_turn_were_its_first(model: Model, plain: Bench):
    bench = bench_of(model, overlap=True)
    order = ask("turn0", words(70), 13)
    bench.run(order)
    for turn in range(1, 6):
        order = after(bench, order, f"turn{turn}", 17)
        steps = bench.run(order)
        assert prefilled(steps) <= 17 + 1 + 3
        plain.run(order)
        assert_same(bench, plain, f"turn{turn}")


def test_after_a_flush_everything_is_computed_again_and_to_the_bit_as_the_first_time(model: Model):
    bench = bench_of(model)
    first = ask("first", words(150))
    bench.run(first)
    assert flush(bench)
    steps = bench.run(ask("again", words(150)))
    assert prefilled(steps) == 150
    assert bench.usages["again"].cached_tokens == 0
    assert bench.answers["again"] == bench.answers["first"]
    assert bench.logprobs["again"] == bench.logprobs["first"]


@pytest.mark.parametrize("shared", [64, 100, 128, 192, 200])
def test_a_prompt_that_resumes_on_the_grid_of_its_blocks_answers_the_same_to_the_bit(
    model: Model, plain: Bench, shared: int
):
    bench = bench_of(model)
    first, second, third = (ask(name, words(shared) + words(40, salt)) for salt, name in enumerate("abc", 1))
    for order in (first, second):
        bench.run(order)
    # The second one left a snapshot where it parted from the first.
    steps = bench.run(third)
    assert bench.usages["c"].cached_tokens == shared // 64 * 64
    assert prefilled(steps) == shared % 64 + 40
    for order in (first, second, third):
        plain.run(order)
        assert_same(bench, plain, order.key.request_id, is_exact=True)


def test_the_same_prompt_again_resumes_at_its_last_block_and_answers_the_same_to_the_bit(model: Model, plain: Bench):
    bench = bench_of(model)
    for name in ("a", "b"):
        bench.run(ask(name, words(150)))
    plain.run(ask("b", words(150)))
    assert bench.usages["b"].cached_tokens == 128
    assert_same(bench, plain, "b", is_exact=True)


def test_two_choices_compute_their_prompt_once_and_draw_as_they_would_alone(model: Model, plain: Bench, overlap: bool):
    bench = bench_of(model, overlap=overlap)
    orders = [ask(f"n{choice}", words(150), seed=choice + 1, sampling=Sampling(temperature=1.0)) for choice in range(2)]
    steps = bench.run(*orders)
    # The second begins where the first left a snapshot: at the last block.
    assert prefilled(steps) == 150 + 22
    for order in orders:
        plain.run(order)
        assert_same(bench, plain, order.key.request_id)
    assert bench.answers["n0"] != bench.answers["n1"]


def test_a_stream_that_is_retracted_goes_on_as_if_nothing_had_been(model: Model, plain: Bench, overlap: bool):
    # Nine pages for two that grow to five each.
    bench = bench_of(model, num_pages=10, overlap=overlap, schedule_conservativeness=0.0)
    orders = [ask(f"r{index}", words(240, index), 50) for index in range(2)]
    bench.run(*orders)
    assert sorted(bench.usages[order.key.request_id].num_retractions for order in orders) == [0, 1]
    for order in orders:
        plain.run(order)
        assert_same(bench, plain, order.key.request_id)


def test_a_stream_that_is_preempted_goes_on_as_if_nothing_had_been(model: Model, plain: Bench, overlap: bool):
    bench = bench_of(model, overlap=overlap, max_running_requests=1, priority=PrioritySettings(preemption_threshold=0))
    low, high = ask("low", words(90, 1), 30, priority=0), ask("high", words(90, 2), 5, priority=1)
    bench.send(low)
    while len(bench.answers.get("low", ())) < 11:
        bench.step()
    steps = bench.run(high)
    assert bench.usages["low"].num_retractions == 1
    # 100 tokens that were read end a group; what it sampled last is computed, and what the step that was out brought.
    assert prefilled(steps) == 90 + (2 if overlap else 1)
    for order in (low, high):
        plain.run(order)
        assert_same(bench, plain, order.key.request_id)


def test_what_comes_back_from_host_memory_is_to_the_bit_what_the_device_would_have_had(model: Model, plain: Bench):
    host, device = bench_of(model, host=40), bench_of(model)
    first = ask("first", words(150))
    for bench in (host, device):
        bench.run(first)
    # What others leave takes the places of all six snapshots.
    for index in range(4):
        host.run(ask(f"other{index}", words(150, 20 + index)))
    second = after(host, first, "second")
    for bench in (host, device):
        bench.run(second)
    read = 150 + 12 - 1
    assert host.usages["second"].cached_tokens == host.usages["second"].cached_host_tokens == read - read % 4
    assert (device.usages["second"].cached_tokens, device.usages["second"].cached_host_tokens) == (read - read % 4, 0)
    assert host.answers["second"] == device.answers["second"]
    assert host.logprobs["second"] == device.logprobs["second"]
    plain.run(second)
    assert_same(host, plain, "second")


def test_pages_that_come_back_from_host_memory_are_those_that_left(model: Model, plain: Bench):
    # Seven pages: four are a conversation's, and go as well.
    bench = bench_of(model, host=40, num_pages=8)
    first = ask("first", words(230))
    bench.run(first)
    for index in range(4):
        bench.run(ask(f"other{index}", words(300, 20 + index)))
    second = after(bench, first, "second", 10)
    bench.run(second)
    assert bench.usages["second"].cached_host_tokens == 240
    plain.run(second)
    assert_same(bench, plain, "second")


def test_what_was_sampled_behind_a_stop_is_nowhere_in_the_next_turn(model: Model, plain: Bench, overlap: bool):
    bench = bench_of(model, overlap=overlap)
    first = ask("first", words(101), 40, stop=("stop",))
    bench.send(first)
    while len(bench.answers.get("first", ())) < 12:
        bench.step()
    kept = bench.answers["first"][:6]
    bench.core.cancel(Cancel("first", choice=0, num_generated=6))
    second = ask("second", first.prompt_ids + kept + words(20, 7))
    bench.run(second)
    # The state was kept at the last two ends of groups, up to 112 or with a step more; 107 tokens are the client's.
    assert bench.usages["second"].cached_tokens == (64 if overlap else 104)
    plain.run(second)
    assert_same(bench, plain, "second")
