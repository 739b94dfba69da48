"""Awaiting a device: the thread does one step at a time and none is ever abandoned."""

import threading
import weakref
from collections.abc import Callable

import pytest
import trio
import trio.testing

from graphs.step import Device, DeviceLost, StepInput, StepOutput, Transfer, pairs
from stages.channels import Channels, open_channels
from stages.executor.runner import Runner, SimPending, SimRunner, ThreadRunner
from stages.executor.stage import run_executor
from stages.messages import StartTransfer, StepDone, StepFailed, StepPlan, TransferDone
from stages.scheduler.choice import Choice
from stages.scheduler.compose import Row, compose
from stages.scheduler.slots import SlotTable
from stages.settings import SchedulerSettings
from tests.sim.history_device import HistoryDevice, continuation
from tests.sim.simkit import capacity, sim_engine, submit


def make_step() -> StepInput:
    table = SlotTable(num_slots=9, max_pages=64)
    choice = Choice(submit("a", (1, 2, 3)), 0, slot=1, pages=[1])
    table.fill(1, choice.submit, [1])
    return compose("prefill", [Row(choice, 0, choice.num_tokens)], table, capacity().buckets, 8)


def end(channels: Channels) -> None:
    """Close what a scheduler closes at its end."""
    channels.plans_send.close()
    channels.transfers_send.close()


HOST = capacity(num_host_pages=4, num_host_slots=4)


def outward(page: int = 1) -> Transfer:
    """Return a transfer of page 1, which make_step writes, to a host page."""
    return Transfer(True, pairs([(1, page)]), pairs())


class GatedDevice(HistoryDevice):
    """Begins a step and waits until the test opens the gate."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.begun, self.gate, self.done = threading.Event(), threading.Event(), threading.Event()
        self.threads: set[str] = set()
        self.copy_begun, self.copy_gate = threading.Event(), threading.Event()

    def transfer(self, transfer: Transfer) -> float:
        self.threads.add(threading.current_thread().name)
        self.copy_begun.set()
        assert self.copy_gate.wait(10)
        return super().transfer(transfer)

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
    first = await runner.begin(make_step()).wait()
    second = await runner.begin(make_step()).wait()
    await runner.aclose()
    assert first.token_ids[0] == second.token_ids[0] == continuation((1, 2, 3), 1, 997)[0]
    assert device.threads == {"trnrt-engine"}


@pytest.mark.parametrize("runner_of", [ThreadRunner, SimRunner])
async def test_what_the_device_raises_comes_back_and_no_later_step_reaches_it(runner_of: Callable[[Device], Runner]):
    device = HistoryDevice(capacity(), lambda _: 0.0, lose_at_step=2)
    runner = runner_of(device)
    first, failed, behind = (runner.begin(make_step()) for _ in range(3))
    assert (await first.wait()).device_s == 0.0
    with pytest.raises(DeviceLost, match="unplugged"):
        await failed.wait()
    for pending in (behind, runner.begin(make_step())):
        with pytest.raises(DeviceLost, match="an earlier step failed"):
            await pending.wait()
    assert len(device.steps) == 2
    await runner.aclose()


async def test_a_step_that_was_done_before_anybody_waited_gives_its_output_too():
    device = GatedDevice(capacity())
    device.gate.set()
    runner = ThreadRunner(device)
    pending = runner.begin(make_step())
    await runner.aclose()
    assert device.done.is_set()
    assert (await pending.wait()).device_s == 1.0


async def test_the_thread_goes_from_step_to_step_without_the_event_loop():
    device = HistoryDevice(capacity())
    runner = ThreadRunner(device)
    pendings = [runner.begin(make_step()) for _ in range(2)]
    # Blocks the loop: nothing but the thread can have run the second step.
    runner.steps.end()
    runner.steps.thread.join()
    assert len(device.steps) == 2
    assert [(await pending.wait()).device_s for pending in pendings] == [1.0, 1.0]


async def test_a_cancelled_step_is_waited_for():
    device = GatedDevice(capacity())
    runner = ThreadRunner(device)
    outputs: list[StepOutput] = []

    async def client() -> None:
        outputs.append(await runner.begin(make_step()).wait())

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            await trio.to_thread.run_sync(device.begun.wait)
            scope.cancel()
            trio.lowlevel.current_trio_token().run_sync_soon(device.gate.set)
    assert len(outputs) == 1
    await runner.aclose()


async def test_closing_joins_the_thread_even_when_cancelled_and_twice_is_once():
    runner = ThreadRunner(HistoryDevice(capacity()))
    thread = runner.steps.thread
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
    output = weakref.ref(await runner.begin(step).wait())
    del step
    # The thread lets go a moment after it has handed the output over.
    with trio.fail_after(10):
        while watched() is not None or output() is not None:  # noqa: ASYNC110  # nothing tells
            await trio.sleep(0.001)
    await runner.aclose()


class _Forgetful(list[StepInput]):
    def append(self, item: StepInput) -> None:
        pass


async def test_a_simulated_step_takes_its_device_time_on_the_clock(autojump_clock: trio.testing.MockClock):
    runner = SimRunner(HistoryDevice(capacity(), lambda _: 12.5))
    start = trio.current_time()
    output = await runner.begin(make_step()).wait()
    assert trio.current_time() - start == output.device_s == 12.5
    await runner.aclose()


async def test_simulated_steps_follow_each_other_whenever_they_are_begun_and_awaited(
    autojump_clock: trio.testing.MockClock,
):
    runner = SimRunner(HistoryDevice(capacity(), lambda _: 4.0))
    start_s = trio.current_time()
    first, second = runner.begin(make_step()), runner.begin(make_step())
    await second.wait()
    assert trio.current_time() - start_s == 8.0
    await first.wait()
    await trio.sleep(1.0)
    await runner.begin(make_step()).wait()
    assert trio.current_time() - start_s == 13.0


async def test_the_next_step_is_begun_while_the_last_one_runs_and_their_facts_come_in_order(
    autojump_clock: trio.testing.MockClock,
):
    channels = open_channels(4)
    device = HistoryDevice(capacity(), lambda _: 4.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(device), channels)
        start_s = trio.current_time()
        for step in (1, 2):
            channels.plans_send.send_nowait(StepPlan(step, make_step()))
        await trio.sleep(1.0)
        assert len(device.steps) == 2
        for step in (1, 2):
            fact = await channels.scheduler_receive.receive()
            assert (fact.step, trio.current_time() - start_s) == (step, 4.0 * step)
        end(channels)


async def test_plans_become_facts_in_order_until_one_fails_and_the_end_of_plans_ends_the_executor():
    channels = open_channels(4)
    device = HistoryDevice(capacity(), lambda _: 0.0, lose_at_step=2)
    runner = SimRunner(device)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, runner, channels)
        facts = []
        for step in (1, 2):
            await channels.plans_send.send(StepPlan(step, make_step()))
            facts.append(await channels.scheduler_receive.receive())
        await channels.plans_send.send(StepPlan(3, make_step()))
        await trio.testing.wait_all_tasks_blocked()
        end(channels)
    done, failed = facts
    assert isinstance(done, StepDone)
    assert isinstance(failed, StepFailed)
    assert isinstance(failed.error, DeviceLost)
    assert [fact.step for fact in facts] == [1, 2]
    assert len(device.steps) == 2
    with pytest.raises(trio.WouldBlock):
        channels.scheduler_receive.receive_nowait()


async def test_after_a_failed_step_nothing_is_begun():
    class Counting(SimRunner):
        num_begun = 0

        def begin(self, step: StepInput) -> SimPending[StepOutput]:
            self.num_begun += 1
            return super().begin(step)

        def begin_transfer(self, transfer: Transfer) -> SimPending[float]:
            self.num_begun += 1
            return super().begin_transfer(transfer)

    channels = open_channels(4)
    runner = Counting(HistoryDevice(capacity(), lambda _: 0.0, lose_at_step=1))
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, runner, channels)
        await channels.plans_send.send(StepPlan(1, make_step()))
        assert isinstance(await channels.scheduler_receive.receive(), StepFailed)
        await channels.plans_send.send(StepPlan(2, make_step()))
        channels.transfers_send.send_nowait(StartTransfer(11, outward()))
        await trio.testing.wait_all_tasks_blocked()
        end(channels)
    assert runner.num_begun == 1


@pytest.mark.parametrize("lose_at_step", [1, 2])
async def test_of_two_steps_begun_the_first_that_fails_is_told_and_nothing_after_it(
    lose_at_step: int, autojump_clock: trio.testing.MockClock
):
    channels = open_channels(4)
    device = HistoryDevice(capacity(), lambda _: 1.0, lose_at_step=lose_at_step)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(device), channels)
        for step in (1, 2):
            channels.plans_send.send_nowait(StepPlan(step, make_step()))
        await trio.sleep(10.0)
        end(channels)
    facts = [channels.scheduler_receive.receive_nowait() for _ in range(lose_at_step)]
    assert [type(fact) for fact in facts] == [StepDone] * (lose_at_step - 1) + [StepFailed]
    assert facts[-1].step == lose_at_step
    with pytest.raises(trio.WouldBlock):
        channels.scheduler_receive.receive_nowait()


async def test_whatever_else_a_device_raises_is_a_failed_step_too():
    class Broken(HistoryDevice):
        def run(self, step: StepInput) -> StepOutput:
            raise RuntimeError("out of memory")

    channels = open_channels(4)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(Broken(capacity())), channels)
        await channels.plans_send.send(StepPlan(1, make_step()))
        fact = await channels.scheduler_receive.receive()
        end(channels)
    assert isinstance(fact, StepFailed)
    assert isinstance(fact.error, RuntimeError)


async def test_an_executor_whose_scheduler_is_gone_ends_quietly():
    channels = open_channels(4)
    runner = SimRunner(HistoryDevice(capacity(), lambda _: 0.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, runner, channels)
        channels.scheduler_receive.close()
        await channels.plans_send.send(StepPlan(1, make_step()))
        end(channels)


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
    assert not runner.steps.thread.is_alive()


async def test_a_cancelled_executor_waits_for_every_step_that_was_begun():
    device = GatedDevice(capacity())
    channels = open_channels(4)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, ThreadRunner(device), channels)
        for step in (1, 2):
            channels.plans_send.send_nowait(StepPlan(step, make_step()))
        await trio.to_thread.run_sync(device.begun.wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        trio.lowlevel.current_trio_token().run_sync_soon(device.gate.set)
    assert len(device.steps) == 2


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_whole_engine_answers_over_the_engine_thread(overlap: bool):
    device = HistoryDevice(capacity())
    settings = SchedulerSettings(chunked_prefill_size_tokens=16, overlap=overlap)
    async with sim_engine(settings, device, runner=ThreadRunner(device)) as engine:
        heard = await engine.ask(submit("a", tuple(range(40)), max_new_tokens=6))
    assert heard.token_ids == continuation(tuple(range(40)), 6, 997)


# ---------------------------------------------------------------------------------------------------------------------
# Transfers
# ---------------------------------------------------------------------------------------------------------------------


async def test_a_transfer_runs_while_a_step_runs_and_the_other_way_round():
    device = GatedDevice(HOST)
    device.gate.set()
    runner = ThreadRunner(device)
    await runner.begin(make_step()).wait()
    device.gate.clear()
    device.begun.clear()
    step = runner.begin(make_step())
    await trio.to_thread.run_sync(device.begun.wait)
    device.copy_gate.set()
    assert await runner.begin_transfer(outward()).wait() == 0.0
    device.copy_gate.clear()
    device.copy_begun.clear()
    transfer = runner.begin_transfer(outward())
    await trio.to_thread.run_sync(device.copy_begun.wait)
    device.gate.set()
    await step.wait()
    assert transfer.result is None
    device.copy_gate.set()
    await transfer.wait()
    await runner.aclose()
    assert device.threads == {"trnrt-engine", "trnrt-copy"}


async def test_transfers_are_made_one_at_a_time_in_the_order_they_were_begun():
    device = GatedDevice(HOST)
    device.gate.set()
    runner = ThreadRunner(device)
    await runner.begin(make_step()).wait()
    pendings = [runner.begin_transfer(outward(page)) for page in (1, 2, 3)]
    await trio.to_thread.run_sync(device.copy_begun.wait)
    assert not device.transfers
    device.copy_gate.set()
    for pending in pendings:
        await pending.wait()
    assert [transfer.pages[0, 1] for transfer in device.transfers] == [1, 2, 3]
    await runner.aclose()


async def test_without_a_transfer_there_is_no_thread_for_them():
    runner = ThreadRunner(HistoryDevice(HOST))
    await runner.begin(make_step()).wait()
    assert runner.transfers is None
    await runner.aclose()


@pytest.mark.parametrize("runner_of", [ThreadRunner, SimRunner])
async def test_after_a_transfer_that_failed_nothing_reaches_the_device(runner_of: Callable[[Device], Runner]):
    device = HistoryDevice(HOST, lambda _: 0.0, lose_at_transfer=1)
    runner = runner_of(device)
    await runner.begin(make_step()).wait()
    with pytest.raises(DeviceLost, match="host memory unplugged"):
        await runner.begin_transfer(outward()).wait()
    with pytest.raises(DeviceLost, match="an earlier step failed"):
        await runner.begin_transfer(outward()).wait()
    with pytest.raises(DeviceLost, match="an earlier step failed"):
        await runner.begin(make_step()).wait()
    assert (len(device.steps), len(device.transfers)) == (1, 1)
    await runner.aclose()


@pytest.mark.parametrize("runner_of", [ThreadRunner, SimRunner])
async def test_after_a_step_that_failed_no_transfer_reaches_the_device(runner_of: Callable[[Device], Runner]):
    device = HistoryDevice(HOST, lambda _: 0.0, lose_at_step=1)
    runner = runner_of(device)
    with pytest.raises(DeviceLost, match="unplugged"):
        await runner.begin(make_step()).wait()
    with pytest.raises(DeviceLost, match="an earlier step failed"):
        await runner.begin_transfer(outward()).wait()
    assert not device.transfers
    await runner.aclose()


async def test_closing_a_runner_waits_for_the_transfers_that_were_begun_even_when_cancelled():
    device = GatedDevice(HOST)
    device.gate.set()
    runner = ThreadRunner(device)
    await runner.begin(make_step()).wait()
    for page in (1, 2):
        runner.begin_transfer(outward(page))
    await trio.to_thread.run_sync(device.copy_begun.wait)
    with trio.CancelScope() as scope:
        scope.cancel()
        trio.lowlevel.current_trio_token().run_sync_soon(device.copy_gate.set)
        await runner.aclose()
    assert len(device.transfers) == 2
    assert runner.transfers is not None
    assert not runner.transfers.thread.is_alive()


async def test_simulated_transfers_take_their_time_one_after_another_beside_the_steps(
    autojump_clock: trio.testing.MockClock,
):
    runner = SimRunner(HistoryDevice(HOST, lambda _: 4.0, transfer_s=lambda _: 3.0))
    await runner.begin(make_step()).wait()
    start_s = trio.current_time()
    first, second = runner.begin_transfer(outward(1)), runner.begin_transfer(outward(2))
    step = runner.begin(make_step())
    assert (await first.wait(), trio.current_time() - start_s) == (3.0, 3.0)
    await step.wait()
    assert trio.current_time() - start_s == 4.0
    assert (await second.wait(), trio.current_time() - start_s) == (3.0, 6.0)
    await trio.sleep(4.0)
    await runner.begin_transfer(outward(3)).wait()
    assert trio.current_time() - start_s == 13.0


async def test_the_scheduler_is_told_of_a_transfer_when_it_is_done_and_of_steps_meanwhile(
    autojump_clock: trio.testing.MockClock,
):
    channels = open_channels(4)
    device = HistoryDevice(HOST, lambda _: 4.0, transfer_s=lambda _: 7.5)
    heard: list[tuple[type, int, float]] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(device), channels)
        start_s = trio.current_time()
        channels.plans_send.send_nowait(StepPlan(1, make_step()))
        await trio.sleep(1.0)
        for number in (11, 12):
            channels.transfers_send.send_nowait(StartTransfer(number, outward(number - 10)))
        channels.plans_send.send_nowait(StepPlan(2, make_step()))
        for _ in range(4):
            fact = await channels.scheduler_receive.receive()
            number = fact.number if isinstance(fact, TransferDone) else fact.step
            heard.append((type(fact), number, trio.current_time() - start_s))
        end(channels)
    assert heard == [(StepDone, 1, 4.0), (StepDone, 2, 8.0), (TransferDone, 11, 8.5), (TransferDone, 12, 16.0)]


async def test_a_failed_transfer_is_the_one_failure_that_is_told_and_ends_steps_and_transfers(
    autojump_clock: trio.testing.MockClock,
):
    channels = open_channels(4)
    device = HistoryDevice(HOST, lambda _: 4.0, lose_at_transfer=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(device), channels)
        channels.plans_send.send_nowait(StepPlan(1, make_step()))
        assert isinstance(await channels.scheduler_receive.receive(), StepDone)
        channels.plans_send.send_nowait(StepPlan(2, make_step()))
        await trio.testing.wait_all_tasks_blocked()
        for number in (11, 12):
            channels.transfers_send.send_nowait(StartTransfer(number, outward()))
        fact = await channels.scheduler_receive.receive()
        assert isinstance(fact, StepFailed)
        assert (fact.step, str(fact.error)) == (11, "host memory unplugged")
        channels.plans_send.send_nowait(StepPlan(3, make_step()))
        await trio.sleep(100.0)
        end(channels)
    assert (len(device.steps), len(device.transfers)) == (2, 1)
    with pytest.raises(trio.WouldBlock):
        channels.scheduler_receive.receive_nowait()


async def test_after_a_failed_step_no_transfer_is_begun_or_told(autojump_clock: trio.testing.MockClock):
    channels = open_channels(4)
    device = HistoryDevice(HOST, lambda _: 1.0, lose_at_step=2, transfer_s=lambda _: 5.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(device), channels)
        channels.plans_send.send_nowait(StepPlan(1, make_step()))
        assert isinstance(await channels.scheduler_receive.receive(), StepDone)
        for number in (11, 12):
            channels.transfers_send.send_nowait(StartTransfer(number, outward()))
        await trio.sleep(1.0)
        channels.plans_send.send_nowait(StepPlan(2, make_step()))
        assert isinstance(await channels.scheduler_receive.receive(), StepFailed)
        await trio.sleep(100.0)
        end(channels)
    assert len(device.transfers) == 1
    with pytest.raises(trio.WouldBlock):
        channels.scheduler_receive.receive_nowait()


async def test_an_executor_ends_after_the_transfers_it_was_sent(autojump_clock: trio.testing.MockClock):
    channels = open_channels(4)
    device = HistoryDevice(HOST, lambda _: 1.0, transfer_s=lambda _: 5.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(device), channels)
        channels.plans_send.send_nowait(StepPlan(1, make_step()))
        assert isinstance(await channels.scheduler_receive.receive(), StepDone)
        for number in (11, 12):
            channels.transfers_send.send_nowait(StartTransfer(number, outward()))
        end(channels)
        start_s = trio.current_time()
    assert trio.current_time() - start_s == 10.0
    assert [channels.scheduler_receive.receive_nowait() for _ in range(2)] == [TransferDone(11), TransferDone(12)]


@pytest.mark.parametrize("first", ["plans_send", "transfers_send"])
async def test_one_closed_channel_does_not_end_the_executor(first: str):
    channels = open_channels(4)
    device = HistoryDevice(HOST, lambda _: 0.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, SimRunner(device), channels)
        channels.plans_send.send_nowait(StepPlan(1, make_step()))
        assert isinstance(await channels.scheduler_receive.receive(), StepDone)
        getattr(channels, first).close()
        await trio.testing.wait_all_tasks_blocked()
        if first == "plans_send":
            channels.transfers_send.send_nowait(StartTransfer(11, outward()))
            assert await channels.scheduler_receive.receive() == TransferDone(11)
        else:
            channels.plans_send.send_nowait(StepPlan(2, make_step()))
            assert isinstance(await channels.scheduler_receive.receive(), StepDone)
        end(channels)


async def test_a_cancelled_executor_waits_for_the_transfer_that_runs():
    device = GatedDevice(HOST)
    device.gate.set()
    channels = open_channels(4)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_executor, ThreadRunner(device), channels)
        channels.plans_send.send_nowait(StepPlan(1, make_step()))
        assert isinstance(await channels.scheduler_receive.receive(), StepDone)
        channels.transfers_send.send_nowait(StartTransfer(11, outward()))
        await trio.to_thread.run_sync(device.copy_begun.wait)
        nursery.cancel_scope.cancel()
        trio.lowlevel.current_trio_token().run_sync_soon(device.copy_gate.set)
    assert len(device.transfers) == 1
