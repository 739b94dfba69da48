"""A scheduler's core and its device, stepped by hand: no clock, no tasks."""

from collections import deque
from collections.abc import Iterator

from attrs import define, field

from graphs.step import Device, StepInput
from stages.channels import Admission
from stages.messages import Finish, MasksFilled, PromptScores, StepPlan, Submit, Usage
from stages.scheduler.core import SchedulerCore
from stages.scheduler.policies import load_policy
from stages.settings import SchedulerSettings
from tests.sim.fake_grammar import FakeGuides, mask_after


@define(eq=False)
class Bench:
    """One core; what it told of each request is kept under its id."""

    settings: SchedulerSettings
    device: Device
    queue: Admission = field(factory=lambda: Admission(64, lambda _: None))
    core: SchedulerCore = field(init=False)
    flights: deque[StepPlan] = field(factory=deque)
    answers: dict[str, tuple[int, ...]] = field(factory=dict)
    logprobs: dict[str, tuple[float, ...]] = field(factory=dict)
    prompts: dict[str, PromptScores] = field(factory=dict)
    wanted: dict[str, tuple[tuple[float, ...], ...]] = field(factory=dict)
    guides: FakeGuides = field(factory=FakeGuides)
    usages: dict[str, Usage] = field(factory=dict)
    ends: dict[str, Finish] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.core = SchedulerCore(
            self.settings, self.device.capacity, self.queue, load_policy(self.settings.schedule_policy)
        )

    def send(self, *orders: Submit) -> None:
        for order in orders:
            self.queue.send_nowait((order,))

    def complete(self, plan: StepPlan) -> None:
        self.core.complete(plan.step, self.device.run(plan.input))
        self.hear()

    def step(self) -> StepInput | None:
        """Plan all that can be, and run the oldest step that is out; returns what the device was given."""
        while self.plan() or self.fill():
            pass
        if not self.flights:
            return None
        oldest = self.flights.popleft()
        self.complete(oldest)
        return oldest.input

    def plan(self) -> bool:
        """Plan one more step, if there is one."""
        plan = self.core.plan()
        if plan is not None:
            self.flights.append(plan)
        return plan is not None

    def fill(self) -> bool:
        """Let every mask that was asked for come; returns whether there were any."""
        questions = self.core.take_questions(0.0)
        if questions is not None:
            masks = (mask_after(order, self.guides.tell(order, token_ids)) for order, token_ids in questions.rows)
            self.core.filled(MasksFilled(tuple(masks)))
            self.hear()
        return questions is not None

    def copy(self) -> bool:
        """Make the copies to and from host memory that are due; returns whether there were any."""
        started = self.core.transfers()
        for order in started:
            self.device.transfer(order.transfer)
            self.core.transferred(order.number)
        return bool(started)

    def steps(self) -> Iterator[StepInput]:
        """Run until nothing is left to run or to copy, giving each step after it was run."""
        while True:
            given = self.step()
            has_copied = self.copy()
            if given is not None:
                yield given
            elif not has_copied:
                return

    def run(self, *orders: Submit) -> list[StepInput]:
        """Send and run to the end."""
        self.send(*orders)
        return list(self.steps())

    def hear(self) -> None:
        tokens = self.core.outbox.take()
        for row in tokens.rows if tokens is not None else ():
            name = row.submit.key.request_id
            self.answers[name] = self.answers.get(name, ()) + row.token_ids
            self.logprobs[name] = self.logprobs.get(name, ()) + row.logprobs
            self.wanted[name] = self.wanted.get(name, ()) + row.wanted
            if row.prompt is not None:
                assert name not in self.prompts, "a prompt is scored once"
                self.prompts[name] = row.prompt
            self.usages[name] = row.usage
            if row.finish is not None:
                self.ends[name] = row.finish
