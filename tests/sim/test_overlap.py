"""Planning ahead: the device never waits for the host, and what could not be known is wasted and nothing else."""

import pytest
import trio
from attrs import define, field

from graphs.step import Device, StepInput, StepOutput
from stages.channels import Admission
from stages.executor.runner import SimPending, SimRunner
from stages.messages import Cancel, StepPlan
from stages.scheduler.core import SchedulerCore
from stages.scheduler.lifecycle import Phase
from stages.scheduler.policies import load_policy
from stages.settings import SchedulerSettings
from tests.sim.history_device import HistoryDevice, continuation
from tests.sim.simkit import Heard, SimEngine, capacity, run_sim, sim_engine, submit

STEP_S, HOST_S = 1.0, 0.25
PROMPT = tuple(range(9))


@define(eq=False)
class LatePending:
    """A step of which the host hears HOST_S after it is done."""

    step: SimPending

    async def wait(self) -> StepOutput:
        output = await self.step.wait()
        await trio.sleep(HOST_S)
        return output


class LateRunner(SimRunner):
    """A device whose host is slow; keeps how long the device stood still before each step."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.idle_s: list[float] = []

    def begin(self, step: StepInput) -> LatePending:  # type: ignore[override]
        self.idle_s.append(max(0.0, trio.current_time() - self._free_s))
        return LatePending(super().begin(step))


@pytest.mark.parametrize("overlap", [False, True])
def test_between_decode_steps_the_device_waits_for_the_host_only_without_overlap(overlap: bool):
    runner = LateRunner(HistoryDevice(capacity()))

    async def main() -> tuple[Heard, ...]:
        async with sim_engine(SchedulerSettings(overlap=overlap), runner._device, runner=runner) as engine:
            return await engine.ask_choices(
                tuple(submit("a", PROMPT, choice=choice, max_new_tokens=2 + 4 * choice) for choice in range(3))
            )

    for choice, heard in enumerate(run_sim(main)):
        assert heard.token_ids == continuation(PROMPT, 2 + 4 * choice, 997)
    # The prompt's step, then nine of decode; only the first of these has nothing to hide behind.
    assert runner.idle_s == [0.0] + [HOST_S] * (1 if overlap else 9) + [0.0] * (8 if overlap else 0)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_prompt_and_a_running_answer_leave_the_device_no_gap_either(overlap: bool):
    runner = LateRunner(HistoryDevice(capacity()))

    async def main() -> None:
        async with sim_engine(SchedulerSettings(overlap=overlap), runner._device, runner=runner) as engine:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.ask, submit("short", PROMPT, max_new_tokens=12))
                await trio.sleep(3.1)
                nursery.start_soon(engine.ask, submit("long", tuple(range(60)), max_new_tokens=2))
            assert engine.core.is_idle

    run_sim(main)
    families = [step.key.family for step in runner._device.steps]  # type: ignore[attr-defined]
    assert families.count("prefill") == 5
    assert [idle_s for idle_s in runner.idle_s if idle_s] == [HOST_S] * (1 if overlap else len(families) - 1)


@pytest.mark.parametrize(("overlap", "num_wasted"), [(False, 0), (True, 1)])
def test_an_end_token_wastes_the_one_step_that_was_planned_ahead_and_its_token_is_dropped(
    overlap: bool, num_wasted: int
):
    device = HistoryDevice(capacity())
    expected = continuation(PROMPT, 9, 997)

    async def main() -> Heard:
        async with sim_engine(SchedulerSettings(overlap=overlap), device) as engine:
            order = submit("a", PROMPT, max_new_tokens=9, stop_token_ids=frozenset({expected[4]}))
            heard = await engine.ask(order)
            await trio.sleep(2 * STEP_S)
            assert engine.stats.snapshot(trio.current_time()).totals["completion_tokens"] == 5
            return heard

    heard = run_sim(main)
    assert (heard.token_ids, heard.ended.finish.matched) == (expected[:5], expected[4])
    assert heard.ended.usage.completion_tokens == 5
    assert len(device.steps) == 5 + num_wasted


@pytest.mark.parametrize("overlap", [False, True])
def test_an_end_that_is_known_ahead_wastes_no_step(overlap: bool):
    device = HistoryDevice(capacity())

    async def main() -> None:
        async with sim_engine(SchedulerSettings(overlap=overlap), device) as engine:
            await engine.ask(submit("a", PROMPT, max_new_tokens=7))

    run_sim(main)
    assert len(device.steps) == 7


def test_a_client_that_leaves_frees_everything_two_steps_later_at_most():
    async def main() -> None:
        async with sim_engine(SchedulerSettings(overlap=True), HistoryDevice(capacity())) as engine:
            with trio.move_on_after(4.5):
                await engine.ask(submit("a", PROMPT, max_new_tokens=30))
            await trio.sleep(0.1)
            # Two steps are out: the one that runs and the one behind it.
            assert (engine.core.load().running, engine.core.load().used_pages, len(engine.core.flights)) == (0, 2, 2)
            await trio.sleep(1.5)
            _nothing_is_held(engine)

    run_sim(main)


def _nothing_is_held(engine: SimEngine) -> None:
    engine.assert_all_returned()
    assert not engine.core.flights


# --- the core, by hand ----------------------------------------------------------------------------------------------


@define(eq=False)
class Bench:
    """A core that plans ahead, and its device."""

    device: HistoryDevice
    settings: SchedulerSettings = field(factory=lambda: SchedulerSettings(overlap=True, schedule_conservativeness=0.0))
    queue: Admission = field(factory=lambda: Admission(8, lambda _: None))
    core: SchedulerCore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.core = SchedulerCore(self.settings, self.device.capacity, self.queue, load_policy("fcfs"))

    def plan(self) -> StepPlan:
        plan = self.core.plan()
        assert plan is not None
        return plan

    def complete(self, plan: StepPlan) -> None:
        self.core.complete(plan.step, self.device.run(plan.input))

    def decoding(self) -> tuple[StepPlan, StepPlan]:
        """Prefill what was sent and return the two decode steps in flight."""
        self.complete(self.plan())
        return self.plan(), self.plan()


def test_two_steps_are_out_at_most_and_they_come_back_in_order():
    bench = Bench(HistoryDevice(capacity()))
    bench.queue.send_nowait((submit("a", PROMPT),))
    first, second = bench.decoding()
    assert bench.core.plan() is None
    assert (first.input.start.tolist(), second.input.start.tolist()) == ([9], [10])
    bench.complete(first)
    third = bench.plan()
    assert third.input.start.tolist() == [11]
    # Its token is the fourth and last.
    assert bench.core.plan() is None
    bench.complete(second)
    assert bench.core.plan() is None
    bench.complete(third)
    assert bench.core.is_idle


def test_pages_of_an_ended_choice_are_not_handed_out_before_its_last_flight_has_landed():
    bench = Bench(HistoryDevice(capacity(num_pages=3)))
    expected = continuation(PROMPT, 2, 997)
    bench.queue.send_nowait((submit("a", PROMPT, max_new_tokens=5, stop_token_ids=frozenset({expected[1]})),))
    bench.queue.send_nowait((submit("b", PROMPT),))
    first, second = bench.decoding()
    bench.complete(first)
    assert list(bench.core.roster.requests) == []
    assert (bench.core.load().used_pages, bench.core.load().used_slots) == (2, 1)
    assert bench.core.plan() is None
    bench.complete(second)
    # Nothing was sampled for it: two tokens, and the end with the second.
    tokens = bench.core.outbox.take()
    assert tokens is not None
    assert [row.token_ids for row in tokens.rows] == [expected[:1], expected[1:]]
    assert (bench.core.load().used_pages, bench.core.load().used_slots) == (0, 0)
    assert bench.plan().input.key.family == "prefill"


def test_a_choice_cancelled_with_two_steps_out_holds_its_memory_until_the_second_is_done():
    bench = Bench(HistoryDevice(capacity()))
    bench.queue.send_nowait((submit("a", PROMPT),))
    first, second = bench.decoding()
    bench.core.cancel(Cancel("a"))
    for plan, used in ((first, (2, 1)), (second, (0, 0))):
        bench.complete(plan)
        assert (bench.core.load().used_pages, bench.core.load().used_slots) == used
    assert bench.core.is_idle


def test_a_choice_is_retracted_only_when_nothing_is_in_flight():
    bench = Bench(HistoryDevice(capacity(num_pages=4)))
    # Three pages: two choices of eight tokens, and one for the first that grows.
    bench.queue.send_nowait(tuple(submit("a", (1,) * 7, choice=choice, max_new_tokens=9) for choice in range(2)))
    bench.complete(bench.plan())
    first = bench.plan()
    assert first.input.start.tolist() == [7, 7]
    # Both would need a ninth place: there is one page for two.
    assert bench.core.plan() is None
    assert bench.core.outbox.counts["retractions"] == 0
    assert bench.core.memory.pages.num_free == 1
    bench.complete(first)
    second = bench.plan()
    assert second.input.start.tolist() == [8]
    assert bench.core.outbox.counts["retractions"] == 1
    (choice,) = bench.core.roster.retracted
    assert (choice.submit.key.choice, choice.num_flights) == (1, 0)


def test_a_choice_that_outgrows_the_device_is_ended_only_when_nothing_is_in_flight():
    bench = Bench(HistoryDevice(capacity(num_pages=9, max_row_pages=1)))
    bench.queue.send_nowait((submit("a", (1,) * 6, max_new_tokens=9),))
    first, second = bench.decoding()
    bench.complete(first)
    # Pages are free, but a row holds no more than one.
    assert bench.core.plan() is None
    assert bench.core.roster.requests["a"][0].phase is Phase.DECODING
    bench.complete(second)
    assert bench.core.plan() is None
    assert not bench.core.roster.requests


def test_a_prompt_has_one_chunk_in_flight_and_nobody_overtakes_it():
    settings = SchedulerSettings(overlap=True, max_prefill_rows=1)
    bench = Bench(HistoryDevice(capacity()), settings)
    bench.queue.send_nowait((submit("a", (1,) * 40),))
    bench.queue.send_nowait((submit("b", (2,) * 4),))
    for start in (0, 16, 32):
        plan = bench.plan()
        assert (plan.input.start.tolist(), plan.input.key.family) == ([start], "prefill")
        assert bench.core.plan() is None
        bench.complete(plan)
    # The first decodes; behind that step goes the second's prompt.
    assert [bench.plan().input.key.family for _ in range(2)] == ["decode", "prefill"]


def test_a_prompt_rides_along_only_when_no_step_of_it_is_out():
    bench = Bench(HistoryDevice(capacity()))
    bench.queue.send_nowait((submit("a", (1,) * 4),))
    bench.queue.send_nowait((submit("b", (2,) * 12),))
    bench.queue.send_nowait((submit("c", (3,) * 4),))
    first = bench.plan()
    assert (first.input.num_valid > 0).sum() == 2
    bench.core.cancel(Cancel("a"))
    second = bench.plan()
    # The second prompt is the oldest now; the third is on its way already.
    assert second.input.num_valid.tolist() == [12]
    bench.complete(first)
    bench.complete(second)
    assert [choice.submit.key.request_id for choice in bench.core.roster.decoding] == ["c", "b"]


def test_admission_sees_the_token_in_flight():
    bench = Bench(HistoryDevice(capacity(num_pages=3)))
    bench.queue.send_nowait((submit("a", (1,) * 7, max_new_tokens=3),))
    bench.complete(bench.plan())
    first = bench.plan()
    # Eight tokens fill the first page. The one in flight is the ninth: the second page is spoken for.
    bench.queue.send_nowait((submit("b", (2,) * 4),))
    second = bench.plan()
    assert second.input.key.family == "decode"
    assert (len(bench.queue.waiting), bench.core.memory.pages.num_free) == (1, 0)
    bench.complete(first)
    bench.complete(second)
    assert bench.plan().input.key.family == "prefill"


def test_a_row_planned_ahead_is_drawn_as_its_request_wants():
    bench = Bench(HistoryDevice(capacity()))
    bench.queue.send_nowait((submit("a", PROMPT, num_top_logprobs=2),))
    assert [plan.input.key.variant for plan in bench.decoding()] == ["greedy_logprobs"] * 2


def test_a_lost_device_ends_what_runs_in_both_steps():
    bench = Bench(HistoryDevice(capacity()))
    bench.queue.send_nowait((submit("a", PROMPT),))
    bench.decoding()
    bench.core.fail()
    assert bench.core.is_idle
    assert (bench.core.load().used_pages, bench.core.load().used_slots) == (0, 0)
