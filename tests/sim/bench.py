"""A scheduler's core and its device, stepped by hand: no clock, no tasks."""

from collections import deque
from collections.abc import Iterator

from attrs import define, field

from graphs.step import Device, StepInput
from stages.channels import Admission
from stages.messages import Finish, StepPlan, Submit, Usage
from stages.scheduler.core import SchedulerCore
from stages.scheduler.policies import load_policy
from stages.settings import SchedulerSettings


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
        while (plan := self.core.plan()) is not None:
            self.flights.append(plan)
        if not self.flights:
            return None
        oldest = self.flights.popleft()
        self.complete(oldest)
        return oldest.input

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
            self.usages[name] = row.usage
            if row.finish is not None:
                self.ends[name] = row.finish
