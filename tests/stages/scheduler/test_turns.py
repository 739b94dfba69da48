"""What a conversation leaves in the prefix cache, turn by turn, at the core."""

from attrs import define, field

from stages.channels import Admission
from stages.messages import Usage
from stages.scheduler.core import SchedulerCore
from stages.scheduler.nodes import Node, subtree
from stages.scheduler.policies import load_policy
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import capacity, submit


@define(eq=False)
class Engine:
    """A core and its device, run to the end of each request."""

    cache: CacheSettings
    device: HistoryDevice = field(factory=lambda: HistoryDevice(capacity(num_pages=60, num_slots=20)))
    queue: Admission = field(factory=lambda: Admission(8, lambda _: None))
    core: SchedulerCore = field(init=False)
    num_asked: int = 0

    def __attrs_post_init__(self) -> None:
        settings = SchedulerSettings(max_running_requests=2, cache=self.cache)
        self.core = SchedulerCore(settings, self.device.capacity, self.queue, load_policy("fcfs"))

    def ask(self, prompt: tuple[int, ...], max_new_tokens: int = 12) -> tuple[tuple[int, ...], Usage]:
        self.num_asked += 1
        self.queue.send_nowait((submit(f"r{self.num_asked}", prompt, max_new_tokens=max_new_tokens),))
        while (plan := self.core.plan()) is not None:
            self.core.complete(plan.step, self.device.run(plan.input))
        tokens = self.core.outbox.take()
        assert tokens is not None
        return sum((row.token_ids for row in tokens.rows), ()), tokens.rows[-1].usage

    def snapshots(self) -> dict[int, Node]:
        """Return the nodes with a snapshot by their end."""
        assert self.core.memory.tree is not None
        roots = self.core.memory.tree._radix.roots.values()
        return {node.end: node for root in roots for node in subtree(root) if node.has_snapshot}


def ids(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


def test_the_next_turn_computes_its_new_tokens_the_one_never_read_and_at_most_an_open_group() -> None:
    engine = Engine(CacheSettings())
    prompt = ids(0, 21)
    for more in range(1, 9):
        answer, _ = engine.ask(prompt, max_new_tokens=8 + more)
        history = prompt + answer
        prompt = history + ids(100 * more, more)
        _, usage = engine.ask(prompt, max_new_tokens=1)
        assert len(history) - 1 - usage.cached_tokens <= 3
        assert usage.cached_tokens % 4 == 0


def test_snapshots_of_earlier_turns_go_first() -> None:
    engine = Engine(CacheSettings())
    prompt = ids(0, 20)
    answer, _ = engine.ask(prompt)
    first = set(engine.snapshots())
    prompt += answer + ids(500, 20)
    engine.ask(prompt)
    nodes = engine.snapshots()
    assert {end for end, node in nodes.items() if node.is_superseded} == first
    assert sorted(set(nodes) - first) == [44, 60]


def test_an_answer_that_the_client_sends_back_otherwise_is_abandoned_and_the_next_one_expected_to_be() -> None:
    engine = Engine(CacheSettings())
    prompt = ids(0, 20)
    answer, _ = engine.ask(prompt)
    # The client leaves out the first half of the answer.
    later = prompt + answer[6:] + ids(500, 20)
    _, usage = engine.ask(later)
    assert usage.cached_tokens == 16
    nodes = engine.snapshots()
    assert {end for end, node in nodes.items() if node.is_abandoned} == {28, 56}
    # The prompt that both turns share is no fork for it.
    assert nodes[16].is_superseded


def test_another_conversation_that_begins_alike_abandons_nothing() -> None:
    engine = Engine(CacheSettings())
    engine.ask(ids(0, 20))
    engine.ask(ids(0, 10) + ids(700, 30))
    assert not any(node.is_abandoned for node in engine.snapshots().values())


def test_the_same_prompt_again_abandons_nothing() -> None:
    engine = Engine(CacheSettings())
    engine.ask(ids(0, 20))
    _, usage = engine.ask(ids(0, 20))
    assert usage.cached_tokens == 16
    assert not any(node.is_abandoned for node in engine.snapshots().values())


def test_on_peers_fixed_grid_nothing_is_ranked_by_turns() -> None:
    engine = Engine(CacheSettings(placement="grid"))
    prompt = ids(0, 20)
    answer, usage = engine.ask(prompt)
    for _ in range(2):
        prompt += answer + ids(500, 20)
        answer, usage = engine.ask(prompt)
    assert usage.cached_tokens == 48
    assert not any(node.goes_first for node in engine.snapshots().values())
