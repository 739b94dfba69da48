"""Awaiting a device: the thread does one step at a time and none is ever abandoned."""

import threading
import weakref

import pytest
import trio
import trio.testing

from graphs.step import DeviceLost, StepInput, StepOutput
from stages.channels import open_channels
from stages.executor.runner import SimRunner, ThreadRunner
from stages.executor.stage import run_executor
from stages.messages import StepDone, StepFailed, StepPlan
from stages.scheduler.choice import Choice
from stages.scheduler.compose import compose, prefill_row
from stages.scheduler.slots import SlotTable
from stages.settings import SchedulerSettings
from tests.sim.history_device import HistoryDevice, continuation
from tests.sim.simkit import capacity, sim_engine, submit


def make_step() -> StepInput:
    table = SlotTable(num_slots=9, max_pages=64)
    choice = Choice(submit("a", (1, 2, 3)), 0, slot=1, pages=[1])
    table.fill(1, choice.submit, [1])
    return compose("prefill", [prefill_row(choice, 16)], table, capacity().buckets, 8)


class GatedDevice(HistoryDevice):
    """Begins a step and waits until the test opens the gate."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.begun, self.gate, self.done = threading.Event(), threading.Event(), threading.Event()
        self.threads: set[str] = set()

    def run(self, step: StepInput) -> StepOutput:
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.gate.wait(10)
        output = super().run(step)
        self.done.set()
        return output


async def test_a_step_runs_on_the_engine_thread_and_its_output_comes_back():
    device = GatedDevice(capacity())
    device.gate.set()
    runner = ThreadRunner(device)
    first = await runner.run(make_step())
    second = await runner.run(make_step())
    await runner.aclose()
    assert first.token_ids[0] == second.token_ids[0] == continuation((1, 2, 3), 1, 997)[0]
    assert device.threads == {"trnrt-engine"}


async def test_what_the_device_raises_comes_back_and_the_thread_lives_on():
    device = HistoryDevice(capacity(), lose_at_step=1)
    runner = ThreadRunner(device)
    with pytest.raises(DeviceLost, match="unplugged"):
        await runner.run(make_step())
    assert (await runner.run(make_step())).device_s == 1.0
    await runner.aclose()


async def test_a_cancelled_step_is_waited_for():
    device = GatedDevice(capacity())
    runner = ThreadRunner(device)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.run, make_step())
            await trio.to_thread.run_sync(device.begun.wait)
            scope.cancel()
            trio.lowlevel.current_trio_token().run_sync_soon(device.gate.set)
    assert device.done.is_set()
    await runner.aclose()


async def test_closing_joins_the_thread_even_when_cancelled_and_twice_is_once():
    runner = ThreadRunner(HistoryDevice(capacity()))
    thread = runner._thread
    with trio.CancelScope() as scope:
        scope.cancel()
        await runner.aclose()
    assert not thread.is_alive()
    await runner.aclose()


async def test_an_idle_thread_holds_no_step():
    runner = ThreadRunner(HistoryDevice(capacity()))
    runner._device.steps = _Forgetful()  # type: ignore[attr-defined]
    step = make_step()
    watched = weakref.ref(step)
    output = weakref.ref(await runner.run(step))
    del step
    await runner.aclose()
    assert watched() is None
    assert output() is None


class _Forgetful(list[StepInput]):
    def append(self, item: StepInput) -> None:
        pass


async def test_a_simulated_step_takes_its_device_time_on_the_clock(autojump_clock: trio.testing.MockClock):
    runner = SimRunner(HistoryDevice(capacity(), lambda _: 12.5))
    start = trio.current_time()
    output = await runner.run(make_step())
    assert trio.current_time() - start == output.device_s == 12.5
    await runner.aclose()


async def test_plans_become_facts_in_order_and_the_end_of_plans_ends_the_executor():
    channels = open_channels(4)
    runner = SimRunner(HistoryDevice(capacity(), lambda _: 0.0, lose_at_step=2))
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, runner, channels)
        facts = []
        for step in (1, 2, 3):
            await channels.plans_send.send(StepPlan(step, make_step()))
            facts.append(await channels.scheduler_receive.receive())
        channels.plans_send.close()
    done, failed, after = facts
    assert isinstance(done, StepDone)
    assert isinstance(failed, StepFailed)
    assert isinstance(failed.error, DeviceLost)
    assert isinstance(after, StepDone)
    assert [fact.step for fact in facts] == [1, 2, 3]


async def test_whatever_else_a_device_raises_is_a_failed_step_too():
    class Broken(HistoryDevice):
        def run(self, step: StepInput) -> StepOutput:
            raise RuntimeError("out of memory")

    channels = open_channels(4)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(Broken(capacity())), channels)
        await channels.plans_send.send(StepPlan(1, make_step()))
        fact = await channels.scheduler_receive.receive()
        channels.plans_send.close()
    assert isinstance(fact, StepFailed)
    assert isinstance(fact.error, RuntimeError)


async def test_an_executor_whose_scheduler_is_gone_ends_quietly():
    channels = open_channels(4)
    runner = SimRunner(HistoryDevice(capacity(), lambda _: 0.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, runner, channels)
        channels.scheduler_receive.close()
        await channels.plans_send.send(StepPlan(1, make_step()))
        channels.plans_send.close()


async def test_a_cancelled_executor_joins_its_thread_after_the_step():
    device = GatedDevice(capacity())
    channels = open_channels(4)
    runner = ThreadRunner(device)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, runner, channels)
        await channels.plans_send.send(StepPlan(1, make_step()))
        await trio.to_thread.run_sync(device.begun.wait)
        nursery.cancel_scope.cancel()
        trio.lowlevel.current_trio_token().run_sync_soon(device.gate.set)
    assert device.done.is_set()
    assert not runner._thread.is_alive()


async def test_a_whole_engine_answers_over_the_engine_thread():
    device = HistoryDevice(capacity())
    settings = SchedulerSettings(chunked_prefill_size_tokens=16)
    async with sim_engine(settings, device, runner=ThreadRunner(device)) as engine:
        heard = await engine.ask(submit("a", tuple(range(40)), max_new_tokens=6))
    assert heard.token_ids == continuation(tuple(range(40)), 6, 997)
