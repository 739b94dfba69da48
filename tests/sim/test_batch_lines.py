"""SGLang's lines about steps, from the real scheduler on a virtual clock: when they come, and every number in them."""

import logging

import pytest
import trio
from attrs import evolve

from graphs.step import StepInput
from stages.logs.batches import BatchLog
from stages.messages import Load
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import capacity, run_sim, sim_engine, submit

SETTINGS = SchedulerSettings(chunked_prefill_size_tokens=16, max_running_requests=8, decode_log_interval=4)


def step_s(step: StepInput) -> float:
    return 0.5 if step.key.family == "prefill" else 0.125


def prompt(length: int) -> tuple[int, ...]:
    return tuple(range(length))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "trnrt.scheduler")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "trnrt.scheduler"]


def run(settings: SchedulerSettings, *asks: tuple[float, int, int], **sizes: int) -> None:
    """Ask at these instants, for prompts and answers of these lengths."""
    device = HistoryDevice(capacity(**sizes), step_s)

    async def main() -> None:
        async with sim_engine(settings, device) as engine, trio.open_nursery() as nursery:

            async def ask(number: int, at_s: float, prompt_tokens: int, new_tokens: int) -> None:
                await trio.sleep(at_s)
                await engine.ask(submit(str(number), prompt(prompt_tokens), max_new_tokens=new_tokens))

            for number, given in enumerate(asks):
                nursery.start_soon(ask, number, *given)

    run_sim(main)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_prefill_step_is_a_line_and_so_are_as_many_decode_steps_as_the_interval(said, overlap):
    run(evolve(SETTINGS, overlap=overlap), (0.0, 40, 10))
    assert said() == [
        "Prefill batch, #new-seq: 1, #new-token: 16, #cached-token: 0, full token usage: 0.08, mamba usage: 0.12, "
        "#running-req: 1, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 32.00",
        "Prefill batch, #new-seq: 0, #new-token: 16, #cached-token: 0, full token usage: 0.08, mamba usage: 0.12, "
        "#running-req: 1, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 32.00",
        "Prefill batch, #new-seq: 0, #new-token: 8, #cached-token: 0, full token usage: 0.09, mamba usage: 0.12, "
        "#running-req: 1, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 16.00",
        "Decode batch, #running-req: 1, #full token: 48, full token usage: 0.09, mamba num: 1, mamba usage: 0.12, "
        "cuda graph: False, gen throughput (token/s): 8.00, #queue-req: 0",
        "Decode batch, #running-req: 1, #full token: 56, full token usage: 0.11, mamba num: 1, mamba usage: 0.12, "
        "cuda graph: False, gen throughput (token/s): 8.00, #queue-req: 0",
    ]


def test_an_idle_time_slows_no_rate(said):
    run(SETTINGS, (0.0, 8, 5), (100.0, 8, 5))
    assert [line.rpartition("(token/s): ")[2] for line in said()] == ["16.00", "8.00, #queue-req: 0"] * 2


def test_what_was_found_cached_is_told_with_the_prefill_that_went_on_from_it(said):
    run(evolve(SETTINGS, cache=CacheSettings(max_snapshots=4)), (0.0, 40, 2), (10.0, 48, 2), num_slots=14)
    assert "#new-seq: 1, #new-token: 8, #cached-token: 40," in said()[-1]


def test_requests_that_give_their_memory_back_are_a_warning(said, caplog):
    run(SETTINGS, *((0.0, 16, 60) for _ in range(4)), num_pages=20)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings
    assert warnings[0].getMessage().startswith("KV cache pool is full. Retract requests. #retracted_reqs: 1, ")
    assert 0 < float(warnings[0].getMessage().rpartition(" ")[2]) <= 1


def test_with_an_interval_of_0_there_are_no_lines(said):
    run(evolve(SETTINGS, decode_log_interval=0), (0.0, 40, 10))
    assert said() == []


def test_what_only_the_cache_holds_is_not_in_use():
    batches = BatchLog(1)
    batches.stepped("decode", 2, 0.5, 10.0)
    load = Load(2, 1, 9, 50, 100, 3, 30, 64, evictable_pages=30)
    assert batches.lines({}, load, is_busy=True) == [
        "Decode batch, #running-req: 2, #full token: 1280, full token usage: 0.20, mamba num: 3, mamba usage: 0.10, "
        "cuda graph: False, gen throughput (token/s): 4.00, #queue-req: 1"
    ]
