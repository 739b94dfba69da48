"""Random orders against the scheduler's core: every page has one owner, every choice ends once, nothing leaks."""

from collections import Counter, deque

from attrs import evolve
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from graphs.step import StepOutput
from stages.channels import Admission
from stages.messages import Cancel, ChoiceKey, Sampling, StepPlan, Submit
from stages.scheduler.choice import Choice
from stages.scheduler.core import SchedulerCore
from stages.scheduler.lifecycle import Phase
from stages.scheduler.policies import load_policy
from stages.settings import SchedulerSettings
from tests.sim.history_device import HistoryDevice, continuation
from tests.sim.simkit import capacity, submit

MAX_PREFILL_ROWS = 3
CHUNK_TOKENS = 8


class CoreMachine(RuleBasedStateMachine):
    """Submits, cancels, steps and fails in any order; the device checks what it is given, the rest is checked here."""

    @initialize(
        num_pages=st.integers(4, 20),
        max_running=st.integers(1, 6),
        reserve=st.sampled_from([0.0, 0.3, 1.0]),
        max_batch=st.sampled_from([1, 2, 4]),
        overlap=st.booleans(),
    )
    def start(self, num_pages: int, max_running: int, reserve: float, max_batch: int, overlap: bool) -> None:
        self.device = HistoryDevice(capacity(num_pages=num_pages, num_slots=6, max_batch=max_batch))
        self.queue = Admission(64, lambda _: None)
        self.core = SchedulerCore(
            SchedulerSettings(
                chunked_prefill_size_tokens=CHUNK_TOKENS,
                max_running_requests=max_running,
                max_prefill_rows=MAX_PREFILL_ROWS,
                new_token_reserve=reserve,
                overlap=overlap,
            ),
            self.device.capacity,
            self.queue,
            load_policy("fcfs"),
        )
        self.plans: deque[StepPlan] = deque()
        self.max_flights = 2 if overlap else 1
        self.outputs: deque[StepOutput] = deque()
        self.zombies: list[Choice] = []
        self.num_requests = 0
        self.submitted: dict[ChoiceKey, Submit] = {}
        self.ends: Counter[ChoiceKey] = Counter()
        self.heard: dict[ChoiceKey, tuple[int, ...]] = {}
        self.last_families: list[str] = []

    @rule(
        length=st.integers(1, 70),
        new=st.integers(0, 30),
        num_choices=st.integers(1, 3),
        has_stop=st.booleans(),
        min_new=st.integers(0, 5),
        is_sampled=st.booleans(),
    )
    def submit(self, length: int, new: int, num_choices: int, has_stop: bool, min_new: int, is_sampled: bool) -> None:
        self.num_requests += 1
        prompt = tuple((self.num_requests * 37 + index) % 997 for index in range(length))
        stop = frozenset(range(0, 997, 5)) if has_stop else frozenset()
        orders = tuple(
            evolve(
                submit(f"r{self.num_requests}", prompt, choice=choice, max_new_tokens=new, min_new_tokens=min_new),
                stop_token_ids=stop,
                sampling=Sampling(temperature=1.0 if is_sampled else 0.0),
                seed=self.num_requests + choice,
            )
            for choice in range(num_choices)
        )
        if len(self.queue.waiting) + num_choices <= self.queue.max_waiting:
            self.queue.send_nowait(orders)
            self.submitted |= {order.key: order for order in orders}
        self.core.arrive()
        self.hear()

    @rule(data=st.data(), deliver=st.booleans(), whole=st.booleans())
    def cancel(self, data: st.DataObject, deliver: bool, whole: bool) -> None:
        number = data.draw(st.integers(1, self.num_requests + 1))
        choice = None if whole else data.draw(st.integers(0, 3))
        before = self.live()
        self.core.cancel(Cancel(f"r{number}", choice, deliver))
        self.note_zombies(before)
        self.hear()

    @precondition(lambda self: len(self.plans) < self.max_flights)
    @rule()
    def launch(self) -> None:
        before = {choice: choice.num_flights for choice in (*self.core.prefilling, *self.core.decoding)}
        num_retracted = self.core.outbox.counts["retractions"]
        plan = self.core.plan()
        running = set(self.core.prefilling) | set(self.core.decoding)
        if running - set(before):
            assert self.num_foreseen(running, before) <= self.core.memory.pages.num_free, "the reserve allows no more"
        if self.plans:
            assert self.core.outbox.counts["retractions"] == num_retracted, "nothing is retracted beside a flight"
            assert set(before) <= running, "nothing is ended beside a flight"
        self.hear()
        if plan is not None:
            self.plans.append(plan)
            self.check_plan(plan)
        elif not self.plans:
            assert not running
            # Whatever is alone fits, so nothing waits for ever.
            assert not self.queue.waiting
            assert not self.core.retracted

    def num_foreseen(self, running: set[Choice], num_flights: dict[Choice, int]) -> int:
        pages = 0
        for choice in running:
            ahead = num_flights.get(choice, 0)
            foreseen = self.core.budget.foreseen_pages(choice.num_tokens + ahead, choice.num_remaining - ahead)
            pages += max(0, foreseen - len(choice.pages))
        return pages

    def check_plan(self, plan: StepPlan) -> None:
        if len(self.plans) == self.max_flights:
            assert self.core.plan() is None
        rows = [row for row in plan.input.num_valid.tolist() if row]
        family = plan.input.key.family
        assert len(rows) <= (MAX_PREFILL_ROWS if family == "prefill" else self.core.budget.max_rows)
        assert max(rows) <= CHUNK_TOKENS
        if family == "prefill":
            flown = self.core.flights[-1].rows
            for row in flown:
                assert row.start % CHUNK_TOKENS == 0
                assert row.num_valid == CHUNK_TOKENS or row.samples
                assert row.choice.num_flights == 1
            assert flown[0].choice is next(iter(self.core.prefilling)), "the oldest prompt goes first"
        others = self.core.decoding if family == "prefill" else self.core.prefilling
        if others:
            assert self.last_families[-1:] != [family], "one family ran twice while the other had rows"
        self.last_families.append(family)

    @precondition(lambda self: self.plans)
    @rule()
    def complete(self) -> None:
        plan = self.plans.popleft()
        before = self.live()
        self.core.complete(plan.step, self.outputs.popleft() if self.outputs else self.device.run(plan.input))
        self.note_zombies(before)
        self.hear()

    @precondition(lambda self: len(self.plans) > len(self.outputs))
    @rule()
    def run_ahead(self) -> None:
        """Let the device do the next step before the core hears of the one before."""
        self.outputs.append(self.device.run(self.plans[len(self.outputs)].input))

    def live(self) -> list[Choice]:
        return [choice for choices in self.core.requests.values() for choice in choices.values()]

    def note_zombies(self, before: list[Choice]) -> None:
        """Keep in view what has ended while a step of it is out."""
        ended = [*self.zombies, *(one for one in before if one.phase is Phase.ENDED)]
        self.zombies = [one for one in ended if one.num_flights]

    @precondition(lambda self: self.num_requests > 3)
    @rule()
    def fail(self) -> None:
        self.core.fail()
        self.plans.clear()
        self.outputs.clear()
        self.zombies = []
        self.hear()
        self.nothing_is_left()

    def hear(self) -> None:
        tokens = self.core.outbox.take()
        if tokens is None:
            return
        for order in tokens.dropped:
            self.ends[order.key] += 1
        for row in tokens.rows:
            key = row.submit.key
            assert not self.ends[key], "a row came after the end"
            self.heard[key] = self.heard.get(key, ()) + row.token_ids
            assert row.usage.completion_tokens == len(self.heard[key])
            if row.finish is not None:
                self.ends[key] += 1
                self.check_answer(row.submit, row.finish.kind, self.heard[key])
        for key, count in self.ends.items():
            assert count <= 1, f"{key} ended {count} times"

    def check_answer(self, order: Submit, kind: str, token_ids: tuple[int, ...]) -> None:
        expected = continuation(order.prompt_ids, len(token_ids), 997, order.seed if order.sampling.temperature else 0)
        assert token_ids == expected
        if kind == "length":
            assert len(token_ids) == order.max_new_tokens
        if kind == "stop":
            assert token_ids[-1] in order.stop_token_ids
            assert len(token_ids) >= order.min_new_tokens
        for index, token_id in enumerate(token_ids[:-1]):
            assert token_id not in order.stop_token_ids or index + 1 < order.min_new_tokens

    def nothing_is_left(self) -> None:
        assert self.core.is_idle
        assert self.core.memory.pages.num_used == 0
        assert self.core.memory.slots.num_used == 0
        table = self.core.memory.table
        assert not table._pages.any()
        assert not table._temperature.any()
        assert self.queue.waiting_tokens == 0
        assert not self.queue._choices
        assert set(self.ends) >= set(self.submitted)

    @invariant()
    def every_page_and_slot_has_one_owner(self) -> None:
        if not hasattr(self, "core"):
            return
        live = self.live()
        holders = live + self.zombies
        pages = [page for choice in holders for page in choice.pages]
        slots = [choice.slot for choice in holders if choice.slot]
        assert len(set(pages)) == len(pages)
        assert len(set(slots)) == len(slots)
        assert 0 not in pages
        assert len(pages) == self.core.memory.pages.num_used
        assert len(slots) == self.core.memory.slots.num_used
        assert self.core.memory.pages.num_used + self.core.memory.pages.num_free == self.device.capacity.num_pages - 1
        # The device still writes them, ended or not.
        flown = [row for flight in self.core.flights for row in flight.rows]
        assert Counter(row.choice for row in flown) == {one: one.num_flights for one in holders if one.num_flights}
        for row in flown:
            assert row.choice.slot
            assert len(row.choice.pages) * self.device.capacity.page_size_tokens >= row.start + row.num_valid
        numbers = [choice.number for choice in self.core.retracted]
        assert numbers == sorted(numbers), "the oldest comes back first"
        for choice in live:
            assert (choice.phase is Phase.PREFILLING) == (choice in self.core.prefilling)
            assert (choice.phase is Phase.DECODING) == (choice in self.core.decoding)
            assert (choice.phase is Phase.RETRACTED) == (choice in self.core.retracted) == (choice.slot == 0)
        assert len(self.core.prefilling) + len(self.core.decoding) <= self.core.budget.max_rows
        still = set(self.queue.waiting) | {choice.submit.key for choice in live}
        assert still | set(self.ends) == set(self.submitted)
        assert not still & set(self.ends)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(5000):
            if len(self.plans) < self.max_flights:
                self.launch()
            if not self.plans:
                break
            self.complete()
        self.nothing_is_left()


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
