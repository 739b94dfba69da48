"""Random orders against the scheduler's core: every page and slot has one owner, every choice ends once, nothing leaks.

The device folds every token it ever read into the next one, so an answer that resumed from a cached prefix, was
retracted, preempted or came back from host memory is right only if every page and snapshot was. Masks depend on every
token before them and counts on how often each came, so the same goes for a mask that is stale or a token not counted.
"""

import math
import random
from collections import Counter, deque

import numpy as np
import pytest
import trio
from attrs import evolve
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from graphs.step import StepOutput
from stages.channels import Admission
from stages.messages import (
    Cancel,
    ChoiceKey,
    CloseSession,
    Command,
    CommandResult,
    FlushCache,
    MasksFilled,
    OpenSession,
    Pause,
    PromptScores,
    Resume,
    Sampling,
    StartTransfer,
    StepPlan,
    Submit,
)
from stages.scheduler.choice import Choice
from stages.scheduler.commands import Commands
from stages.scheduler.core import SchedulerCore
from stages.scheduler.eviction import eviction_names
from stages.scheduler.lifecycle import Phase
from stages.scheduler.nodes import subtree
from stages.scheduler.policies import load_policy, policy_names
from stages.scheduler.prefix_tree import PrefixTree
from stages.settings import CacheSettings, PrioritySettings, SchedulerSettings
from tests.sim.asks import ASKS, asking
from tests.sim.fake_grammar import FakeGuides, allowed_after, grammar_of, mask_after
from tests.sim.history_device import HistoryDevice, answer_of, scores_of, wanted_of
from tests.sim.simkit import capacity, submit

MAX_PREFILL_ROWS = 3
CHUNK_TOKENS = 8


ORDERS = (
    FlushCache(),
    FlushCache(waits=True),
    Pause("abort"),
    Pause("retract"),
    Pause("in_place"),
    Resume(),
    OpenSession("s1"),
    OpenSession("s2", timeout_s=3.0),
    CloseSession("s1"),
)


class CoreMachine(RuleBasedStateMachine):
    """Submits, cancels, steps and fails in any order; the device checks what it is given, the rest is checked here."""

    @initialize(
        num_pages=st.integers(4, 40),
        max_running=st.integers(1, 6),
        conservativeness=st.sampled_from([0.0, 0.4, 1.5]),
        max_batch=st.sampled_from([1, 2, 4]),
        overlap=st.booleans(),
        cache=st.none()
        | st.builds(
            CacheSettings,
            eviction_policy=st.sampled_from(eviction_names()).filter(lambda name: name != "tlru"),
            max_snapshots=st.integers(1, 6),
            stride_tokens=st.sampled_from([8, 16]),
            boundary_token_ids=st.sampled_from([frozenset[int](), frozenset({3, 30})]),
            max_pinned=st.integers(0, 2),
            placement=st.sampled_from(["turns", "turns", "grid"]),
        ),
        host=st.sampled_from([(1, 1), (4, 3), (30, 6)]),
        priority=st.none() | st.builds(PrioritySettings, preemption_threshold=st.sampled_from([None, 0, 2])),
        policy=st.sampled_from([name for name in policy_names() if name != "priority"]),
    )
    def start(
        self,
        num_pages: int,
        max_running: int,
        conservativeness: float,
        max_batch: int,
        overlap: bool,
        cache: CacheSettings | None,
        host: tuple[int, int],
        priority: PrioritySettings | None,
        policy: str,
    ) -> None:
        num_slots = 6 if cache is None else 6 + cache.max_snapshots + (6 if cache.max_snapshots % 2 else 0)
        self.device = HistoryDevice(
            capacity(
                num_pages=num_pages,
                num_slots=num_slots,
                max_batch=max_batch,
                num_host_pages=host[0],
                num_host_slots=host[1],
            )
        )
        self.queue = Admission(64, lambda _: None)
        self.now_s = 0.0
        self.transfers: list[StartTransfer] = []
        self.replies: list[trio.MemoryReceiveChannel[CommandResult]] = []
        self.core = SchedulerCore(
            SchedulerSettings(
                chunked_prefill_size_tokens=CHUNK_TOKENS,
                max_running_requests=max_running,
                max_prefill_rows=MAX_PREFILL_ROWS,
                schedule_conservativeness=conservativeness,
                overlap=overlap,
                cache=cache,
                priority=priority,
            ),
            self.device.capacity,
            self.queue,
            load_policy(policy),
        )
        self.commands = Commands(self.core)
        self.plans: deque[StepPlan] = deque()
        self.max_flights = 2 if overlap else 1
        self.outputs: deque[StepOutput] = deque()
        self.zombies: list[Choice] = []
        self.num_requests = 0
        self.submitted: dict[ChoiceKey, Submit] = {}
        self.ends: Counter[ChoiceKey] = Counter()
        self.heard: dict[ChoiceKey, tuple[int, ...]] = {}
        self.last_families: list[str] = []
        self.has_failed = False
        self.guides = FakeGuides()
        # What was asked for and not filled, with all the tokens it was told of.
        self.asked: list[tuple[Submit, tuple[int, ...]]] = []
        self.scores: dict[ChoiceKey, PromptScores] = {}
        self.wanted: dict[ChoiceKey, tuple[tuple[float, ...], ...]] = {}

    @rule(
        length=st.integers(1, 70),
        new=st.integers(0, 30),
        num_choices=st.integers(1, 3),
        has_stop=st.booleans(),
        min_new=st.integers(0, 5),
        is_sampled=st.booleans(),
        shared=st.integers(0, 60),
        priority=st.none() | st.integers(-3, 3),
        session=st.sampled_from([None, None, "s1", "s2", "s3"]),
        namespace=st.sampled_from(["", "", "salt"]),
        wait_s=st.sampled_from([math.inf, math.inf, math.inf, 2.0]),
        asks=st.sampled_from(ASKS),
    )
    def submit(
        self,
        length: int,
        new: int,
        num_choices: int,
        has_stop: bool,
        min_new: int,
        is_sampled: bool,
        shared: int,
        priority: int | None,
        session: str | None,
        namespace: str,
        wait_s: float,
        asks: str,
    ) -> None:
        self.num_requests += 1
        own = tuple((self.num_requests * 37 + index) % 997 for index in range(length))
        # The first `shared` tokens are everybody's.
        prompt = (tuple(range(shared)) + own)[:length]
        until_s = self.now_s + wait_s
        self.send(prompt, new, num_choices, has_stop, min_new, is_sampled, priority, session, namespace, until_s, asks)

    @precondition(lambda self: self.heard)
    @rule(index=st.integers(0, 99), more=st.integers(0, 12), keeps=st.booleans())
    def next_turn(self, index: int, more: int, keeps: bool) -> None:
        """Go on with a conversation: its prompt, what was answered so far (or half of it), and something new."""
        key = list(self.heard)[-1 - index % len(self.heard)]
        before = self.submitted[key]
        answer = self.heard[key] if keeps else self.heard[key][: len(self.heard[key]) // 2]
        prompt = before.prompt_ids + answer + tuple((500 + self.num_requests + index) % 997 for index in range(more))
        self.num_requests += 1
        self.send(prompt, 5, 1, False, 0, False, before.priority, before.session, before.namespace, math.inf)

    def send(
        self,
        prompt: tuple[int, ...],
        new: int,
        num_choices: int,
        has_stop: bool,
        min_new: int,
        is_sampled: bool,
        priority: int | None,
        session: str | None,
        namespace: str,
        wait_until_s: float,
        asks: str = "",
    ) -> None:
        stop = frozenset(range(0, 997, 5)) if has_stop else frozenset()
        orders = tuple(
            evolve(
                submit(f"r{self.num_requests}", prompt, choice=choice, max_new_tokens=new, min_new_tokens=min_new),
                stop_token_ids=stop,
                sampling=Sampling(temperature=1.0 if is_sampled else 0.0),
                seed=self.num_requests + choice,
                priority=priority,
                session=session,
                namespace=namespace,
                wait_until_s=wait_until_s,
                **asking(asks, self.num_requests + choice),  # type: ignore[arg-type]
            )
            for choice in range(num_choices)
        )
        if len(self.queue.waiting) + num_choices <= self.queue.max_waiting:
            self.queue.send_nowait(orders)
            self.submitted |= {order.key: order for order in orders}
        self.core.arrive()
        self.hear()

    @rule(index=st.integers(0, 99), choice=st.none() | st.integers(0, 3), deliver=st.booleans())
    def cancel(self, index: int, choice: int | None, deliver: bool) -> None:
        number = self.num_requests + 1 - index % (self.num_requests + 1)
        before = self.live()
        self.core.cancel(Cancel(f"r{number}", choice, deliver))
        self.note_zombies(before)
        self.hear()

    @precondition(lambda self: len(self.plans) < self.max_flights)
    @rule()
    def launch(self) -> None:
        roster, memory = self.core.roster, self.core.memory
        before = set(roster.running())
        counts = dict(self.core.outbox.counts)
        plan = self.core.plan()
        running = set(roster.running())
        if self.plans:
            for name in ("retractions", "preemptions"):
                assert self.core.outbox.counts[name] == counts.get(name, 0), f"no {name} beside a flight"
            assert before <= running, "nothing is ended beside a flight"
        self.hear()
        if plan is not None:
            self.plans.append(plan)
            self.check_plan(plan)
            if running - before and len(running) > 1 and not self.core.outbox.counts["retractions"]:
                flown = {row.choice for row in self.core.flights[-1].rows}
                reserved = sum(
                    max(0, memory.foreseen_pages(choice) - len(choice.pages) - (choice in flown)) for choice in running
                )
                tails = sum(
                    capture.tail_page is not None
                    for flight in self.core.flights
                    for row in flight.rows
                    for capture in row.captures
                )
                assert reserved <= memory.num_room_pages + tails, "the reserve allows no more"
        # A backup holds what it copies.
        self.transfers += self.core.transfers()
        if plan is None and not self.plans and not self.transfers and not self.asked and not self.core.is_paused:
            assert not running
            # Whatever is alone fits, so nothing waits for ever.
            assert not self.queue.waiting
            assert not roster.retracted

    def check_plan(self, plan: StepPlan) -> None:
        if len(self.plans) == self.max_flights:
            assert self.core.plan() is None
        roster = self.core.roster
        rows = [row for row in plan.input.num_valid.tolist() if row]
        family = plan.input.key.family
        assert len(rows) <= (MAX_PREFILL_ROWS if family == "prefill" else self.core.budget.max_rows)
        assert max(rows) <= CHUNK_TOKENS
        if family == "prefill":
            flown = self.core.flights[-1].rows
            for row in flown:
                assert row.start % 4 == 0
                assert row.num_valid == CHUNK_TOKENS or row.samples
                assert row.choice.num_flights == 1
            ready = [one for one in roster.prefilling if one in {row.choice for row in flown} or self.is_ready(one)]
            assert flown[0].choice is ready[0], "the oldest prompt that waits for no mask goes first"
        others = roster.decoding if family == "prefill" else roster.prefilling
        if any(self.is_ready(choice) for choice in others):
            assert self.last_families[-1:] != [family], "one family ran twice while the other had rows"
        self.last_families.append(family)

    def is_ready(self, choice: Choice) -> bool:
        """Whether a row of it could run as far as masks and penalties go."""
        if choice.phase is Phase.PREFILLING and (
            choice.num_flights or choice.num_tokens - choice.num_computed > CHUNK_TOKENS
        ):
            return True
        return not self.core.memory.progress.held(np.array([choice.slot]))[0]

    @precondition(lambda self: self.asked)
    @rule(index=st.integers(0, 99))
    def fill(self, index: int) -> None:
        """Let the grammar stage answer one of its questions, whichever is done first; some come for ended choices."""
        before = self.live()
        order, generated = self.asked.pop(index % len(self.asked))
        self.core.filled(MasksFilled((mask_after(order, generated),)))
        self.note_zombies(before)
        self.hear()

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

    @precondition(lambda self: self.transfers)
    @rule(index=st.integers(0, 9))
    def transfer(self, index: int) -> None:
        """Let a copy between the tiers happen, whichever is done first."""
        started = self.transfers.pop(index % len(self.transfers))
        self.device.transfer(started.transfer)
        self.core.transferred(started.number)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        before = set(self.queue.waiting)
        self.core.expire(self.now_s)
        assert self.core.next_expiry_s > self.now_s
        for key in before:
            assert (key in self.queue.waiting) == (self.submitted[key].wait_until_s > self.now_s)
        self.hear()

    @rule(order=st.sampled_from(ORDERS))
    def command(self, order: FlushCache | Pause | Resume | OpenSession | CloseSession) -> None:
        send, receive = trio.open_memory_channel[CommandResult](1)
        before = self.live()
        self.commands.take(Command(order, send))
        self.commands.settle()
        self.note_zombies(before)
        for command, result in self.commands.take_answers():
            if isinstance(command.order, FlushCache) and result.is_done:
                assert self.core.memory.tree is None or not self.core.memory.tree.num_pages
        # Some have gone before they are answered.
        if isinstance(order, FlushCache) and order.waits:
            receive.close()
        else:
            self.replies.append(receive)
        self.hear()

    @rule(num_steps=st.integers(1, 40))
    def run_for(self, num_steps: int) -> None:
        """Let the engine go on for a while, paused or not."""
        self.core.is_paused = False
        for _ in range(num_steps):
            if len(self.plans) < self.max_flights:
                self.launch()
            if self.transfers and num_steps % 2:
                self.transfer(0)
            while self.asked and (num_steps % 3 or not self.plans):
                self.fill(num_steps)
            if self.plans:
                self.complete()

    def live(self) -> list[Choice]:
        return self.core.roster.every()

    def note_zombies(self, before: list[Choice]) -> None:
        """Keep in view what has ended while a step of it is out."""
        ended = [*self.zombies, *(one for one in before if one.phase is Phase.ENDED)]
        self.zombies = [one for one in ended if one.num_flights]

    @precondition(lambda self: self.num_requests > 3)
    @rule()
    def fail(self) -> None:
        self.has_failed = True
        self.core.fail()
        self.plans.clear()
        self.outputs.clear()
        while self.transfers:
            self.core.transferred(self.transfers.pop().number)
        self.zombies = []
        self.hear()
        self.nothing_is_left()

    def hear(self) -> None:
        questions = self.core.take_questions(self.now_s)
        for order, token_ids in questions.rows if questions is not None else ():
            assert order not in [one for one, _ in self.asked], "a second question before the answer"
            self.asked.append((order, self.guides.tell(order, token_ids)))
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
            self.wanted[key] = self.wanted.get(key, ()) + row.wanted
            if row.prompt is not None:
                assert key not in self.scores, "a prompt's scores came twice"
                assert len(self.heard[key]) == 1 or row.submit.max_new_tokens == 0
                self.scores[key] = row.prompt
            if row.finish is not None:
                self.ends[key] += 1
                self.check_answer(row.submit, row.finish.kind, self.heard[key])
        for key, count in self.ends.items():
            assert count <= 1, f"{key} ended {count} times"

    def check_answer(self, order: Submit, kind: str, token_ids: tuple[int, ...]) -> None:
        assert token_ids == answer_of(order, len(token_ids), 997, allowed_after)
        assert self.wanted[order.key] == wanted_of(order, token_ids)
        self.check_scores(order, has_begun=bool(token_ids) or kind == "length")
        if order in self.guides.told:
            told = self.guides.told[order]
            assert told == token_ids[: len(told)]
        if kind == "stop" and order.rules is not None and len(token_ids) == grammar_of(order).completes_after:
            return
        if kind == "error":
            grammar_fails = order.rules is not None and len(token_ids) == grammar_of(order).fails_after
            assert grammar_fails or self.has_failed
        if kind == "length":
            assert len(token_ids) == order.max_new_tokens
        if kind == "stop":
            assert token_ids[-1] in order.stop_token_ids
            assert len(token_ids) >= order.min_new_tokens
        for index, token_id in enumerate(token_ids[:-1]):
            assert token_id not in order.stop_token_ids or index + 1 < order.min_new_tokens

    def check_scores(self, order: Submit, has_begun: bool) -> None:
        scores = self.scores.get(order.key)
        if order.prompt_logprobs_from is None or not has_begun:
            assert scores is None
            return
        assert scores is not None
        expected = scores_of(order, 997, self.device.capacity.max_top_logprobs)
        np.testing.assert_array_equal(scores.logprobs, expected.logprobs)
        np.testing.assert_array_equal(scores.top_ids, expected.top_ids)
        np.testing.assert_array_equal(scores.top_logprobs, expected.top_logprobs)
        assert (scores.wanted is None) == (expected.wanted is None)
        if scores.wanted is not None and expected.wanted is not None:
            np.testing.assert_array_equal(scores.wanted, expected.wanted)

    def nothing_is_left(self) -> None:
        assert self.core.is_idle
        memory = self.core.memory
        self.core.flush()
        assert memory.pages.num_used == 0
        assert memory.slots.num_used == 0
        assert (memory.num_live_slots, memory.num_coming_snapshots) == (0, 0)
        if self.core.host is not None:
            assert (self.core.host.pages.num_used, self.core.host.slots.num_used) == (0, 0)
            assert not self.core.host._fetched
        assert not self.core.intake._looked
        assert not len(self.core.intake.waiting)
        assert not self.core.roster.sharing._followers
        assert not self.core.roster.sharing._leaders
        assert not self.core.roster.sharing._leaving
        assert not self.core.roster._kept
        assert not self.core.sessions._num_running
        assert self.core.take_questions(self.now_s) is None
        assert not self.core.guides.expected
        progress = memory.progress
        assert (progress.num_edited, memory.table.num_wanting) == (0, 0)
        for column in (progress.is_edited, progress.is_ruled, progress.needs_newest, progress.free_until):
            assert not column.any()
        assert not progress.mask_for.any()
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
        core, memory = self.core, self.core.memory
        live = self.live()
        holders = live + self.zombies
        pages = [page for choice in holders for page in choice.pages if page not in choice.borrowed]
        slots = [choice.slot for choice in holders if choice.slot]
        slots += [shadow.slot for choice in holders for shadow in choice.shadows]
        captures = [capture for flight in core.flights for row in flight.rows for capture in row.captures]
        pages += [capture.tail_page for capture in captures if capture.tail_page is not None]
        slots += [capture.slot for capture in captures]
        fetches = [] if core.host is None else [copy for copy in core.host._copies.values() if not copy.to_host]
        for copy in fetches:
            assert copy.snapshot is not None
            pages += copy.pages + ([copy.snapshot.tail_page] if copy.snapshot.tail_page is not None else [])
            slots.append(copy.snapshot.slot)
        tree_pages, tree_slots = held_by(memory.tree)
        pages += tree_pages
        slots += tree_slots
        assert len(set(pages)) == len(pages)
        assert len(set(slots)) == len(slots)
        assert 0 not in pages
        assert len(pages) == memory.pages.num_used
        assert len(slots) == memory.slots.num_used
        assert memory.pages.num_used + memory.pages.num_free == self.device.capacity.num_pages - 1
        if memory.tree is not None:
            assert memory.tree.num_snapshots + memory.num_coming_snapshots <= core.budget.max_snapshots
            for choice in holders:
                assert choice.borrowed <= set(tree_pages), "what is borrowed is the tree's"
        assert core.sessions.num_pinned <= core.sessions.max_pinned
        # The device still writes them, ended or not.
        flown = [row for flight in core.flights for row in flight.rows]
        assert Counter(row.choice for row in flown) == {one: one.num_flights for one in holders if one.num_flights}
        for row in flown:
            assert row.choice.slot
            assert len(row.choice.pages) * self.device.capacity.page_size_tokens >= row.start + row.num_valid
        order = [(-choice.rank, choice.number) for choice in core.roster.retracted]
        assert order == sorted(order), "the best comes back first, then the oldest"
        for choice in live:
            assert (choice.phase is Phase.PREFILLING) == (choice in core.roster.prefilling)
            assert (choice.phase is Phase.DECODING) == (choice in core.roster.decoding)
            assert (choice.phase is Phase.RETRACTED) == (choice in core.roster.retracted) == (choice.slot == 0)
        assert core.roster.num_running <= core.budget.max_rows
        still = set(self.queue.waiting) | {choice.submit.key for choice in live}
        assert still | set(self.ends) == set(self.submitted)
        assert not still & set(self.ends)
        assert len(core.intake.waiting) == len(self.queue.waiting)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.is_paused = False
        for _ in range(5000):
            if len(self.plans) < self.max_flights:
                self.launch()
            while self.transfers:
                self.transfer(0)
            while self.asked:
                self.fill(0)
            if self.core.is_idle and not self.transfers:
                break
            if self.plans:
                self.complete()
        self.nothing_is_left()


def held_by(tree: PrefixTree | None) -> tuple[list[int], list[int]]:
    """Return the device pages and slots of all nodes of `tree`."""
    pages: list[int] = []
    slots: list[int] = []
    for node in [node for root in tree._radix.roots.values() for node in subtree(root)] if tree is not None else []:
        pages += node.device.pages or []
        if (snapshot := node.device.snapshot) is not None:
            slots.append(snapshot.slot)
            pages += [] if snapshot.tail_page is None else [snapshot.tail_page]
    return pages, slots


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("seed", range(24))
def test_a_long_life_leaves_nothing_behind(seed: int):
    """What the machine does in short lives, in long and busy ones: conversations that go on, memory that is full."""
    rng = random.Random(seed)
    machine = CoreMachine()
    machine.start(
        num_pages=rng.choice([12, 24, 48]),
        max_running=rng.randint(1, 6),
        conservativeness=rng.choice([0.0, 0.4, 1.5]),
        max_batch=rng.choice([1, 2, 4]),
        overlap=bool(seed % 2),
        cache=CacheSettings(
            eviction_policy=rng.choice([name for name in eviction_names() if name != "tlru"]),
            max_snapshots=rng.randint(2, 8),
            stride_tokens=16,
            boundary_token_ids=rng.choice([frozenset(), frozenset({10})]),
            max_pinned=rng.randint(0, 2),
            placement=rng.choice(["turns", "turns", "grid"]),
        ),
        host=rng.choice([(1, 1), (12, 4), (60, 10)]),
        priority=rng.choice([None, PrioritySettings(preemption_threshold=0), PrioritySettings()]),
        policy=rng.choice([name for name in policy_names() if name != "priority"]),
    )
    for _ in range(250):
        match rng.choices(["submit", "turn", "cancel", "run", "command", "time"], [6, 8, 1, 10, 1, 1])[0]:
            case "submit":
                machine.submit(
                    length=rng.randint(1, 90),
                    new=rng.randint(0, 20),
                    num_choices=rng.choice([1, 1, 3]),
                    has_stop=rng.random() < 0.3,
                    min_new=rng.randint(0, 5),
                    is_sampled=rng.random() < 0.3,
                    shared=rng.choice([0, 30, 60]),
                    priority=rng.choice([None, -2, 0, 2, 20]),
                    session=rng.choice([None, "s1", "s2", "s3"]),
                    namespace=rng.choice(["", "", "salt"]),
                    wait_s=rng.choice([math.inf, 2.0]),
                    asks=rng.choice(ASKS),
                )
            case "turn" if machine.heard:
                machine.next_turn(rng.randint(0, 5), rng.randint(0, 12), rng.random() < 0.8)
            case "cancel":
                machine.cancel(rng.randint(0, 9), rng.choice([None, 0, 1]), rng.random() < 0.5)
            case "run":
                machine.run_for(rng.randint(1, 30))
            case "command":
                machine.command(rng.choice(ORDERS))
            case "time":
                machine.pass_time(rng.choice([0.5, 5.0]))
        machine.every_page_and_slot_has_one_owner()
    machine.teardown()
