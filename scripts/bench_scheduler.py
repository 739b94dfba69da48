"""Measures what the scheduler's core costs a step: plan + complete + take, in CPU microseconds of this thread.

Two situations, each with the prefix cache as serving has it by default and without one. `full`: so many choices decode,
none ends, and others wait or none do. `steady`: the choices end one after another, for each the policy lets in another
of those that wait, and one more arrives. Prompts share their first half in families. The device's answer is a constant,
so nothing but the core is timed. Prints one JSON object.
"""

import argparse
import gc
import itertools
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from attrs import define, field

from graphs.keys import Buckets, doubling
from graphs.step import Capacity, StepOutput
from stages.channels import Admission, open_mailbox
from stages.messages import ChoiceKey, Sampling, StepPlan, Submit, TextForm
from stages.scheduler.core import SchedulerCore
from stages.scheduler.policies import load_policy
from stages.settings import CacheSettings, SchedulerSettings

PROMPT_TOKENS = 256
FAMILY_TOKENS, NUM_FAMILIES = 128, 64
PAGE_TOKENS = 64
ENDLESS_TOKENS = 1 << 20
MAILBOX = open_mailbox(1, 1)[0]


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0], help="choices that wait behind the running ones")
    parser.add_argument("--steady", nargs="*", default=[], metavar="POLICY", help="policies to measure steadily")
    parser.add_argument("--overlap", action="store_true", help="plan each step while the one before it is in flight")
    arguments = parser.parse_args()
    results = []
    for rows, waiting, has_cache in itertools.product(arguments.rows, arguments.waiting, (True, False)):
        situations = [(None, "fcfs")] + [(rows, policy) for policy in arguments.steady if waiting]
        for new_tokens, policy in situations:
            bench = Bench(rows, waiting, has_cache, arguments.overlap, policy, arguments.steps, new_tokens)
            case = {"rows": rows, "waiting": waiting, "cache": has_cache}
            case |= {"situation": "full"} if new_tokens is None else {"situation": "steady", "policy": policy}
            results.append(case | {"cpu_us": bench.run()})
    print(json.dumps({"overlap": arguments.overlap, "steps": results}, indent=2))


@define(eq=False)
class Bench:
    """A core with its rows running; new_tokens None lets none of them end."""

    num_rows: int
    num_waiting: int
    has_cache: bool
    overlap: bool
    policy: str
    num_steps: int
    new_tokens: int | None
    core: SchedulerCore = field(init=False)
    queue: Admission = field(init=False)
    flights: deque[StepPlan] = field(factory=deque)
    _num_sent: int = 0

    def __attrs_post_init__(self) -> None:
        rows = self.num_rows
        most_tokens = PROMPT_TOKENS + (self.num_steps + 4 * rows + 64 if self.new_tokens is None else self.new_tokens)
        row_pages = -(-most_tokens // PAGE_TOKENS)
        capacity = Capacity(
            num_pages=2 * rows * row_pages + 1,
            page_size_tokens=PAGE_TOKENS,
            num_slots=4 * rows + 1 if self.has_cache else rows + 1,
            buckets=Buckets(doubling(1, rows), (1, 2, 4), (64, 256), doubling(4, 2 * row_pages)),
            vocab_size=4096,
            context_length_tokens=row_pages * PAGE_TOKENS,
            max_top_logprobs=20,
        )
        cache = CacheSettings(max_snapshots=2 * rows) if self.has_cache else None
        # Room for all that runs is kept, so that every row runs.
        settings = SchedulerSettings(
            max_running_requests=rows, overlap=self.overlap, cache=cache, schedule_conservativeness=0.0
        )
        self.queue = Admission(rows + self.num_waiting + 1, lambda _: None)
        self.core = SchedulerCore(settings, capacity, self.queue, load_policy(self.policy))

    def run(self) -> dict[str, float]:
        """Return median, 99th percentile and mean of a step, and the median of each of its parts."""
        self._fill()
        gc.collect()
        parts: dict[str, list[float]] = {"plan": [], "complete": [], "take": []}
        for _ in range(self.num_steps):
            self._submit_missing()
            output = _output(self.num_rows)
            parts["plan"].append(_cpu_us(self._plan))
            done = self.flights.popleft()
            parts["complete"].append(_cpu_us(partial(self.core.complete, done.step, output)))
            parts["take"].append(_cpu_us(self.core.outbox.take))
        costs_us = [sum(step) for step in zip(*parts.values(), strict=True)]
        return {
            "p50": round(statistics.median(costs_us), 1),
            "p99": round(statistics.quantiles(costs_us, n=100)[98], 1),
            "mean": round(statistics.mean(costs_us), 1),
        } | {f"{name}_p50": round(statistics.median(costs), 1) for name, costs in parts.items()}

    def _plan(self) -> None:
        while (plan := self.core.plan()) is not None:
            self.flights.append(plan)

    def _fill(self) -> None:
        """Let rows in until all decode; without ends one after another there is no steady state to begin from."""
        output = _output(max(self.num_rows, 4))
        self._submit_missing()
        while self.core.roster.prefilling or len(self.core.roster.decoding) < self.num_rows:
            self._plan()
            self.core.complete(self.flights.popleft().step, output)
            self.core.outbox.take()
            if self.new_tokens is not None and self._num_sent >= 2 * self.num_rows + self.num_waiting:
                break
            self._submit_missing()

    def _submit_missing(self) -> None:
        while self.core.roster.num_running + len(self.queue.waiting) < self.num_rows + self.num_waiting:
            self.queue.send_nowait((_submit(self._num_sent, self.new_tokens or ENDLESS_TOKENS),))
            self._num_sent += 1


def _cpu_us(call: Callable[[], object]) -> float:
    begin_ns = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begin_ns) / 1e3


def _submit(index: int, max_new_tokens: int) -> Submit:
    family = (index % NUM_FAMILIES,) * FAMILY_TOKENS
    return Submit(
        key=ChoiceKey(f"request-{index}", 0),
        prompt_ids=(*family, *(index // 4096, index % 4096) * ((PROMPT_TOKENS - FAMILY_TOKENS) // 2)),
        sampling=Sampling(temperature=0.7, top_p=0.95),
        seed=index,
        max_new_tokens=max_new_tokens,
        min_new_tokens=0,
        stop_token_ids=frozenset({0, 1, 2}),
        stop=(),
        form=TextForm(),
        in_reasoning=False,
        logprobs=False,
        num_top_logprobs=0,
        mailbox=MAILBOX,
    )


def _output(num_rows: int) -> StepOutput:
    token_ids = np.full(max(num_rows, 4), 7, np.int64)
    return StepOutput(token_ids, np.zeros(max(num_rows, 4), np.float32), None, None, 0.0)


if __name__ == "__main__":
    main()
