"""Measures what one question to the waiting table costs, in CPU microseconds, by schedule policy.

So many choices wait, each at one of the nodes of a made-up prefix tree. Each round asks for the best few, lets them in
and adds as many newcomers, which leaves holes all over the table. Prints one JSON object.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define, evolve, field

from graphs.step import Ints
from stages.channels import open_mailbox
from stages.messages import ChoiceKey, Sampling, Submit, TextForm
from stages.scheduler.policies import Situation, load_policy, policy_names
from stages.scheduler.waiting import Waiting, routing_number
from stages.settings import PrioritySettings

NUM_ROUTING_KEYS = 50
NUM_PRIORITIES = 4


@define(eq=False)
class Match:
    usable_tokens: int
    node: int


@define(eq=False)
class MadeUpTree:
    """Puts each new watch at a random node; a node hangs on one of the 16 before it or, one in 8, on the root."""

    num_nodes: int
    numbers: random.Random
    shape: Ints = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shape = np.zeros(self.num_nodes + 1, np.int64)
        for node in range(2, self.num_nodes + 1):
            if self.numbers.randrange(8):
                self.shape[node] = max(1, node - self.numbers.randint(1, 16))

    def watch(self, namespace: str, tokens: Any, limit: int, on_change: Callable[[Any], None]) -> Match:
        return Match(self.numbers.randint(0, limit), self.numbers.randint(1, self.num_nodes))

    def unwatch(self, watch: Any) -> None:
        pass

    def parents(self) -> Ints:
        return self.shape


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of the prefix tree at which prompts end")
    parser.add_argument("--limits", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    tables = {name: (name, None) for name in policy_names()}
    tables |= {f"{name} with priorities": (name, PrioritySettings()) for name in ("fcfs", "lof")}
    results = {
        label: {
            f"best_{limit}": measure(name, priority, arguments.waiting, arguments.nodes, limit, arguments.rounds)
            for limit in arguments.limits
        }
        for label, (name, priority) in tables.items()
    }
    print(json.dumps({"waiting": arguments.waiting, "nodes": arguments.nodes, "cpu_us": results}, indent=2))


def measure(
    name: str, priority: PrioritySettings | None, num_waiting: int, num_nodes: int, limit: int, num_rounds: int
) -> dict[str, float]:
    """Return the median and the 99th percentile of one call of `best` in CPU microseconds."""
    numbers = random.Random(0)
    waiting = Waiting(load_policy(name), priority, MadeUpTree(num_nodes, numbers))
    running = {routing_number(str(key)): key + 1 for key in range(NUM_ROUTING_KEYS // 2)}
    costs_us, come = [], 0
    for step in range(num_rounds):
        while len(waiting) < num_waiting:
            waiting.add(_submit(come, numbers), come)
            come += 1
        now = Situation(10 * come, running, step=step)
        begin_ns = time.thread_time_ns()
        best = waiting.best(limit, now)
        costs_us.append((time.thread_time_ns() - begin_ns) / 1e3)
        for submit in best:
            waiting.remove(submit.key)
    return {"p50": round(statistics.median(costs_us), 1), "p99": round(statistics.quantiles(costs_us, n=100)[98], 1)}


_TEMPLATE = Submit(
    key=ChoiceKey("", 0),
    prompt_ids=(),
    sampling=Sampling(),
    seed=0,
    max_new_tokens=1,
    min_new_tokens=0,
    stop_token_ids=frozenset(),
    stop=(),
    form=TextForm(),
    in_reasoning=False,
    logprobs=False,
    num_top_logprobs=0,
    mailbox=open_mailbox(1, 1)[0],
)


def _submit(index: int, numbers: random.Random) -> Submit:
    return evolve(
        _TEMPLATE,
        key=ChoiceKey(f"request-{index}", 0),
        prompt_ids=(1,) * numbers.randint(1, 200),
        max_new_tokens=numbers.randint(1, 4096),
        priority=numbers.randrange(NUM_PRIORITIES),
        routing_key=str(numbers.randrange(NUM_ROUTING_KEYS)),
    )


if __name__ == "__main__":
    main()
